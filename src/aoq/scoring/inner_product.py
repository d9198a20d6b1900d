"""The inner product of two vectors: the score of VSRN and of every two-tower model."""

from __future__ import annotations

from torch import Tensor

from aoq.errors import UserError
from aoq.scoring.precision import as_single, full_precision
from aoq.types import Encoding


class InnerProduct:
    """Mix-in: one vector per image and per text, and their inner product as the score."""

    def score_matrix(self, images: Encoding, texts: Encoding) -> Tensor:
        _require_vectors(images, texts, same_number=False)
        with full_precision(images.vectors):
            return as_single(images.vectors) @ as_single(texts.vectors).T

    def score_pairs(self, images: Encoding, texts: Encoding) -> Tensor:
        _require_vectors(images, texts, same_number=True)
        return (as_single(images.vectors) * as_single(texts.vectors)).sum(dim=-1)


def _require_vectors(images: Encoding, texts: Encoding, *, same_number: bool) -> None:
    """Reject anything but single vectors of equal width, which broadcasting would accept."""
    found = tuple(images.vectors.shape), tuple(texts.vectors.shape)
    same_width = found[0][-1] == found[1][-1]
    if len(found[0]) != 2 or len(found[1]) != 2 or not same_width:
        raise UserError(
            f"images have vectors of the shape {found[0]} and texts {found[1]}; an inner product "
            "takes one vector each, (N, D) and (M, D)."
        )
    if same_number and len(images) != len(texts):
        raise UserError(
            f"{len(images):,} images and {len(texts):,} texts cannot be paired; expected as many."
        )
