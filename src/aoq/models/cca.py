"""Canonical correlation analysis of mean regions and bags of words, in closed form.

CCA finds the directions of two sets of vectors that correlate most (Hotelling, 1936). For images x
and texts t with covariances C_xx, C_xt and C_tt, the image directions are eigenvectors of

    C_xx^-1 C_xt C_tt^-1 C_tx,  with the squared correlations rho^2 as eigenvalues,

and the text directions are C_tt^-1 C_tx times these, divided by rho. A ridge on both covariances
keeps directions out in which the data hardly vary. Each direction counts by a power of its
correlation (Gong et al., IJCV 2014).

The image side is solved, which is narrow: of the matrix as wide as the vocabulary only a Cholesky
factor is needed. There is nothing to learn by steps: one pass over the data and a few
factorisations are all. CCA gives the first result on a data set, and the figure that a trained
model has to beat.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from aoq.config import ModelConfig
from aoq.errors import UserError
from aoq.models.bags import BagOfWords, map_bags
from aoq.models.encoders import unit
from aoq.scoring.inner_product import InnerProduct
from aoq.types import Encoding, Texts

_SMALLEST_CORRELATION = 1e-6
_SMALLEST_VARIANCE = 1e-12


class Moments:
    """First and second moments of aligned images and bags, in double precision."""

    def __init__(self, *, feature_width: int, vocabulary_size: int) -> None:
        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.float64)

        self.count = 0
        self.image_sum, self.text_sum = zeros(feature_width), zeros(vocabulary_size)
        self.images = zeros(feature_width, feature_width)
        self.texts = zeros(vocabulary_size, vocabulary_size)
        self.both = zeros(vocabulary_size, feature_width)

    def add(self, images: Tensor, tokens: Tensor, weights: Tensor) -> None:
        """Add images (B, F), and the words of their texts with their weights (B, T)."""
        images, tokens, weights = images.cpu().double(), tokens.cpu(), weights.cpu().double()
        places, pairs = tokens.flatten(), tokens[:, :, None] * len(self.texts) + tokens[:, None]
        self.count += len(images)
        self.image_sum += images.sum(dim=0)
        self.images += images.T @ images
        self.text_sum.index_add_(0, places, weights.flatten())
        of_pairs = weights[:, :, None] * weights[:, None]  # (B, T, T)
        self.texts.view(-1).index_add_(0, pairs.flatten(), of_pairs.flatten())
        of_both = weights[:, :, None] * images[:, None]  # (B, T, F)
        self.both.index_add_(0, places, of_both.flatten(0, 1))

    def covariances(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return C_xx, C_tt and C_tx."""
        image, text = self.image_sum / self.count, self.text_sum / self.count
        return (
            self.images / self.count - image.outer(image),
            self.texts / self.count - text.outer(text),
            self.both / self.count - text.outer(image),
        )


@dataclass(frozen=True)
class Directions:
    """The directions of images and texts that correlate most, as columns, and how much they do."""

    images: Tensor  # (F, D)
    texts: Tensor  # (V, D)
    correlations: Tensor  # (D,)

    @classmethod
    def of(cls, moments: Moments, *, ridge: float, width: int) -> Directions:
        """Solve for the first directions; `ridge` is relative to the mean variance of each side.

        With C_xx = L L' the eigenvectors u of L^-1 C_xt C_tt^-1 C_tx L'^-1 give x = L'^-1 u.
        """
        images, texts, both = moments.covariances()
        scale = images.diagonal().clamp(min=_SMALLEST_VARIANCE).rsqrt()  # of standardised features
        image_root = _root_with_ridge(images * scale.outer(scale), ridge)
        text_root = _root_with_ridge(texts, ridge)
        seen = torch.linalg.solve_triangular(image_root, (both * scale).T, upper=False)  # (F, V)
        read = torch.cholesky_solve(seen.T, text_root)  # (V, F)
        squares, vectors = torch.linalg.eigh(seen @ read)
        first = slice(-width, None)
        correlations = squares[first].flip(0).clamp(min=_SMALLEST_CORRELATION**2).sqrt()
        vectors = vectors[:, first].flip(1)
        from_root = torch.linalg.solve_triangular(image_root.T, vectors, upper=True)
        return cls(scale[:, None] * from_root, read @ vectors / correlations, correlations)


def _root_with_ridge(covariance: Tensor, ridge: float) -> Tensor:
    """Return the Cholesky factor of a covariance with a share of its mean variance added."""
    added = ridge * covariance.diagonal().mean().clamp(min=_SMALLEST_VARIANCE)
    try:
        root: Tensor = torch.linalg.cholesky(covariance + added * torch.eye(len(covariance)))
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        raise UserError(
            f"CCA cannot be solved with a ridge of {ridge:g}: features or words depend on each "
            "other; raise model.ridge, such as to 0.1."
        ) from None
    return root


class CCA(InnerProduct, nn.Module):
    """Encodes the mean region and the bag of words by linear maps; the score is the cosine."""

    image_mean: Tensor
    text_mean: Tensor

    def __init__(
        self, config: ModelConfig, *, feature_width: int, vocabulary_size: int, text_width: int = 0
    ) -> None:
        super().__init__()
        self.config = config
        width = min(config.joint_width, feature_width)
        self.bag = BagOfWords(vocabulary_size, weights=config.word_weights)
        self.register_buffer("image_mean", torch.zeros(feature_width))
        self.register_buffer("text_mean", torch.zeros(width))
        self.image_map = nn.Parameter(torch.zeros(feature_width, width))
        self.text_map = nn.Parameter(torch.zeros(vocabulary_size, width))

    def encode_images(self, regions: Tensor) -> Encoding:
        return Encoding(unit((regions.mean(dim=1) - self.image_mean) @ self.image_map))

    def encode_texts(self, texts: Texts) -> Encoding:
        mapped = map_bags(texts.tokens, self.bag(texts), self.text_map)
        return Encoding(unit(mapped - self.text_mean))

    def fit_inputs(self, regions: Tensor, texts: Texts) -> None:
        """Count words in some texts of the training data."""
        self.bag.fit(texts)

    @torch.no_grad()
    def fit(self, pairs: Iterable[tuple[Tensor, Texts]], *, epoch: int) -> None:
        """Compute both maps from aligned images and texts; each epoch has a larger ridge.

        `epoch` counts from 0: the ridge is `ridge` times `ridge_factor` to its power.
        """
        feature_width, vocabulary_size = len(self.image_map), len(self.text_map)
        moments = Moments(feature_width=feature_width, vocabulary_size=vocabulary_size)
        for regions, texts in pairs:
            moments.add(regions.mean(dim=1), texts.tokens, self.bag(texts))
        ridge = self.config.ridge * self.config.ridge_factor**epoch
        found = Directions.of(moments, ridge=ridge, width=self.image_map.shape[1])
        weights = found.correlations**self.config.correlation_power
        self.image_map.copy_(found.images * weights)
        self.text_map.copy_(found.texts * weights)
        self.image_mean.copy_(moments.image_sum / moments.count)
        self.text_mean.copy_(moments.text_sum / moments.count @ (found.texts * weights))
