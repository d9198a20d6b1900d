"""What a matching model is to the rest of the library: four methods.

Losses, mining, training and evaluation know a model by this protocol alone, so a user's own
two-tower network takes part without inheriting anything.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import Tensor

from aoq.types import Encoding, Texts


class Scorer(Protocol):
    """Scores encoded images against encoded texts; higher is closer."""

    def score_matrix(self, images: Encoding, texts: Encoding) -> Tensor:
        """Every image against every text. (N, M)"""
        ...

    def score_pairs(self, images: Encoding, texts: Encoding) -> Tensor:
        """Image b against text b: the diagonal of `score_matrix`. (B,)"""
        ...


class MatchingModel(Scorer, Protocol):
    """A scorer with the encoders that feed it."""

    def encode_images(self, regions: Tensor) -> Encoding:
        """Region features (N, R, F) to encodings."""
        ...

    def encode_texts(self, texts: Texts) -> Encoding:
        """Padded word ids to encodings."""
        ...


@runtime_checkable
class HasAuxiliaryLoss(Protocol):
    """A model that learns something beside matching, as VSRN learns to write captions."""

    def auxiliary_loss(self, images: Encoding, texts: Texts) -> dict[str, Tensor]:
        """Named terms, added to the matching loss as they are."""
        ...
