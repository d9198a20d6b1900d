"""The parts that the published models share: inputs, projections, recurrent readers.

What keeps a model from learning a small set by heart is done to its inputs, and so is the same for
all models: regions are standardised, and a step sees less of regions and words than there is. All
of it is off unless `[model]` turns it on, and draws nothing from the random state while it is off.

Recurrent readers process texts in groups of similar length, so that short ones do not wait for the
longest; a text's encoding does not depend on the other texts of its batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, pad
from torch.nn.utils.parametrizations import weight_norm

from aoq.config import ModelConfig
from aoq.errors import UserError
from aoq.models.heads import GeneralisedPooling, Standardised
from aoq.scoring.cross_attention import CrossAttention
from aoq.scoring.precision import as_single
from aoq.types import Encoding, Texts

_READ_TOGETHER = 64  # texts of similar length per batch of a recurrent reader
_ZERO = 1e-8  # shorter vectors have no direction


def region_projection(in_width: int, out_width: int) -> nn.Linear:
    """Create the `fc` of all three models: Xavier-uniform weight, zero bias."""
    linear = nn.Linear(in_width, out_width)
    bound = math.sqrt(6 / (in_width + out_width))
    nn.init.uniform_(linear.weight, -bound, bound)
    nn.init.zeros_(linear.bias)
    return linear


def word_embedding(vocabulary_size: int, width: int) -> nn.Embedding:
    """Create word vectors, uniform in (-0.1, 0.1) at the start."""
    embedding = nn.Embedding(vocabulary_size, width)
    nn.init.uniform_(embedding.weight, -0.1, 0.1)
    return embedding


def unit(vectors: Tensor) -> Tensor:
    """Normalise vectors to length one; a zero vector stays zero, and its gradient stays finite."""
    vectors = as_single(vectors)
    length = vectors.norm(dim=-1, keepdim=True)
    scaled: Tensor = vectors / (length + _ZERO).where(length > _ZERO, 1.0)
    return scaled


def by_length(texts: Texts) -> Iterator[tuple[Tensor, Texts]]:
    """Yield groups of texts of similar length: their rows, and their words without spare padding.

    >>> texts = Texts(torch.tensor([[1, 5, 2], [1, 2, 0]]), torch.tensor([3, 2]))
    >>> [(rows.tolist(), group.tokens.tolist()) for rows, group in by_length(texts)]
    [([1, 0], [[1, 2, 0], [1, 5, 2]])]
    """
    for rows in texts.lengths.argsort(stable=True).split(_READ_TOGETHER):
        lengths = texts.lengths[rows]
        yield rows, Texts(texts.tokens[rows, : int(lengths[-1])], lengths)


class Thinning(nn.Module):
    """In training, leaves out single features by dropout, and whole vectors, which become zero.

    The vectors are the regions of an image or the words of a text; never are all of them left out.
    """

    def __init__(self, *, features: float, vectors: float) -> None:
        super().__init__()
        self.features = features
        self.vectors = vectors

    def forward(self, states: Tensor) -> Tensor:
        """Thin out some states. (B, L, F)"""
        if self.training and self.vectors:
            kept = torch.rand(states.shape[:2], device=states.device) >= self.vectors
            kept |= ~kept.any(dim=1, keepdim=True)
            states = states * kept[..., None]
        if self.training and self.features:
            states = dropout(states, self.features)
        return states


def word_thinning(config: ModelConfig) -> Thinning:
    """Create what the readers of words put between a word's vector and what reads it."""
    return Thinning(features=config.word_dropout, vectors=config.drop_words)


class RegionInputs(nn.Module):
    """What a model reads of an image: its regions, standardised and in training thinned out."""

    def __init__(self, config: ModelConfig, width: int) -> None:
        super().__init__()
        self.scaled = Standardised(width) if config.standardise else None
        self.thinning = Thinning(features=config.feature_dropout, vectors=config.drop_regions)

    def forward(self, regions: Tensor) -> Tensor:
        if self.scaled is not None:
            regions = self.scaled(regions)
        thinned: Tensor = self.thinning(regions)
        return thinned

    def fit(self, regions: Tensor) -> None:
        """Standardise by the regions of some images of the training data. (B, R, F)"""
        if self.scaled is not None:
            self.scaled.standardise(regions.flatten(0, 1))


class ReadsRegions:
    """Mix-in of the models that read regions through `inputs`, which their training data scale."""

    inputs: RegionInputs

    def fit_inputs(self, regions: Tensor, texts: Texts) -> None:
        """Standardise the regions by those of some images of the training data."""
        self.inputs.fit(regions)


class RegionEncoder(nn.Module):
    """A linear map of every region to the joint space, with unit length (SCAN, BFAN)."""

    def __init__(
        self, *, feature_width: int, joint_width: int, weight_normed: bool = False
    ) -> None:
        super().__init__()
        self.projection = region_projection(feature_width, joint_width)
        if weight_normed:
            weight_norm(self.projection, dim=-1)  # one norm for the whole matrix

    def forward(self, regions: Tensor) -> Encoding:
        return Encoding(unit(self.projection(regions)))


