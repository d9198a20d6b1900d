"""Which engine finds the nearest vectors, by their number, and how much it finds.

Up to 100,000 vectors all are compared with a query: 20 milliseconds on one core. Beyond, they are
grouped (`IvfStore`), about as many groups as twice the square root of their number. How many groups
a query has to visit is measured, not assumed: queries are asked of the groups and of all vectors,
and the least number that finds 98 % of the nearest ten is recorded with what it found. A graph
(HNSW) takes longer to build and to ask at the same recall, and no vector can be removed from
faiss' (docs/log.md, Search).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from aoq.progress import progress_bar
from aoq.retrieval.index import EngineRecord
from aoq.retrieval.stores.embedded import BLOCK_BYTES, IvfStore
from aoq.retrieval.stores.protocol import VectorStore
from aoq.retrieval.vector_ranking import EncodedQuery, VectorRanker, best
from aoq.scoring.blocks import evenly_spread, ranges
from aoq.scoring.encoded import Modality, Rows
from aoq.types import Encoding, Floats, Ids

FLAT_UP_TO = 100_000
TARGET = 0.98
DEPTH = 10
_QUERIES = 500
_SAMPLE = 40  # vectors of a group on which its centroid is trained
_SLACK = 0.2  # share of vectors that may come or go before groups are made again


def build_engine(
    rows: Rows[Encoding], keys: Ids, queries: Floats, path: Path, *, asked_with: Modality
) -> EngineRecord:
    """Group the vectors of an index, write the groups, and measure how many to visit."""
    store = train_groups(rows, keys)
    _fill(store, rows, keys, np.arange(len(rows)))
    record = measure(store, rows, keys, queries, asked_with=asked_with)
    store.save(path)
    return replace(record, file=path.name)


def train_groups(rows: Rows[Encoding], keys: Ids) -> IvfStore:
    """Make an empty store whose groups fit the vectors."""
    groups = 2 ** round(math.log2(2 * math.sqrt(len(rows))))
    sample = _vectors(rows, evenly_spread(len(rows), _SAMPLE * groups))
    longest = float(np.linalg.norm(sample, axis=1).max())
    return IvfStore.train(sample, groups=groups, fetch=fetching(rows, keys), longest=longest)


def update_engine(
    record: EngineRecord, before: Path, path: Path, rows: Rows[Encoding], keys: Ids
) -> EngineRecord | None:
    """Write groups that are up to date with an index; None if they have to be made again."""
    store = open_engine(before, record, rows, keys, mapped=False)
    held = store.keys()
    gone, fresh = np.setdiff1d(held, keys), np.flatnonzero(~np.isin(keys, held))
    if len(gone) + len(fresh) > _SLACK * len(held):
        return None
    if not len(gone) and not len(fresh):
        return record
    store.remove(gone)
    _fill(store, rows, keys, fresh)
    store.save(path)
    return replace(record, file=path.name, longest=store.longest)


def open_engine(
    path: Path, record: EngineRecord, rows: Rows[Encoding], keys: Ids, *, mapped: bool = True
) -> IvfStore:
    """Open the groups of an index, whose exact vectors are its rows."""
    return IvfStore.open(
        path,
        fetch=fetching(rows, keys),
        probes=record.probes,
        longest=record.longest,
        mapped=mapped,
    )


def fetching(rows: Rows[Encoding], keys: Ids) -> Callable[[Ids], Floats]:
    """Return what reads exact vectors by their keys."""
    order = np.argsort(keys)

    def fetch(wanted: Ids) -> Floats:
        return _vectors(rows, order[np.searchsorted(keys, wanted, sorter=order)])

    return fetch


def measure(
    store: IvfStore, rows: Rows[Encoding], keys: Ids, queries: Floats, *, asked_with: Modality
) -> EngineRecord:
    """Find how few groups have to be visited, by queries of which the exact answer is computed."""
    sample = queries[evenly_spread(len(queries), _QUERIES)]
    exact = exact_nearest(rows, sample, top=DEPTH)
    query = EncodedQuery(Encoding(torch.from_numpy(sample)))
    probes, recall = 1, 0.0
    while True:
        store.probes = probes
        found = VectorRanker(store, keys).rank(query, top=DEPTH).ids
        recall = recall_of(found, exact)
        if recall >= TARGET or probes >= store.groups:
            break
        probes = min(store.groups, math.ceil(1.5 * probes))
    return EngineRecord(
        name="ivf",
        file="",
        groups=store.groups,
        probes=probes,
        longest=store.longest,
        recall=round(recall, 4),
        queries=len(sample),
        asked_with=asked_with,
    )


def recall_of(found: Ids, exact: Ids) -> float:
    """Return the share of the exact answers that was found."""
    return float(np.mean([np.isin(b, a).mean() for a, b in zip(found, exact, strict=True)]))


def exact_nearest(rows: Rows[Encoding], queries: Floats, *, top: int) -> Ids:
    """Compare queries with all rows, in blocks. (Q, top)"""
    ids = np.empty((len(queries), 0), np.int64)
    scores = np.empty((len(queries), 0), np.float32)
    with progress_bar("compare", total=len(rows), unit="vectors") as update:
        for block in ranges(len(rows), max(1, BLOCK_BYTES // rows.row_nbytes)):
            products = queries @ rows[block].vectors.cpu().numpy().T
            some = min(top, products.shape[1])
            nearest = np.argpartition(-products, some - 1, axis=1)[:, :some]
            kept = best(
                np.concatenate([scores, np.take_along_axis(products, nearest, 1)], axis=1),
                np.concatenate([ids, nearest + block.start], axis=1),
                top=top,
            )
            ids, scores = kept.ids, kept.scores
            update(advance=block.stop - block.start)
    return ids


def _fill(store: VectorStore, rows: Rows[Encoding], keys: Ids, numbers: Ids) -> None:
    with progress_bar("group", total=len(numbers), unit="vectors") as update:
        for block in ranges(len(numbers), max(1, BLOCK_BYTES // rows.row_nbytes)):
            some = numbers[block]
            store.add(keys[some], _vectors(rows, some))
            update(advance=len(some))


def _vectors(rows: Rows[Encoding], numbers: Ids) -> Floats:
    found: Floats = rows[torch.from_numpy(numbers)].vectors.cpu().numpy()
    return found
