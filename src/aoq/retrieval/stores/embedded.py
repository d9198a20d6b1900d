"""Stores in this process, by faiss.

A flat store compares a query with every vector, in memory, and is exact. An inverted-file store
(IVF) groups vectors around centroids, keeps each as bytes (8-bit numbers), and looks only into the
groups nearest to the query. It takes a quarter of the memory and a fiftieth of the time, and finds
nearly all; how much is measured when it is built (`aoq.retrieval.engines`). Its candidates are
compared again by their exact vectors, which stay on disk.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import Any, Self

import numpy as np

from aoq.errors import UserError, require_packages
from aoq.retrieval.metadata import Metadata
from aoq.retrieval.stores.protocol import Found, Selection
from aoq.scoring.blocks import ranges
from aoq.scoring.encoded import Rows
from aoq.storage import atomic_file
from aoq.types import Encoding, Floats, Ids

BLOCK_BYTES = 64 * 2**20
_FEW = 20_000  # allowed vectors up to which each is compared with the query


class FlatStore:
    """All vectors in memory, each compared with every query."""

    exact = True

    def __init__(self, width: int) -> None:
        self._faiss = _faiss()
        self._index: Any = self._faiss.IndexFlatIP(width)
        self._keys: Ids = np.empty(0, np.int64)  # of each position, ascending
        self.longest = 0.0

    @classmethod
    def of_rows(cls, rows: Rows[Encoding]) -> Self:
        """Read encoded images or texts, which are numbered from 0."""
        store: Self | None = None
        for block in ranges(len(rows), max(1, BLOCK_BYTES // rows.row_nbytes)):
            vectors = rows[block].vectors.cpu().numpy()
            store = store or cls(vectors.shape[1])
            store._append(np.arange(block.start, block.stop), vectors)
        assert store is not None
        return store

    def __len__(self) -> int:
        return len(self._keys)

    def keys(self) -> Ids:
        return self._keys

    def add(self, keys: Ids, vectors: Floats, rows: Metadata | None = None) -> None:
        self.remove(keys)
        order = np.argsort(keys)
        self._append(keys[order], vectors[order])
        if (np.diff(self._keys) < 0).any():
            self._sort()

    def remove(self, keys: Ids) -> None:
        positions = np.flatnonzero(np.isin(self._keys, keys))
        if len(positions):
            self._index.remove_ids(positions)
            self._keys = np.delete(self._keys, positions)

    def search(self, queries: Floats, *, top: int, among: Selection | None = None) -> Found:
        top = min(top, len(self) if among is None else len(among.keys))
        parameters = None
        if among is not None:
            positions = np.searchsorted(self._keys, among.keys)
            if len(positions) <= _FEW:
                return _compared(queries, among.keys, self.vectors(among.keys), top=top)
            bits = np.zeros(len(self), np.uint8)
            bits[positions] = 1
            selector = self._faiss.IDSelectorBitmap(np.packbits(bits, bitorder="little"))
            parameters = self._faiss.SearchParameters(sel=selector)
        scores, found = self._index.search(queries, top, params=parameters)
        return Found(_or_missing(self._keys[found], found), scores)

    def vectors(self, keys: Ids) -> Floats:
        positions = np.searchsorted(self._keys, keys)
        found: Floats = self._index.reconstruct_batch(positions)
        return found

    def close(self) -> None:
        self._index.reset()

    def _append(self, keys: Ids, vectors: Floats) -> None:
        self._index.add(np.ascontiguousarray(vectors))
        self._keys = np.concatenate([self._keys, keys])
        if len(vectors):
            lengths = np.linalg.norm(vectors, axis=1)
            self.longest = max(self.longest, float(lengths.max()))

    def _sort(self) -> None:
        order = np.argsort(self._keys)
        vectors = self._index.reconstruct_batch(order)
        self._index.reset()
        self._index.add(vectors)
        self._keys = self._keys[order]


class IvfStore:
    """Vectors as bytes in groups, of which a query visits the nearest."""

    exact = False

    def __init__(
        self,
        index: Any,
        *,
        fetch: Callable[[Ids], Floats],
        probes: int,
        longest: float,
    ) -> None:
        self._faiss = _faiss()
        self._index = index
        self._fetch = fetch
        self._lock = Lock()  # of changes
        self.probes = probes
        self.longest = longest

    @classmethod
    def train(
        cls, sample: Floats, *, groups: int, fetch: Callable[[Ids], Floats], longest: float
    ) -> Self:
        """Find the centroids of a sample of vectors; the store is empty."""
        faiss = _faiss()
        width = sample.shape[1]
        index = faiss.IndexIVFScalarQuantizer(
            faiss.IndexFlatIP(width),
            width,
            groups,
            faiss.ScalarQuantizer.QT_8bit,
            faiss.METRIC_INNER_PRODUCT,
        )
        index.cp.niter = 8
        index.cp.max_points_per_centroid = len(sample)  # all of the sample
        index.cp.min_points_per_centroid = 1
        index.train(np.ascontiguousarray(sample))
        return cls(index, fetch=fetch, probes=1, longest=longest)

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        fetch: Callable[[Ids], Floats],
        probes: int,
        longest: float,
        mapped: bool = True,
    ) -> Self:
        """Open a store on disk; one that is mapped reads the groups that queries visit only.

        One that is to be changed is read whole.
        """
        faiss = _faiss()
        try:
            index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP if mapped else 0)
        except RuntimeError as error:
            reason = str(error).splitlines()[-1][:200]
            raise UserError(
                f"{path} cannot be read ({reason}); make the index again with `aoq index RUN "
                "--force`."
            ) from None
        return cls(index, fetch=fetch, probes=probes, longest=longest)

    @property
    def groups(self) -> int:
        return int(self._index.nlist)

    def __len__(self) -> int:
        return int(self._index.ntotal)

    def keys(self) -> Ids:
        lists = self._index.invlists
        sizes = [lists.list_size(group) for group in range(self.groups)]
        if not sum(sizes):
            return np.empty(0, np.int64)
        found = [
            self._faiss.rev_swig_ptr(lists.get_ids(group), size)
            for group, size in enumerate(sizes)
            if size
        ]
        return np.sort(np.concatenate(found))

    def add(self, keys: Ids, vectors: Floats, rows: Metadata | None = None) -> None:
        self.remove(keys)
        with self._lock:
            self._index.add_with_ids(np.ascontiguousarray(vectors), keys)
        if len(vectors):
            self.longest = max(self.longest, float(np.linalg.norm(vectors, axis=1).max()))

    def remove(self, keys: Ids) -> None:
        with self._lock:
            if len(self) and len(keys):
                self._index.remove_ids(self._faiss.IDSelectorBatch(keys))

    def search(self, queries: Floats, *, top: int, among: Selection | None = None) -> Found:
        probes, selector = self.probes, None
        if among is not None:
            top = min(top, len(among.keys))
            if len(among.keys) <= _FEW:
                return _compared(queries, among.keys, self.vectors(among.keys), top=top)
            probes = min(self.groups, probes * -(-len(self) // len(among.keys)))
            selector = self._faiss.IDSelectorBatch(among.keys)
        parameters = self._faiss.SearchParametersIVF(nprobe=probes, sel=selector)
        scores, found = self._index.search(queries, min(top, len(self)), params=parameters)
        return Found(found, scores)

    def vectors(self, keys: Ids) -> Floats:
        return self._fetch(keys)

    def save(self, path: Path) -> None:
        with atomic_file(path) as temporary:
            self._faiss.write_index(self._index, str(temporary))

    def close(self) -> None:
        self._index = None


def _compared(queries: Floats, keys: Ids, vectors: Floats, *, top: int) -> Found:
    """Compare each query with all of these vectors."""
    scores = queries @ vectors.T
    if top < len(keys):
        nearest = np.argpartition(-scores, top - 1, axis=1)[:, :top]
    else:
        nearest = np.broadcast_to(np.arange(len(keys)), scores.shape)
    scores = np.take_along_axis(scores, nearest, 1)
    order = np.argsort(-scores, axis=1, kind="stable")
    return Found(keys[np.take_along_axis(nearest, order, 1)], np.take_along_axis(scores, order, 1))


def _or_missing(keys: Ids, found: Ids) -> Ids:
    return np.where(found >= 0, keys, -1)


def _faiss() -> Any:
    require_packages("faiss", extra="search")
    import faiss

    return faiss
