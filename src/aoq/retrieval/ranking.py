"""Rankers: they find the best of many images or texts for a query, in one of three ways.

An embedding model compares vectors, which faiss does for all of them in milliseconds. A model with
cross attention scores pairs: all of them in blocks, which is exact and takes seconds, or only those
that an embedding model proposes. Results are best first, equal scores by the lower number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from aoq.errors import require_packages
from aoq.scoring.blocks import ranges
from aoq.scoring.encoded import Modality, Rows
from aoq.scoring.inner_product import InnerProduct
from aoq.scoring.protocol import Scorer
from aoq.types import Encoding, Floats, Ids

_BLOCK_BYTES = 64 * 2**20
_EXTRA = 64  # vectors beyond those wanted that are compared in double precision


@dataclass(frozen=True)
class Query:
    """Queries encoded by the model, and by its teacher if it has one."""

    own: Encoding
    teacher: Encoding | None = None


@dataclass(frozen=True)
class Ranking:
    """The best of each query, best first. (queries, top)"""

    ids: Ids
    scores: Floats


class Ranker(Protocol):
    """Ranks everything for some queries."""

    @property
    def exact(self) -> bool:
        """Whether the ranking never misses anything."""
        ...

    def rank(self, query: Query, *, top: int) -> Ranking: ...


class VectorRanker:
    """Ranks by inner products with all vectors, exactly: double precision corrects faiss.

    Faiss rounds, and keeps any of several equal vectors. It is therefore asked for more than are
    wanted, which are compared again; if the last wanted score is within rounding error of what
    faiss omitted, it is asked for twice as many.
    """

    exact = True

    def __init__(self, rows: Rows[Encoding]) -> None:
        require_packages("faiss", extra="search")
        import faiss

        blocks = ranges(len(rows), max(1, _BLOCK_BYTES // rows.row_nbytes))
        self._index: Any = None
        self._longest = 0.0
        for block in blocks:
            vectors = rows[block].vectors.cpu().numpy()
            if self._index is None:
                self._index = faiss.IndexFlatIP(vectors.shape[1])
            self._index.add(vectors)
            self._longest = max(self._longest, float(np.linalg.norm(vectors, axis=1).max()))

    def rank(self, query: Query, *, top: int) -> Ranking:
        return self.rank_vectors(query.own, top=top)

    def rank_vectors(self, query: Encoding, *, top: int) -> Ranking:
        vectors = query.vectors.cpu().numpy()
        most = self._index.ntotal
        top, count = min(top, most), min(top + _EXTRA, most)
        lengths = np.linalg.norm(vectors, axis=1) * self._longest
        rounding = 2 * vectors.shape[1] * np.finfo(np.float32).eps * lengths
        while True:
            proposed, ids = self._index.search(vectors, count)
            ranking = _best(self._compare(vectors, ids), ids, top=top)
            if count == most or (ranking.scores[:, -1] > proposed[:, -1] + rounding).all():
                return ranking
            count = min(2 * count, most)

    def _compare(self, vectors: Floats, ids: Ids) -> Floats:
        """Compute inner products of each query with some vectors in double precision. (Q, K)

        In blocks, because nearly equal vectors can make it compare nearly all of them.
        """
        scores = np.empty(ids.shape, np.float32)
        for block in ranges(ids.shape[1], max(1, _BLOCK_BYTES // (8 * vectors.size))):
            some = ids[:, block]
            found = self._index.reconstruct_batch(some.ravel()).reshape(*some.shape, -1)
            scores[:, block] = (found.astype(np.float64) * vectors[:, None]).sum(axis=2)
        return scores


def _best(scores: Floats, ids: Ids, *, top: int) -> Ranking:
    """Return the best of each row, equal scores by the lower id."""
    order = np.lexsort((ids, -scores), axis=1)[:, :top]
    return Ranking(np.take_along_axis(ids, order, 1), np.take_along_axis(scores, order, 1))


@dataclass(frozen=True)
class Candidates:
    """Images or texts to rank, and the model that scores them against queries."""

    scorer: Scorer[Encoding]
    rows: Rows[Encoding]
    kind: Modality

    def scores(self, query: Encoding, rows: slice | torch.Tensor) -> Floats:
        """Score each query against some candidates. (queries, rows)"""
        encoded = self.rows[rows]
        with torch.no_grad():
            scores = (
                self.scorer.score_matrix(encoded, query).T
                if self.kind == "images"
                else self.scorer.score_matrix(query, encoded)
            )
        return scores.float().cpu().numpy()


@dataclass(frozen=True)
class FullRanker:
    """Scores every candidate with the model, in blocks."""

    candidates: Candidates
    exact = True

    def rank(self, query: Query, *, top: int) -> Ranking:
        rows = self.candidates.rows
        n_queries = len(query.own)
        best = Ranking(np.empty((n_queries, 0), np.int64), np.empty((n_queries, 0), np.float32))
        for block in ranges(len(rows), max(1, _BLOCK_BYTES // rows.row_nbytes)):
            scores = self.candidates.scores(query.own, block)
            ids = np.broadcast_to(np.arange(block.start, block.stop), scores.shape)
            best = _best(
                np.concatenate([best.scores, scores], axis=1),
                np.concatenate([best.ids, ids], axis=1),
                top=top,
            )
        return best


@dataclass(frozen=True)
class ProposedRanker:
    """Scores with the model only the first candidates of its teacher."""

    candidates: Candidates
    teacher: VectorRanker
    proposals: int

    @property
    def exact(self) -> bool:
        return self.proposals >= len(self.candidates.rows)

    def rank(self, query: Query, *, top: int) -> Ranking:
        assert query.teacher is not None
        count = max(top, self.proposals)
        proposed = np.sort(self.teacher.rank_vectors(query.teacher, top=count).ids, axis=1)
        scores = [
            self.candidates.scores(query.own[slice(row, row + 1)], torch.from_numpy(ids))
            for row, ids in enumerate(proposed)
        ]
        return _best(np.concatenate(scores), proposed, top=top)


def compares_vectors(scorer: Scorer[Encoding]) -> bool:
    """Return whether a score is the inner product of two vectors, which faiss finds fast."""
    kind = type(scorer)
    return isinstance(scorer, InnerProduct) and kind.score_matrix is InnerProduct.score_matrix


def make_ranker(
    candidates: Candidates, teacher: Rows[Encoding] | None, *, proposals: int
) -> Ranker:
    """Make the ranker for a model: by vectors, by its teacher's proposals, or by full scoring."""
    if compares_vectors(candidates.scorer):
        return VectorRanker(candidates.rows)
    if teacher is None:
        return FullRanker(candidates)
    return ProposedRanker(candidates, VectorRanker(teacher), proposals)
