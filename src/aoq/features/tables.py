"""Regions by image id, from any source, and the folder that stores them.

features.npy    (N, R, F) float16
boxes.npy       (N, R, 4) float32: left, top, right, bottom as shares of width and height
regions.json    ids, sizes and hashes of the pictures in the order of the rows, and their source

A table is the cache of `aoq.features.extract`, a bottom-up file or a folder as above. Rows are read
one at a time, because a table may be larger than the memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, Self, cast

import numpy as np

from aoq.disk import disk_errors
from aoq.errors import UserError, raise_problems
from aoq.features.arrays import Array, map_features
from aoq.features.backbones import Regions
from aoq.features.extract import load_regions
from aoq.features.names import Names
from aoq.features.outputs import Output
from aoq.features.pictures import picture_size
from aoq.features.regions import Boxes, RegionSource, grid_boxes
from aoq.folders import written_folder
from aoq.manifest import check_file
from aoq.parsing import json_fault, parse_json, read_text, shown, wrong_fields
from aoq.progress import track
from aoq.storage import hash_file, write_array, write_json

MANIFEST = "regions.json"
WHAT = "folder of regions"
VERSION = 1
PROVENANCE = ("version", "source", "images")


class RegionTable(Protocol):
    """The same number of regions for each of some images."""

    @property
    def name(self) -> str:
        """The name of the table in messages."""
        ...

    @property
    def ids(self) -> Sequence[str]: ...

    @property
    def source(self) -> RegionSource | None:
        """How another picture is turned into equal regions, if that is possible."""
        ...

    @property
    def shape(self) -> tuple[int, int]:
        """Regions per image, and features per region."""
        ...

    def read(self, row: int, /) -> tuple[Regions, Boxes]:
        """Return features and boxes of an image. (R, F), (R, 4)"""
        ...

    def describe(self, row: int, /) -> dict[str, Any]:
        """Return what else is known of an image: its picture, size and hash."""
        ...


@dataclass(frozen=True)
class KeptRegions:
    """Extracted regions of pictures, in the cache."""

    ids: Sequence[str]
    pictures: Sequence[Path]
    stored: Mapping[Path, Path]
    source: RegionSource
    name = "the cache"

    @property
    def shape(self) -> tuple[int, int]:
        n_regions, width = self.read(0)[0].shape
        return n_regions, width

    def read(self, row: int, /) -> tuple[Regions, Boxes]:
        place = self.stored[self.pictures[row]]
        return load_regions(place, self.source), grid_boxes(self.source.grid)

    def describe(self, row: int, /) -> dict[str, Any]:
        picture = self.pictures[row]
        width, height = picture_size(picture)
        return {"width": width, "height": height, "sha256": self.stored[picture].stem}


@dataclass(frozen=True, eq=False)
class RegionFolder:
    """A folder that `aoq extract` wrote."""

    name: str
    ids: Sequence[str]
    images: Sequence[dict[str, Any]]
    source: RegionSource | None
    features: Array
    boxes: Array

    @classmethod
    def open(cls, folder: Path) -> Self:
        manifest = _read_manifest(folder)
        source = manifest.get("source")
        for name in ("features.npy", "boxes.npy"):
            if (folder / name).is_file():
                check_file(folder / name)
        table = cls(
            name=str(folder),
            ids=tuple(image["id"] for image in manifest["images"]),
            images=manifest["images"],
            source=None if source is None else RegionSource.from_dict(source),
            features=map_features(folder / "features.npy"),
            boxes=map_features(folder / "boxes.npy"),
        )
        expected = (*table.features.shape[:2], 4)
        if len(table.ids) != len(table.features) or table.boxes.shape != expected:
            raise UserError(
                f"{folder} has {len(table.ids):,} ids, features of {table.features.shape} and "
                f"boxes of {table.boxes.shape}; expected matching sizes; extract it again."
            )
        return table

    @property
    def shape(self) -> tuple[int, int]:
        _, n_regions, width = self.features.shape
        return n_regions, width

    def read(self, row: int, /) -> tuple[Regions, Boxes]:
        return self.features[row], self.boxes[row]

    def describe(self, row: int, /) -> dict[str, Any]:
        return {name: value for name, value in self.images[row].items() if name != "id"}

    def first_regions(self, count: int) -> Self:
        """Return this table with only the first regions of each image."""
        if self.source is not None or count > self.shape[0]:
            raise UserError(
                f"{self.name} holds {self.shape[0]} regions per image"
                f"{' of a grid' if self.source else ''}; the first {count} cannot be selected."
            )
        return replace(self, features=self.features[:, :count], boxes=self.boxes[:, :count])


def write_rows(
    table: RegionTable, rows: Sequence[int], *, features: Path, boxes: Path | None = None
) -> None:
    """Write some images of a table as arrays; without `boxes`, only their features.

    Numbers that are not finite, or not as float16, are rejected; one error lists all such images.
    """
    n_regions, width = table.shape
    shape = (len(rows), n_regions, width)
    source = table.source
    is_vector = source is not None and Output.parse(source.output).is_vector
    dtype = np.float32 if is_vector else np.float16
    header = np.lib.format.header_data_from_array_1_0(np.empty((0, *shape[1:]), dtype))
    all_boxes = np.empty((*shape[:2], 4), np.float32)
    problems: list[str] = []
    title = f"Writing {features.name}"
    # Writing to a mapped file would end the process with a signal if the disk is full.
    with disk_errors(features), features.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {**header, "shape": shape})
        for row, number in enumerate(track(rows, title, total=len(rows), unit="images")):
            image = np.empty(shape[1:], dtype)
            with np.errstate(over="ignore"):
                image[:], all_boxes[row] = table.read(number)
            if not (np.isfinite(image).all() and np.isfinite(all_boxes[row]).all()):
                problems.append(
                    f"{table.name}: the regions of {table.ids[number]} hold NaN, infinite or "
                    "enormous numbers; expected finite ones; extract the picture again or leave "
                    "it out."
                )
            file.write(image.data)
    raise_problems(problems)
    if boxes is not None:
        write_array(boxes, all_boxes)


def write_folder(table: RegionTable, folder: Path) -> None:
    """Write a table as files into an existing folder."""
    rows = range(len(table.ids))
    features, boxes = folder / "features.npy", folder / "boxes.npy"
    write_rows(table, rows, features=features, boxes=boxes)
    n_regions, width = table.shape
    manifest = {
        "version": VERSION,
        "source": table.source.as_dict() if table.source else None,
        "regions": n_regions,
        "width": width,
        "sha256": {file.name: hash_file(file) for file in (features, boxes)},
        "images": [{"id": name, **table.describe(row)} for row, name in enumerate(table.ids)],
    }
    write_json(folder / MANIFEST, manifest)


def region_folder(
    folder: Path, *, force: bool, sources: Sequence[Path] = ()
) -> AbstractContextManager[Path]:
    """Yield the folder to write regions to; an existing one is replaced only with `force`."""
    return written_folder(folder, what=WHAT, force=force, sources=sources)


def rows_of(table: RegionTable, names: Iterable[Sequence[str]]) -> list[int]:
    """Return the row of each image, by the first of its names that is in the table."""
    row_of = {image_id: row for row, image_id in enumerate(table.ids)}
    known = Names(row_of)
    rows: list[int] = []
    problems: list[str] = []
    taken: dict[int, str] = {}
    for known_as in names:
        found = map(known.find, known_as)
        row = next((row_of[name] for name in found if name is not None), None)
        if row is None:
            problems.append(
                f"{known_as[0]} has no regions in {table.name}; expected an image of that id, or "
                "named like its picture."
            )
        elif row in taken:
            problems.append(
                f"{known_as[0]} and {taken[row]} are both the image {table.ids[row]} of "
                f"{table.name}; expected one image each."
            )
        else:
            taken[row] = known_as[0]
            rows.append(row)
    raise_problems(problems)
    return rows


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    if not path.is_file():
        raise UserError(
            f"{folder} is not a folder of regions: {MANIFEST} is missing; write one with "
            "`aoq extract ... --out FOLDER`."
        )
    try:
        manifest = parse_json(read_text(path))
    except ValueError as error:
        raise UserError(f"{json_fault(path, error)}; extract it again.") from error
    wrong = wrong_fields(str(path), manifest, images="list")
    if not wrong and manifest.get("version") != VERSION:
        wrong = [f"{path}: version is {shown(manifest.get('version'))}; expected {VERSION}."]
    if not wrong:
        for number, image in enumerate(manifest["images"]):
            wrong += wrong_fields(f"{path}, images[{number}]", image, id="text")
    raise_problems([f"{fault.removesuffix('.')}; extract it again." for fault in wrong])
    return cast("dict[str, Any]", manifest)
