"""Fusion: one ranking from the scores of the model and those of the captions search.

Cosines and BM25 have no common scale. Where captions of dev tell how much to trust each, their
weighted sum ranks; elsewhere reciprocal ranks do, which need no scale (Cormack, Clarke and
Buettcher, SIGIR 2009).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from aoq.types import Bools, Floats, Ids

RANK_OFFSET = 60
_WEIGHTS = (0.0, *(2.0 ** (step / 2) for step in range(-8, 9)))  # 1/16 to 16


@dataclass(frozen=True)
class Fusion:
    """How scores of the model and of words are merged.

    >>> Fusion(weight=0.5).merge(np.array([0.3, 0.2]), np.array([0.0, 8.0])).tolist()
    [0.3, 0.7]
    """

    weight: float | None = None
    "Of the words; None: reciprocal ranks."

    def merge(self, model: Floats, words: Floats) -> Floats:
        """Merge the scores of the same candidates. (K,)

        Words count relative to the best candidate, as BM25 grows with the length of a query. A
        candidate without any of the words, whose score is 0, has no rank among them.
        """
        if self.weight is None:
            by_words = np.where(words > 0, 1 / (RANK_OFFSET + _ranks(words)), 0)
            return np.asarray(1 / (RANK_OFFSET + _ranks(model)) + by_words, np.float32)
        return model + self.weight * relative(words)


def relative(words: Floats) -> Floats:
    """Divide by the best score, if any is above 0. (K,)"""
    best = words.max(initial=0)
    return words / best if best > 0 else np.zeros_like(words)


def _ranks(scores: Floats) -> Ids:
    """Rank from 1; of equal scores, the first comes first. (K,)"""
    ranks = np.empty(len(scores), np.int64)
    ranks[np.argsort(-scores, kind="stable")] = np.arange(1, len(scores) + 1)
    return ranks


@dataclass(frozen=True)
class JudgedCandidates:
    """The candidates of a query whose right answers are known."""

    model: Floats
    words: Floats
    right: Bools


def choose_weight(queries: Sequence[JudgedCandidates]) -> float:
    """Return the weight of words with the best mean reciprocal rank of the first right answer.

    Weights are tried as multiples of the spread of the model's scores; the lowest of the best wins.
    """
    spread = float(np.mean([query.model.std() for query in queries]))
    weights = [spread * weight for weight in _WEIGHTS]
    values = [np.mean([_reciprocal_rank(query, weight) for query in queries]) for weight in weights]
    return float(weights[int(np.argmax(values))])


def _reciprocal_rank(query: JudgedCandidates, weight: float) -> float:
    if not query.right.any():
        return 0.0
    return float(1 / _ranks(Fusion(weight).merge(query.model, query.words))[query.right].min())
