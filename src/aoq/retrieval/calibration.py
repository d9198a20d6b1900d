"""Calibration: from the score of a hit to the probability that it is right.

Scores of one model mean nothing to another, and little to people. Queries of dev, whose right
answers are known, tell which share of the hits of a score is right. Isotonic regression makes a map
of them that never falls; its blocks also give the lowest score above which a wanted share is right.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from aoq.types import Bools, Floats

FEWEST = 20


@dataclass(frozen=True)
class Calibration:
    """Blocks of hits of similar score, from the lowest; the share of right ones never falls."""

    split: str
    queries: int
    depth: int
    "First hits of each query that were judged."
    gallery: int
    "Entries that could answer."
    lowest: tuple[float, ...]
    "Lowest score of each block."
    mean: tuple[float, ...]
    "Mean score of each block."
    hits: tuple[int, ...]
    right: tuple[int, ...]

    @classmethod
    def fit(
        cls,
        scores: Floats,
        right: Bools,
        *,
        split: str,
        queries: int,
        depth: int,
        gallery: int,
        fewest: int = FEWEST,
    ) -> Self:
        """Pool adjacent hits until the share of right ones rises from block to block.

        The highest block is pooled until it has `fewest` hits, as one right hit proves little.
        """
        blocks: list[_Block] = []
        for block in _by_score(scores, right):
            while blocks and blocks[-1].share >= block.share:
                block = blocks.pop().joined(block)
            blocks.append(block)
        while len(blocks) > 1 and blocks[-1].hits < fewest:
            highest = blocks.pop()
            blocks.append(blocks.pop().joined(highest))
        return cls(
            split,
            queries,
            depth,
            gallery,
            lowest=tuple(block.lowest for block in blocks),
            mean=tuple(block.total / block.hits for block in blocks),
            hits=tuple(block.hits for block in blocks),
            right=tuple(block.right for block in blocks),
        )

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Self:
        lists = {name: tuple(fields[name]) for name in ("lowest", "mean", "hits", "right")}
        return cls(**fields | lists)

    def probability(self, score: float) -> float:
        """Interpolate the share of right hits between the means of blocks."""
        return float(np.interp(score, self.mean, np.divide(self.right, self.hits)))

    def bar(self, precision: float) -> float | None:
        """Return the lowest score above which at least this share of the hits was right.

        None if even the best hits were right less often.
        """
        reached = np.flatnonzero(self._precisions >= precision)
        return self.lowest[reached[0]] if len(reached) else None

    @property
    def best_precision(self) -> float:
        """The share of right hits in the highest block, which no bar exceeds."""
        return float(self._precisions[-1])

    @property
    def _precisions(self) -> npt.NDArray[np.float64]:
        """The share of right hits from each block upwards, which never falls. (blocks,)"""
        right, hits = (np.cumsum(counts[::-1])[::-1] for counts in (self.right, self.hits))
        return np.asarray(right / hits, np.float64)


@dataclass(frozen=True)
class _Block:
    lowest: float
    total: float
    "Sum of the scores."
    hits: int
    right: int

    @property
    def share(self) -> float:
        return self.right / self.hits

    def joined(self, higher: _Block) -> _Block:
        return _Block(
            self.lowest,
            self.total + higher.total,
            self.hits + higher.hits,
            self.right + higher.right,
        )


def _by_score(scores: Floats, right: Bools) -> list[_Block]:
    """Make a block of all hits of each score, from the lowest."""
    values, block_of, counts = np.unique(scores, return_inverse=True, return_counts=True)
    right_counts = np.bincount(block_of, weights=right).astype(int)
    return [
        _Block(value, value * hits, hits, found)
        for value, hits, found in zip(
            values.tolist(), counts.tolist(), right_counts.tolist(), strict=True
        )
    ]
