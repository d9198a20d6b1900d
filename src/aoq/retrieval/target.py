"""What `aoq search`, `aoq serve` and `aoq index` are pointed at: a run, or a folder of photos.

The index of a folder of photos lies in the user's cache, under the folder's place and the model's
hash. It is made when it is first needed and brought up to date whenever it is used; nothing is ever
written among the photos.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from aoq.config import RoundName
from aoq.distributed import ALONE, Processes
from aoq.errors import UserError
from aoq.features.names import PICTURE_SUFFIXES
from aoq.folders import check_output_folder
from aoq.progress import count_of, say, warn
from aoq.retrieval.build import empty_manifest, open_store
from aoq.retrieval.default_model import default_model, is_run
from aoq.retrieval.encoder import QueryEncoder
from aoq.retrieval.finish import writing
from aoq.retrieval.index import INDEX, Index
from aoq.retrieval.sync import IndexUpdate, Synced, extract_new_photos
from aoq.runs.best_round import best_round
from aoq.runs.checkpoint import MakeModel, hash_model
from aoq.storage import cache_folder, hash_parts, is_locked


@dataclass(frozen=True)
class Target:
    """A run and its index; `photos` is the folder that was named instead of the run."""

    run: Path
    index: Path | None
    "None: the one beside the model."
    photos: Path | None = None
    synced: Synced = field(default_factory=Synced)


def open_target(
    path: Path | str,
    *,
    run: Path | str | None = None,
    index: Path | str | None = None,
    round: RoundName | None = None,  # noqa: A002
    make_model: MakeModel | None = None,
    captions: Path | str | None = None,
    store: str | None = None,
    sync: bool = True,
    force: bool = False,
    processes: Processes = ALONE,
) -> Target:
    """Find the run and the index to search; of a folder of photos, make or update its index.

    `run` is the model for a folder of photos, `captions` a file with captions of them, and `store`
    the address of a store for a new index. `force` makes the index again, which takes the place of
    the old one when it is complete. Several processes share the work, if all of them call this; the
    first one knows what has changed.
    """
    path = Path(path)
    if not is_photo_folder(path):
        if run is not None or captions is not None:
            raise UserError(
                f"{path} is not a folder of photos; --run and --captions are for one, so leave "
                "them out, or name a folder with pictures."
            )
        return Target(path, None if index is None else Path(index))
    model = best_round(run or default_model(), round).path
    folder = photo_index(path, model) if index is None else Path(index)
    there = (folder / INDEX).is_file() and not force
    if there and not sync and captions is None:
        return Target(model, folder, path)
    if there and is_locked(folder):
        warn(f"{folder} is being written by another process; it is searched as it is.")
        return Target(model, folder, path)
    if processes.size > 1:
        reader = QueryEncoder.load(model, make_model=make_model)
        extract_new_photos(path.resolve(), folder, reader, processes)
    if not processes.is_first:
        return Target(model, folder, path)
    synced = _update(
        folder, path, model, make_model=make_model, captions=captions, store=store, force=force
    )
    return Target(model, folder, path, synced)


def is_photo_folder(path: Path) -> bool:
    """Return whether a folder holds pictures and is not what aoq wrote."""
    if not path.is_dir() or is_run(path) or (path / INDEX).is_file():
        return False
    for _, folders, names in os.walk(path):
        folders[:] = [name for name in folders if not name.startswith(".")]
        if any(Path(name).suffix.lower() in PICTURE_SUFFIXES for name in names):
            return True
    return False


def photo_index(photos: Path, model: Path) -> Path:
    """Return where the index of a folder of photos by a model lies in the cache."""
    place = hash_parts(str(photos.resolve()).encode(), hash_model(model).encode())
    return cache_folder() / "indexes" / f"{photos.resolve().name}-{place[:12]}"


def _update(
    folder: Path,
    photos: Path,
    model: Path,
    *,
    make_model: MakeModel | None,
    captions: Path | str | None,
    store: str | None,
    force: bool,
) -> Synced:
    def load() -> QueryEncoder:
        return QueryEncoder.load(model, make_model=make_model)

    if force or not (folder / INDEX).is_file():
        check_output_folder(folder, what="index", force=True)
    if not force and is_locked(folder):
        say(f"{folder} is being made by another process, which is waited for")
    with writing(folder, wait=not force):
        is_new = force or not (folder / INDEX).is_file()
        encoder = None
        if is_new:
            say(f"making an index of {photos}, which is kept in {folder}")
            encoder = load()
            record = open_store(store, encoder, folder)
            before = Index.of(folder, empty_manifest(encoder, store=record, make_model=make_model))
        else:
            before = Index.open(folder)
            _require_store(before, store)
        update = IndexUpdate(folder, before, lambda: encoder or load(), anew=force)
        synced = update.sync(
            photos.resolve(), captions=None if captions is None else Path(captions)
        )
    if is_new or synced:
        say(f"{photos}: {described(synced)}; {count_of(len(update.index.images), 'photo')} in all")
    return synced


def _require_store(index: Index, store: str | None) -> None:
    """Reject another store than the one that an index has."""
    if store is None:
        return
    from aoq.retrieval.stores.milvus import MilvusAddress

    record = index.manifest.store
    if record is None or MilvusAddress.parse(store).text != record.address:
        here = "in the index itself" if record is None else f"in {record.address}"
        raise UserError(
            f"{index.folder} keeps its vectors {here}; leave --store out, or add --force to make "
            "the index again."
        )


def described(synced: Synced) -> str:
    """Say what has changed, as in "2 photos added, 1 removed"."""
    counts = [
        f"{count:,} {name if name != 'unusable' else 'cannot be read'}"
        for name, count in vars(synced).items()
        if count
    ]
    return ", ".join(counts) or "nothing has changed"