class WordEncoder(nn.Module):
    """A GRU over the words, one-way or averaged over both directions; one unit vector per word."""

    def __init__(self, config: ModelConfig, *, vocabulary_size: int, bidirectional: bool) -> None:
        super().__init__()
        word_width, joint_width = config.word_width, config.joint_width
        self.embedding = word_embedding(vocabulary_size, word_width)
        self.thinning = word_thinning(config)
        self.gru = nn.GRU(word_width, joint_width, batch_first=True)
        self.backward_gru = (
            nn.GRU(word_width, joint_width, batch_first=True) if bidirectional else None
        )

    def forward(self, texts: Texts) -> Encoding:
        longest = int(texts.lengths.max())
        groups = [(rows, self._read(group)) for rows, group in by_length(texts)]
        states = torch.cat([pad(part, (0, 0, 0, longest - part.shape[1])) for _, part in groups])
        order = torch.cat([rows for rows, _ in groups])
        mask = texts.mask[:, :longest]
        return Encoding(unit(states)[order.argsort()] * mask[..., None], mask)  # (B, T, D)

    def _read(self, texts: Texts) -> Tensor:
        words = self.thinning(self.embedding(texts.tokens))
        states: Tensor = self.gru(words)[0]
        if self.backward_gru is None:
            return states
        # A text is reversed within its own length, so its padding stays at the end.
        positions = torch.arange(words.shape[1], device=words.device)
        backwards = (texts.lengths[:, None] - 1 - positions).clamp(min=0)[..., None]
        reversed_states = self.backward_gru(words.take_along_dim(backwards, dim=1))[0]
        both: Tensor = states + reversed_states.take_along_dim(backwards, dim=1)
        return both / 2


class TowerWordEncoder(nn.Module):
    """A linear map of the states of a frozen text tower to the joint space, with unit length."""

    def __init__(self, config: ModelConfig, *, text_width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(text_width)
        self.thinning = word_thinning(config)
        self.projection = region_projection(text_width, config.joint_width)

    def forward(self, texts: Texts) -> Encoding:
        states = unit(self.projection(self.thinning(self.norm(states_of(texts)))))
        return Encoding(states * texts.mask[..., None], texts.mask)


class TowerTextEncoder(nn.Module):
    """The states of a frozen text tower, mapped to the joint space and pooled to a unit vector."""

    def __init__(self, config: ModelConfig, *, text_width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(text_width)
        self.thinning = word_thinning(config)
        self.projection = region_projection(text_width, config.joint_width)
        self.pooling = GeneralisedPooling()

    def forward(self, texts: Texts) -> Tensor:
        states = self.projection(self.thinning(self.norm(states_of(texts))))
        return unit(self.pooling(states, texts.mask))


def states_of(texts: Texts) -> Tensor:
    """Return the states of a text tower, with which texts have to come. (B, T, F)"""
    if texts.vectors is None or texts.vectors.ndim != 3:
        raise UserError(
            "the model reads the states of a text tower, and the texts have none; read them with "
            "a Collator(..., texts_from=...), as the run of the model does."
        )
    return texts.vectors


class RegionsAndWords(ReadsRegions, CrossAttention, nn.Module):
    """The encoders that SCAN and BFAN share; subclasses define the attention."""

    def __init__(
        self,
        config: ModelConfig,
        *,
        feature_width: int,
        vocabulary_size: int,
        text_width: int,
        bidirectional: bool,
        weight_normed: bool,
    ) -> None:
        super().__init__()
        self.inputs = RegionInputs(config, feature_width)
        self.image_encoder = RegionEncoder(
            feature_width=feature_width,
            joint_width=config.joint_width,
            weight_normed=weight_normed,
        )
        self.text_encoder: nn.Module
        if config.text_model:
            self.text_encoder = TowerWordEncoder(config, text_width=text_width)
        else:
            self.text_encoder = WordEncoder(
                config, vocabulary_size=vocabulary_size, bidirectional=bidirectional
            )

    def encode_images(self, regions: Tensor) -> Encoding:
        encoding: Encoding = self.image_encoder(self.inputs(regions))
        return encoding

    def encode_texts(self, texts: Texts) -> Encoding:
        encoding: Encoding = self.text_encoder(texts)
        return encoding


def make_text_encoder(config: ModelConfig, *, vocabulary_size: int, text_width: int) -> nn.Module:
    """Create the text encoder of VSRN and VSE: a GRU, or the states of a text tower."""
    if config.text_model:
        return TowerTextEncoder(config, text_width=text_width)
    return LastStateTextEncoder(config, vocabulary_size=vocabulary_size)


class LastStateTextEncoder(nn.Module):
    """A GRU over the words; its state at the last word, with unit length, encodes the text."""

    def __init__(self, config: ModelConfig, *, vocabulary_size: int) -> None:
        super().__init__()
        self.embedding = word_embedding(vocabulary_size, config.word_width)
        self.thinning = word_thinning(config)
        self.gru = nn.GRU(config.word_width, config.joint_width, batch_first=True)

    def forward(self, texts: Texts) -> Tensor:
        groups = [(rows, self._read(group)) for rows, group in by_length(texts)]
        order = torch.cat([rows for rows, _ in groups])
        return torch.cat([vectors for _, vectors in groups])[order.argsort()]

    def _read(self, texts: Texts) -> Tensor:
        # A one-way GRU never sees what follows a word, so padding needs no packing.
        words = self.thinning(self.embedding(texts.tokens))
        states, _ = self.gru(words)  # (B, T, D)
        rows = torch.arange(len(states), device=states.device)
        return unit(states[rows, texts.lengths - 1])  # (B, D)
