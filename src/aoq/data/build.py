"""Writes records as a data set folder, complete or not at all.

dataset.json            what it is, the network and grid of the features, a hash of every file
train.json              images, captions and their pairs, in the order of the rows
train.features.npy      (N, R, F) float16; the same files for dev and test
train.boxes.npy         (N, R, 4) float32, if regions are not the cells of a grid
events.jsonl            when it was built, and how long that took
skipped.jsonl           what was left out as unusable, and why, if that was requested
source/                 pictures and captions, if the data set was generated
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple
from pathlib import Path
from typing import Any

from aoq.data.sources.records import Record, read_records
from aoq.data.splits import MANIFEST, VERSION, boxes_file
from aoq.errors import raise_problems, require_packages
from aoq.features.extract import WORKERS, Extraction, extract_pictures
from aoq.features.outputs import PATCHES
from aoq.features.regions import DEFAULT_SOURCE, RegionSource
from aoq.features.tables import KeptRegions, RegionTable, rows_of, write_rows
from aoq.folders import check_output_folder, place_in, written_folder
from aoq.progress import EventLog, progress_bar
from aoq.storage import EVENTS, hash_file, write_json, write_text
from aoq.types import SPLITS

SKIPPED = "skipped.jsonl"


def build_dataset(
    records: Sequence[Record],
    folder: Path | str,
    *,
    name: str,
    source: RegionSource = DEFAULT_SOURCE,
    workers: int = WORKERS,
    force: bool = False,
    skipped: list[str] | None = None,
) -> None:
    """Extract the features of all records and write them as a data set.

    Damaged pictures are rejected. If a list is given as `skipped`, they are left out instead and
    their reasons are appended to it; the folder keeps the whole list.
    """
    raise_problems(find_problems(records))
    with _dataset_folder(Path(folder), records, force=force) as temporary:
        pictures = [record.picture for record in records]
        extraction = extract_pictures(pictures, source, workers=workers, skip=skipped is not None)
        if skipped is not None:
            skipped += extraction.problems
            records = [record for record in records if record.picture in extraction.stored]
            raise_problems(find_problems(records))
        _keep_skipped(temporary, skipped)
        _fill(temporary, records, _kept_regions(records, extraction, source), name=name)


def build_from_regions(
    records: Sequence[Record],
    folder: Path | str,
    *,
    name: str,
    regions: RegionTable,
    force: bool = False,
    skipped: Sequence[str] | None = None,
) -> None:
    """Write a data set of existing regions; the pictures need not exist."""
    raise_problems(find_problems(records, need_pictures=False))
    with _dataset_folder(Path(folder), records, force=force) as temporary:
        _keep_skipped(temporary, skipped)
        _fill(temporary, records, regions, name=name)


def build_scenes(
    folder: Path | str,
    *,
    size: str,
    seed: int = 0,
    source: RegionSource = DEFAULT_SOURCE,
    workers: int = WORKERS,
    force: bool = False,
) -> None:
    """Generate the embedded data set, then build it like a user's."""
    require_packages("PIL", extra="extract")
    from aoq.data.scenes import SIZES, write_scenes

    total = sum(astuple(SIZES[size])) if size in SIZES else 0
    with _dataset_folder(Path(folder), force=force) as temporary:
        pictures = temporary / "source"
        with progress_bar("Drawing scenes", total=total, unit="pictures") as update:
            write_scenes(pictures, size=size, seed=seed, progress=lambda *_: update())
        records = read_records(pictures / "captions.jsonl", pictures=pictures)
        drawn = [record.picture for record in records]
        extraction = extract_pictures(drawn, source, workers=workers, skip=False)
        regions = _kept_regions(records, extraction, source)
        _fill(temporary, records, regions, name=f"scenes-{size}")


