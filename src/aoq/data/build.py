"""Records become a data set folder of our own, whole or not at all.

dataset.json            what it is, which network and grid made the features, a hash of every file
train.json              images, captions and the pairs among them, in the order of the rows
train.features.npy      (N, grid * grid, 1280) float16; the same two files for dev and test
events.jsonl            when it was built, and how long that took
source/                 pictures and captions, where the data set was generated
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple
from pathlib import Path
from typing import Any

from aoq.data.dataset import VERSION, is_ours
from aoq.data.extract import GRID, EfficientNetLite, cache_features, require_grid, write_features
from aoq.data.formats import Record, raise_problems, read_records
from aoq.errors import UserError
from aoq.progress import EventLog, progress_bar
from aoq.storage import (
    EVENTS,
    MANIFEST,
    atomic_folder,
    hash_file,
    write_json,
    write_text,
)
from aoq.types import SPLITS


def build_dataset(
    records: Sequence[Record], folder: Path, *, name: str, grid: int = GRID, force: bool = False
) -> None:
    """Extract the features of all records and write them as a data set."""
    require_grid(grid)
    raise_problems(find_problems(records))
    inside = [record.picture for record in records if _is_inside(record.picture, folder)]
    if inside:
        raise UserError(
            f"{folder} holds the pictures themselves, such as {inside[0]}; "
            "choose another place for the data set."
        )
    with _new_folder(folder, force=force) as temporary:
        _fill(temporary, records, name=name, grid=grid)


def build_scenes(
    folder: Path, *, size: str, seed: int = 0, grid: int = GRID, force: bool = False
) -> None:
    """Generate the embedded data set, then build it as if a user had brought it."""
    from aoq.data.scenes import SIZES, write_scenes

    require_grid(grid)
    total = sum(astuple(SIZES[size])) if size in SIZES else 0
    with _new_folder(folder, force=force) as temporary:
        source = temporary / "source"
        with progress_bar("Drawing scenes", total=total, unit="pictures") as update:
            write_scenes(source, size=size, seed=seed, progress=lambda *_: update())
        records = read_records(source / "captions.jsonl", pictures=source)
        _fill(temporary, records, name=f"scenes-{size}", grid=grid)


def find_problems(records: Sequence[Record]) -> list[str]:
    """What keeps records from being a data set, wherever they come from."""
    if not records:
        return ["There are no records; expected at least one image with a caption."]
    problems: list[str] = []
    splits: dict[str, str] = {}
    caption_ids: set[str] = set()
    for record in records:
        image, n_captions, n_ids = record.image_id, len(record.captions), len(record.caption_ids)
        if record.split not in SPLITS:
            problems.append(f"{image} is in {record.split!r}; expected {', '.join(SPLITS)}.")
        if splits.get(image) == record.split:
            problems.append(f"The image id {image} is there twice; ids must differ.")
        elif image in splits:
            problems.append(f"{image} is in {splits[image]} and in {record.split}; expected one.")
        if not record.captions or not all(caption.strip() for caption in record.captions):
            problems.append(f"{image} has no caption or an empty one; expected words.")
        if n_captions != n_ids:
            problems.append(f"{image} has {n_captions} captions and {n_ids} ids; expected as many.")
        if not record.picture.is_file():
            problems.append(f"{image} has no picture at {record.picture}.")
        problems += [
            f"The caption id {caption_id} is there twice; ids must differ."
            for caption_id in record.caption_ids
            if caption_id in caption_ids
        ]
        splits.setdefault(image, record.split)
        caption_ids.update(record.caption_ids)
    return problems


@contextmanager
def _new_folder(folder: Path, *, force: bool) -> Iterator[Path]:
    """A folder that takes its place when it is complete; what it replaces stays until then."""
    _refuse_taken(folder, force=force)
    with atomic_folder(folder) as temporary:
        yield temporary
        _refuse_taken(folder, force=force)
        if folder.exists():
            shutil.rmtree(folder)


def _refuse_taken(folder: Path, *, force: bool) -> None:
    """Only a data set of ours is ever replaced, and it only if asked for."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not is_ours(folder):
        raise UserError(
            f"{folder} exists and is no data set of aoq; "
            "remove it yourself or choose another place."
        )
    if not force:
        raise UserError(f"{folder} exists already; choose another place or add --force.")


def _fill(folder: Path, records: Sequence[Record], *, name: str, grid: int) -> None:
    started = time.monotonic()
    places = cache_features([record.picture for record in records])
    stored = {record.image_id: place for record, place in zip(records, places, strict=True)}
    splits: dict[str, Any] = {}
    for split in SPLITS:
        members = [record for record in records if record.split == split]
        if not members:
            continue
        features, listing = folder / f"{split}.features.npy", folder / f"{split}.json"
        write_features([stored[record.image_id] for record in members], features, grid=grid)
        write_text(listing, json.dumps(_listing(members, folder), ensure_ascii=False))
        splits[split] = {
            "images": len(members),
            "captions": sum(len(record.captions) for record in members),
            "sha256": {file.name: hash_file(file) for file in (features, listing)},
        }
    manifest = {
        "version": VERSION,
        "name": name,
        "extractor": EfficientNetLite.id,
        "grid": grid,
        "regions": grid * grid,
        "width": EfficientNetLite.width,
        "splits": splits,
    }
    write_json(folder / MANIFEST, manifest)
    seconds = round(time.monotonic() - started, 2)
    EventLog(folder / EVENTS).write("built", pictures=len(records), seconds=seconds)


def _listing(records: Sequence[Record], folder: Path) -> dict[str, Any]:
    """Images and captions in the order of their ids; pictures relative to the folder if inside."""
    captions = [
        (image, caption_id, text)
        for image, record in enumerate(records)
        for caption_id, text in zip(record.caption_ids, record.captions, strict=True)
    ]
    return {
        "images": [
            {"id": record.image_id, "picture": _picture_path(record.picture, folder)}
            for record in records
        ],
        "captions": [{"id": caption_id, "text": text} for _, caption_id, text in captions],
        "pairs": [[image, text_id] for text_id, (image, _, _) in enumerate(captions)],
    }


def _picture_path(picture: Path, folder: Path) -> str:
    path = picture.absolute()
    return str(path.relative_to(folder.absolute()) if _is_inside(picture, folder) else path)


def _is_inside(path: Path, folder: Path) -> bool:
    return path.absolute().is_relative_to(folder.absolute())
