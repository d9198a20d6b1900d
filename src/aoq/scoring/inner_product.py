"""The inner product of two vectors: the score of VSRN and of every two-tower model."""

from __future__ import annotations

from torch import Tensor

from aoq.scoring.precision import as_single, full_precision
from aoq.types import Encoding


class InnerProduct:
    """Mix-in: one vector an image, one vector a text, their inner product as the score."""

    def score_matrix(self, images: Encoding, texts: Encoding) -> Tensor:
        with full_precision(images.vectors):
            return as_single(images.vectors) @ as_single(texts.vectors).T

    def score_pairs(self, images: Encoding, texts: Encoding) -> Tensor:
        return (as_single(images.vectors) * as_single(texts.vectors)).sum(dim=-1)