def find_problems(records: Sequence[Record], *, need_pictures: bool = True) -> list[str]:
    """List what keeps records, from any source, from being a data set."""
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
            problems.append(f"The image id {image} occurs twice; ids must differ.")
        elif image in splits:
            problems.append(f"{image} is in {splits[image]} and in {record.split}; expected one.")
        if not record.captions or not all(caption.strip() for caption in record.captions):
            problems.append(f"{image} has no caption or an empty one; expected words.")
        if n_captions != n_ids:
            problems.append(
                f"{image} has {n_captions} captions and {n_ids} ids; expected one id each."
            )
        if need_pictures and not record.picture.is_file():
            problems.append(f"{image} has no picture at {record.picture}.")
        problems += [
            f"The caption id {caption_id} occurs twice; ids must differ."
            for caption_id in record.caption_ids
            if caption_id in caption_ids
        ]
        splits.setdefault(image, record.split)
        caption_ids.update(record.caption_ids)
    return problems


def check_output_dataset(folder: Path, *, force: bool, sources: Sequence[Path] = ()) -> None:
    """Raise a `UserError` if the folder cannot be written, before hours of work."""
    check_output_folder(folder, what="data set", force=force, sources=sources)


@contextmanager
def _dataset_folder(folder: Path, records: Sequence[Record] = (), *, force: bool) -> Iterator[Path]:
    """Yield a folder to fill, complete or not at all, that records the time of the build."""
    started = time.monotonic()
    pictures = [record.picture for record in records]
    with written_folder(folder, what="data set", force=force, sources=pictures) as temporary:
        yield temporary
        seconds = round(time.monotonic() - started, 2)
        EventLog(temporary / EVENTS).write("built", seconds=seconds)


def _kept_regions(
    records: Sequence[Record], extraction: Extraction, source: RegionSource
) -> RegionTable:
    pictures = [record.picture for record in records]
    ids = [record.image_id for record in records]
    return KeptRegions(ids, pictures, extraction.stored, source)


def _keep_skipped(folder: Path, skipped: Sequence[str] | None) -> None:
    lines = [
        json.dumps({"problem": problem}, ensure_ascii=False) + "\n" for problem in skipped or ()
    ]
    if lines:
        write_text(folder / SKIPPED, "".join(lines))


def _fill(folder: Path, records: Sequence[Record], regions: RegionTable, *, name: str) -> None:
    rows = rows_of(regions, map(_names_of, records))
    source = regions.source
    splits: dict[str, Any] = {}
    for split in SPLITS:
        chosen = [number for number, record in enumerate(records) if record.split == split]
        if not chosen:
            continue
        members = [records[number] for number in chosen]
        features, listing = folder / f"{split}.features.npy", folder / f"{split}.json"
        boxes = None if source else boxes_file(folder, split)
        write_rows(regions, [rows[number] for number in chosen], features=features, boxes=boxes)
        write_text(listing, json.dumps(_listing(members, folder), ensure_ascii=False))
        splits[split] = {
            "images": len(members),
            "captions": sum(len(record.captions) for record in members),
            "sha256": {file.name: hash_file(file) for file in (features, listing, boxes) if file},
        }
    n_regions, width = regions.shape
    manifest = {
        "version": VERSION,
        "name": name,
        **(_described(source) if source else {}),
        "extractor": source.id if source else "bottom-up",
        "regions": n_regions,
        "width": width,
        "splits": splits,
    }
    write_json(folder / MANIFEST, manifest)


def _described(source: RegionSource) -> dict[str, Any]:
    fields: dict[str, Any] = {"backbone": source.backbone, "grid": source.grid}
    return fields if source.output == str(PATCHES) else fields | {"output": source.output}


def _names_of(record: Record) -> list[str]:
    """Return the names of an image in a table: its id, or the end of its picture's path."""
    parts, suffix = record.picture.parts, record.picture.suffix
    names = [record.image_id, *("/".join(parts[start:]) for start in range(len(parts)))]
    return [spelling for name in names for spelling in (name, name.removesuffix(suffix))]


def _listing(records: Sequence[Record], folder: Path) -> dict[str, Any]:
    """List images and captions by id; pictures inside the folder are relative to it."""
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


def _picture_path(picture: Path, folder: Path) -> str | None:
    if not picture.is_file():
        return None
    return str(place_in(folder, picture) or picture.absolute())
