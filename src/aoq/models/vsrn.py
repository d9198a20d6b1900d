"""VSRN (Li et al., ICCV 2019): regions reason about each other, then are read one by one.

This is the published architecture, oddities included: the two normalisations of region states run
over the *region* axis, and the Flickr30K variant skips the first one and ends in a batch norm.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from aoq.config import ModelConfig
from aoq.models.captioner import CaptionModel
from aoq.models.encoders import (
    ReadsRegions,
    RegionInputs,
    make_text_encoder,
    region_projection,
    unit,
)
from aoq.scoring.inner_product import InnerProduct
from aoq.types import Encoding, Texts

_GRAPH_LAYERS = 4


def _norm_sets(norm: nn.Module, rows: Tensor, n_sets: int) -> Tensor:
    """Apply batch norm to each of `n_sets` equal parts of the rows separately, in order."""
    return torch.cat([norm(part) for part in rows.chunk(n_sets)])


class RegionGraph(nn.Module):
    """A residual graph layer over regions, with the affinity theta^T phi / R (no softmax).

    The published 1x1 convolutions over (B, D, R) are linear maps over (B, R, D).
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.theta = nn.Linear(width, width)
        self.phi = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.output = nn.Linear(width, width)
        self.norm = nn.BatchNorm1d(width)
        nn.init.zeros_(self.norm.weight)
        nn.init.zeros_(self.norm.bias)

    def forward(self, regions: Tensor, n_sets: int = 1) -> Tensor:
        n_regions = regions.shape[1]
        affinity = self.theta(regions) @ self.phi(regions).transpose(1, 2) / n_regions  # (B, R, R)
        mixed: Tensor = self.output(affinity @ self.value(regions))  # (B, R, D)
        change = _norm_sets(self.norm, mixed.flatten(0, 1), n_sets)
        return regions + change.view_as(mixed)


class VSRNImageEncoder(nn.Module):
    """Encodes regions by graph reasoning, then a GRU in region order, as one unit vector."""

    def __init__(self, *, feature_width: int, joint_width: int, variant: str) -> None:
        super().__init__()
        self.projection = region_projection(feature_width, joint_width)
        self.graph = nn.ModuleList(RegionGraph(joint_width) for _ in range(_GRAPH_LAYERS))
        self.gru = nn.GRU(joint_width, joint_width, batch_first=True)
        self.norm = nn.BatchNorm1d(joint_width) if variant == "f30k" else None

    def forward(self, regions: Tensor, n_sets: int = 1) -> Encoding:
        states = self.projection(regions)  # (B, R, D)
        if self.norm is None:
            states = normalize(states, dim=1)
        for layer in self.graph:
            states = layer(states, n_sets)
        states = normalize(states, dim=1)
        _, last = self.gru(states)
        vectors = last[0]  # (B, D)
        if self.norm is not None:
            vectors = _norm_sets(self.norm, vectors, n_sets)
        return Encoding(vectors=unit(vectors), context=states)


class VSRN(ReadsRegions, InnerProduct, nn.Module):
    """VSRN with its caption model; the score is the inner product."""

    def __init__(
        self, config: ModelConfig, *, feature_width: int, vocabulary_size: int, text_width: int = 0
    ) -> None:
        super().__init__()
        self.inputs = RegionInputs(config, feature_width)
        self.image_encoder = VSRNImageEncoder(
            feature_width=feature_width, joint_width=config.joint_width, variant=config.variant
        )
        self.text_encoder = make_text_encoder(
            config, vocabulary_size=vocabulary_size, text_width=text_width
        )
        # Word pieces cannot be written as words, so there is no caption model with a text tower.
        self.caption_weight = 0.0 if config.text_model else config.caption_weight
        self.captioner = (
            CaptionModel(
                region_width=config.joint_width,
                width=config.caption_width,
                word_width=config.word_width,
                vocabulary_size=vocabulary_size,
                dropout=config.caption_dropout,
                max_words=config.caption_max_words,
            )
            if self.caption_weight
            else None
        )

    def encode_images(self, regions: Tensor) -> Encoding:
        encoding: Encoding = self.image_encoder(self.inputs(regions))
        return encoding

    def encode_image_sets(self, regions: Tensor, n_sets: int) -> list[Encoding]:
        """Encode all sets in one pass; batch norms process each set separately, as published."""
        together: Encoding = self.image_encoder(self.inputs(regions), n_sets=n_sets)
        size = len(regions) // n_sets
        return [together[start : start + size] for start in range(0, len(regions), size)]

    def encode_texts(self, texts: Texts) -> Encoding:
        vectors: Tensor = self.text_encoder(texts)
        return Encoding(vectors)

    def auxiliary_loss(self, images: Encoding, texts: Texts) -> dict[str, Tensor]:
        """Return the caption loss: predict the text from the graph's region states."""
        if self.captioner is None or images.context is None:
            return {}
        loss: Tensor = self.captioner(images.context, texts)
        return {"caption": self.caption_weight * loss}
