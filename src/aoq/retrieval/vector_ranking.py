"""Ranks by inner products, exactly where the store is exact: double precision corrects it.

A store rounds, and keeps any of several equal vectors. It is therefore asked for more than are
wanted, which are compared again; if the last wanted score is within rounding error of what an exact
store omitted, it is asked for twice as many.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np

from aoq.retrieval.allowed import Allowed
from aoq.retrieval.stores.embedded import BLOCK_BYTES, FlatStore
from aoq.retrieval.stores.protocol import Selection, VectorStore
from aoq.scoring.blocks import ranges
from aoq.scoring.encoded import Rows
from aoq.types import Encoding, Floats, Ids

_EXTRA = 64  # vectors beyond those wanted that are compared in double precision


@dataclass(frozen=True)
class EncodedQuery:
    """Queries encoded by the model, and by its teacher if it has one."""

    own: Encoding
    teacher: Encoding | None = None


@dataclass(frozen=True)
class Ranking:
    """The best of each query, best first, as many as may be found. (queries, top)

    Where fewer are found for one query than for another, the missing have the id -1.
    """

    ids: Ids
    scores: Floats


class Ranker(Protocol):
    """Ranks everything, or what is allowed, for some queries."""

    @property
    def exact(self) -> bool:
        """Whether the ranking never misses anything."""
        ...

    def rank(self, query: EncodedQuery, *, top: int, allowed: Allowed | None = None) -> Ranking: ...


class VectorRanker:
    """Ranks the vectors of a store, whose keys are those of the numbers 0, 1, 2, ..."""

    def __init__(self, store: VectorStore, keys: Ids | None = None) -> None:
        self._store = store
        self._keys = keys
        self._order = None if keys is None else np.argsort(keys)

    @classmethod
    def of_rows(cls, rows: Rows[Encoding]) -> Self:
        """Hold the vectors of rows in memory."""
        return cls(FlatStore.of_rows(rows))

    @property
    def exact(self) -> bool:
        return self._store.exact

    def rank(self, query: EncodedQuery, *, top: int, allowed: Allowed | None = None) -> Ranking:
        return self.rank_vectors(query.own, top=top, allowed=allowed)

    def rank_vectors(self, query: Encoding, *, top: int, allowed: Allowed | None = None) -> Ranking:
        vectors = query.vectors.cpu().numpy()
        most = len(self._store) if allowed is None else len(allowed)
        top, count = min(top, most), min(top + _EXTRA, most)
        if not top:
            return Ranking(
                np.empty((len(vectors), 0), np.int64), np.empty((len(vectors), 0), np.float32)
            )
        among = None if allowed is None else self._select(allowed)
        lengths = np.linalg.norm(vectors, axis=1) * self._store.longest
        rounding = 2 * vectors.shape[1] * np.finfo(np.float32).eps * lengths
        while True:
            found = self._store.search(vectors, top=count, among=among)
            ids = self._numbers(found.keys, allowed)
            ranking = best(self._compare(vectors, found.keys, ids), ids, top=top)
            if count == most or found.keys.shape[1] < count or not self._store.exact:
                return _without_missing(ranking)
            if (ranking.scores[:, -1] > found.scores[:, -1] + rounding).all():
                return _without_missing(ranking)
            count = min(2 * count, most)

    def _select(self, allowed: Allowed) -> Selection:
        numbers = allowed.numbers
        keys = numbers if self._keys is None else np.sort(self._keys[numbers])
        return Selection(keys, allowed.where, allowed.columns)

    def _numbers(self, keys: Ids, allowed: Allowed | None) -> Ids:
        """Return the numbers of keys; -1 for those that are missing, unknown or not allowed."""
        numbers = keys
        if self._keys is not None and self._order is not None:
            places = np.searchsorted(self._keys, keys, sorter=self._order)
            numbers = self._order[np.minimum(places, len(self._keys) - 1)]
            numbers = np.where(self._keys[numbers] == keys, numbers, -1)
        if allowed is not None:
            numbers = np.where((numbers >= 0) & allowed.mask[numbers], numbers, -1)
        return numbers

    def _compare(self, queries: Floats, keys: Ids, numbers: Ids) -> Floats:
        """Compute inner products of each query with some vectors in double precision. (Q, K)

        In blocks, because nearly equal vectors can make it compare nearly all of them.
        """
        scores = np.full(keys.shape, -np.inf, np.float32)
        for block in ranges(keys.shape[1], max(1, BLOCK_BYTES // (8 * queries.size))):
            is_known = numbers[:, block] >= 0
            distinct, places = np.unique(keys[:, block][is_known], return_inverse=True)
            vectors = self._store.vectors(distinct).astype(np.float64)
            row, _ = is_known.nonzero()
            products = np.empty(len(row), np.float64)
            for query in range(len(queries)):
                own = row == query
                products[own] = (vectors[places[own]] * queries[query]).sum(axis=1)
            scores[:, block][is_known] = products
        return scores


def best(scores: Floats, ids: Ids, *, top: int) -> Ranking:
    """Return the best of each row, equal scores by the lower id."""
    order = np.lexsort((ids, -scores), axis=1)[:, :top]
    return Ranking(np.take_along_axis(ids, order, 1), np.take_along_axis(scores, order, 1))


def _without_missing(ranking: Ranking) -> Ranking:
    """Drop the columns in which no query has a hit."""
    some = (ranking.ids >= 0).any(axis=0)
    return ranking if some.all() else Ranking(ranking.ids[:, some], ranking.scores[:, some])
