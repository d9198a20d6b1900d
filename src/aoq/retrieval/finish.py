"""Completes an index whose parts are written: store, engines, and index.json, written last.

Everything before index.json can be done again: vectors go to a store under their keys, and files
have names that are never used again. What index.json does not name in the end is removed.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from aoq.distributed import alone_in
from aoq.errors import UserError
from aoq.manifest import create_manifest, versions_of
from aoq.retrieval.index import ENTRIES, INDEX, EngineRecord, Index, IndexManifest, StoreRecord
from aoq.retrieval.metadata import Metadata
from aoq.retrieval.text import WORDS
from aoq.scoring.blocks import evenly_spread, ranges
from aoq.scoring.encoded import Modality
from aoq.scoring.encoding_files import remove_rows
from aoq.storage import remove_folder
from aoq.types import Floats

ENGINE_FILES = ".ivf"
KINDS: tuple[Modality, ...] = ("images", "texts")
_UPLOAD = 10_000  # vectors that are in memory at once
_QUERIES = 1_000


@contextmanager
def writing(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """Lock an index for writing, and remove parts that it does not name in the end.

    `wait` waits for another process that writes it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    create_manifest(folder, "index")
    with alone_in(folder, doing="written", wait=wait):
        try:
            yield
        finally:
            _remove_unnamed(folder)


def save_index(
    folder: Path,
    manifest: IndexManifest,
    *,
    compares_vectors: bool,
    complete: Callable[[Index], Index] | None = None,
) -> Index:
    """Write index.json after all that it names; returns the index as it is then.

    `compares_vectors` says whether scores are inner products, which engines and stores can find.
    `complete` is called last, with an index that can be searched.
    """
    index = Index.of(folder, manifest)
    if manifest.store is not None:
        index = _uploaded(index, manifest.store)
    elif compares_vectors:
        index = _with_engines(index)
    if complete is not None:
        index = complete(index)
    index.manifest.save(folder)
    if manifest.store is not None:
        _tidy_store(index)
    return index


# A store outside of the index


def _uploaded(index: Index, record: StoreRecord) -> Index:
    """Write to the store what its parts still hold on disk."""
    from aoq.retrieval.stores.milvus import MilvusAddress, MilvusStore

    address, longest = MilvusAddress.parse(record.address), dict(record.longest)
    width = record.width
    for part in index.manifest.parts:
        local = replace(index.manifest, parts=(part,), store=None)
        written = Index.of(index.folder, local)
        for kind in KINDS:
            count = part.n_images if kind == "images" else part.n_texts
            if not count or not _has_rows(index.folder / part.name, kind):
                continue
            rows, keys, metadata = written.rows(kind), written.keys(kind), _rows_of(written, kind)
            assert rows is not None
            width = rows[:1].vectors.shape[1]
            store = MilvusStore.create(
                address,
                kind,
                model_hash=index.manifest.model_hash,
                width=width,
                expected=len(index.images) if kind == "images" else len(index.texts),
                owner=record.owner,
            )
            for block in ranges(count, _UPLOAD):
                some = range(block.start, block.stop)
                store.add(keys[block], rows[block].vectors.cpu().numpy(), metadata.rows(some))
            longest[kind] = max(longest.get(kind, 0.0), store.longest)
            store.close()
    record = replace(record, address=address.text, width=width, longest=longest)
    return replace(index, manifest=replace(index.manifest, store=record))


def _rows_of(index: Index, kind: Modality) -> Metadata:
    """Return what the store keeps beside each vector: its id, and the columns of its image."""
    if kind == "images":
        columns = dict(index.metadata.columns)
        return Metadata({**columns, "id": tuple(image.id for image in index.images)})
    images = [text.images[0] for text in index.texts]
    columns = dict(index.metadata.rows(images).columns)
    ids, words = ([getattr(text, name) for text in index.texts] for name in ("id", "text"))
    return Metadata({**columns, "id": ids, "text": words})


def _tidy_store(index: Index) -> None:
    """Remove vectors from the store that are of no entry, and from the parts what is stored."""
    for part in index.manifest.parts:
        for kind in KINDS:
            remove_rows(index.folder / part.name, kind)
    for kind in KINDS:
        rows = index.rows(kind)
        if rows is not None:
            store = rows.store  # type: ignore[attr-defined]
            store.remove(np.setdiff1d(store.keys(), index.keys(kind)))
            store.close()


def _has_rows(part: Path, kind: Modality) -> bool:
    return any(part.glob(f"{kind}-*.safetensors"))


# Engines


def _with_engines(index: Index) -> Index:
    """Make or update the engines of images and texts, where there are many."""
    from aoq.retrieval.engines import FLAT_UP_TO, build_engine, update_engine

    engines: dict[str, EngineRecord] = {}
    for kind in KINDS:
        rows = index.rows(kind)
        if rows is None or len(rows) <= FLAT_UP_TO:
            continue
        keys = index.keys(kind)
        before = index.manifest.engines.get(kind)
        path = index.folder / f"{kind}-{secrets.token_hex(4)}{ENGINE_FILES}"
        record = None
        if before is not None:
            record = update_engine(before, index.folder / before.file, path, rows, keys)
        if record is None:
            queries, asked_with = _queries(index, kind)
            record = build_engine(rows, keys, queries, path, asked_with=asked_with)
        engines[kind] = record
    return replace(index, manifest=replace(index.manifest, engines=engines))


def _queries(index: Index, kind: Modality) -> tuple[Floats, Modality]:
    """Choose vectors to ask with: of the other kind, which is what people ask with, if any."""
    other: Modality = "texts" if kind == "images" else "images"
    for asked_with in (other, kind):
        rows = index.rows(asked_with)
        if rows is not None and len(rows) >= _QUERIES:
            import torch

            some = torch.from_numpy(evenly_spread(len(rows), _QUERIES))
            return rows[some].vectors.cpu().numpy(), asked_with
    raise AssertionError("an engine is made for many vectors")


# What is no longer named


def _remove_unnamed(folder: Path) -> None:
    """Remove parts and files that were replaced, or whose index was never finished."""
    named: set[str] = set()
    if (folder / INDEX).exists():
        try:
            manifest = IndexManifest.load(folder)
        except UserError:  # damaged: what it names is not known
            return
        named = {*(part.name for part in manifest.parts), manifest.captions or ""}
        named |= {engine.file for engine in manifest.engines.values()}
    for path in folder.iterdir():
        if path.name in named:
            continue
        if (path / ENTRIES).is_file() or (path / WORDS).is_file():
            remove_folder(path)
        elif path.suffix == ENGINE_FILES and versions_of(path):
            path.unlink()
