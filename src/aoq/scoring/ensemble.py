"""Combines several models into one: the mean of their score matrices.

The published results of all three models are ensembles: SCAN t2i + i2t, BFAN equal + prob, two
VSRNs. Members may differ in everything, vocabulary included; each scores its own encodings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

from aoq.scoring.encoded import EncodedDataset, Rows
from aoq.scoring.protocol import Scorer
from aoq.types import Encoding

E = TypeVar("E")


@dataclass(frozen=True)
class JointRows(Generic[E]):
    """The same images or texts as encoded by each member."""

    parts: tuple[Rows[E], ...]

    def __len__(self) -> int:
        return len(self.parts[0])

    def __getitem__(self, rows: slice | Tensor) -> tuple[E, ...]:
        return tuple(part[rows] for part in self.parts)

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)

    @property
    def row_nbytes(self) -> int:
        return sum(part.row_nbytes for part in self.parts)


@dataclass(frozen=True)
class Ensemble:
    """Scores with the mean of its members.

    >>> from aoq.scoring.inner_product import InnerProduct
    >>> data = EncodedDataset(Encoding(torch.eye(2)), Encoding(torch.eye(2)))
    >>> other = EncodedDataset(Encoding(torch.ones(2, 1)), Encoding(torch.ones(2, 1)))
    >>> joint = Ensemble.join([data, other])
    >>> Ensemble([InnerProduct()] * 2).score_matrix(joint.images[:], joint.texts[:])
    tensor([[1.0000, 0.5000],
            [0.5000, 1.0000]])
    """

    members: Sequence[Scorer[Encoding]]

    @staticmethod
    def join(
        encoded: Sequence[EncodedDataset[Encoding]],
    ) -> EncodedDataset[tuple[Encoding, ...]]:
        """Join the encodings of one data set by each member, in the order of the members."""
        return EncodedDataset(
            images=JointRows(tuple(part.images for part in encoded)),
            texts=JointRows(tuple(part.texts for part in encoded)),
            device=encoded[0].device,
        )

    def score_matrix(self, images: tuple[Encoding, ...], texts: tuple[Encoding, ...]) -> Tensor:
        scores = [
            member.score_matrix(*encodings)
            for member, *encodings in zip(self.members, images, texts, strict=True)
        ]
        return torch.stack(scores).mean(dim=0)

    def score_pairs(self, images: tuple[Encoding, ...], texts: tuple[Encoding, ...]) -> Tensor:
        scores = [
            member.score_pairs(*encodings)
            for member, *encodings in zip(self.members, images, texts, strict=True)
        ]
        return torch.stack(scores).mean(dim=0)
