"""Bottom-up files: regions found by a detector, as published for COCO, Flickr30k and others.

    image_id <TAB> image_w <TAB> image_h <TAB> num_boxes <TAB> boxes <TAB> features

Each line is an image; boxes (pixels: left, top, right, bottom) and features are base64 of float32.
Files take tens of gigabytes, so only one line is in memory at a time. The whole file is checked
before anything is written, and all damaged lines are reported by number.
"""

from __future__ import annotations

import base64
import binascii
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from aoq.errors import UserError, raise_problems
from aoq.features.backbones import Regions
from aoq.features.regions import Boxes, RegionSource
from aoq.parsing import shown
from aoq.progress import progress_bar

COLUMNS = ("image_id", "image_w", "image_h", "num_boxes", "boxes", "features")
LONGEST_LINE = 64 * 2**20  # bytes; 100 boxes of 2,048 features are about one million
MOST_DIGITS = 6  # of a picture's width or height, or a number of boxes
LARGEST = float(np.finfo(np.float16).max)


@dataclass(frozen=True)
class Line:
    """One image of a bottom-up file."""

    image_id: str
    size: tuple[int, int]  # width, height
    boxes: npt.NDArray[np.float32]  # (R, 4), pixels
    features: npt.NDArray[np.float32]  # (R, F)

    @property
    def shape(self) -> tuple[int, int]:
        n_boxes, width = self.features.shape
        return n_boxes, width

    @property
    def shares(self) -> Boxes:
        """The boxes as shares of the picture, cut at its edges."""
        shares: Boxes = np.clip(self.boxes / np.array(self.size * 2, np.float32), 0, 1)
        return shares


@dataclass(frozen=True)
class BottomUpFile:
    """A bottom-up file whose lines have all been checked; a `RegionTable`."""

    path: Path
    places: tuple[Place, ...]
    shape: tuple[int, int]
    source: RegionSource | None = None  # the detector is not part of aoq

    @classmethod
    def open(cls, path: Path, *, regions: int | None = None) -> Self:
        """Check a file; with `regions`, only the first N regions of each image are kept."""
        places = find_images(path)
        return cls(path, places, (_settle_regions(path, places, regions), places[0].shape[1]))

    @property
    def name(self) -> str:
        return str(self.path)

    @cached_property
    def ids(self) -> tuple[str, ...]:
        return tuple(place.image_id for place in self.places)

    def read(self, row: int, /) -> tuple[Regions, Boxes]:
        place = self.places[row]
        with self.path.open("rb") as file:
            file.seek(place.start)
            content = file.readline(LONGEST_LINE)
        try:
            line = parse_line(content)
        except ValueError as error:
            raise UserError(
                f"{self.path}, line {place.line}: {error}; the file has changed since it was "
                "checked; start again."
            ) from error
        kept = slice(self.shape[0])
        return line.features[kept].astype(np.float16), line.shares[kept]

    def describe(self, row: int, /) -> dict[str, Any]:
        width, height = self.places[row].size
        return {"width": width, "height": height}


@dataclass(frozen=True)
class Place:
    """Where an image is in a file, and the size of its data."""

    image_id: str
    line: int
    start: int  # byte of the file
    size: tuple[int, int]  # width and height of the picture
    shape: tuple[int, int]  # boxes, and features each


def find_images(path: Path) -> tuple[Place, ...]:
    """Find every image of a file; raise a `UserError` that names all damaged lines.

    If the first line has the wrong columns, the rest of the file is not read.
    """
    places: dict[str, Place] = {}
    problems: list[str] = []
    for number, start, content in _lines(path):
        try:
            line = parse_line(content)
            place = Place(line.image_id, number, start, line.size, line.shape)
            _require_alike(place, places)
            places[place.image_id] = place
        except ValueError as error:
            problems.append(f"{path}, line {number}: {error}.")
            if not places and len(problems) == 1 and len(_fields(content)) != len(COLUMNS):
                break
    raise_problems(problems)
    if not places:
        raise UserError(f"{path} holds no images; expected lines of {', '.join(COLUMNS)}.")
    return tuple(places.values())


def parse_line(content: bytes) -> Line:
    """Parse one line; a `ValueError` states what is damaged in it."""
    fields = _fields(content)
    if len(fields) != len(COLUMNS):
        raise ValueError(
            f"{len(fields)} columns; expected {len(COLUMNS)}, separated by tabs: "
            f"{', '.join(COLUMNS)}"
        )
    named = dict(zip(COLUMNS, fields, strict=True))
    image_id = named["image_id"].decode(errors="replace").strip()
    if not image_id:
        raise ValueError("image_id is empty; expected the id of an image")
    width, height, n_boxes = (_whole(name, named[name]) for name in COLUMNS[1:4])
    boxes = _floats("boxes", named["boxes"], n_boxes)
    if boxes.shape[1] != 4:
        raise ValueError(
            f"boxes are {n_boxes} x {boxes.shape[1]} numbers; expected left, top, right and bottom "
            "of each"
        )
    for number, box in enumerate(boxes.tolist(), start=1):
        if box[0] > box[2] or box[1] > box[3]:
            raise ValueError(
                f"box {number} of {n_boxes} is {shown(box)}; expected left, top, right and bottom, "
                "in this order"
            )
    return Line(image_id, (width, height), boxes, _floats("features", named["features"], n_boxes))


def _fields(content: bytes) -> list[bytes]:
    return content.rstrip(b"\r\n").split(b"\t")


def _whole(name: str, field: bytes) -> int:
    number = int(field) if field.isdigit() and len(field) <= MOST_DIGITS else 0
    if not number:
        raise ValueError(
            f"{name} is {shown(field.decode(errors='replace'))}; expected a whole number above 0 "
            f"of at most {MOST_DIGITS} digits"
        )
    return number


def _floats(name: str, field: bytes, rows: int) -> npt.NDArray[np.float32]:
    try:
        content = base64.b64decode(field, validate=True)
    except binascii.Error as error:
        raise ValueError(f"{name} are not base64 ({error})") from error
    if not content or len(content) % (4 * rows):
        raise ValueError(
            f"{name} are {len(content):,} bytes; expected float32 numbers, the same count for each "
            f"of {rows} boxes"
        )
    numbers = np.frombuffer(content, "<f4").reshape(rows, -1)
    if not np.abs(numbers).max() <= LARGEST:  # also true for NaN
        raise ValueError(f"{name} hold NaN, infinite or enormous numbers; expected finite ones")
    return numbers


def _require_alike(place: Place, places: dict[str, Place]) -> None:
    if place.image_id in places:
        first = places[place.image_id].line
        raise ValueError(f"the image {place.image_id} is already in line {first}")
    width = next(iter(places.values()), place).shape[1]
    if place.shape[1] != width:
        raise ValueError(f"{place.shape[1]:,} features per box; expected {width:,} as before")


def _settle_regions(path: Path, places: tuple[Place, ...], regions: int | None) -> int:
    """Return the number of regions that every image has."""
    counts = Counter(place.shape[0] for place in places)
    fewest, most = min(counts), max(counts)
    if regions is None and fewest < most:
        common = ", ".join(f"{n} in {images:,}" for n, images in counts.most_common(3))
        raise UserError(
            f"{path}: images have {fewest} to {most} boxes ({common} images); expected the "
            f"same number; --regions {fewest} keeps the first {fewest} of each."
        )
    if regions is not None and fewest < regions:
        few = [place for place in places if place.shape[0] < regions]
        raise UserError(
            f"{path}, line {few[0].line}: the image {few[0].image_id} has {few[0].shape[0]} boxes, "
            f"{len(few):,} such images in all; expected {regions} or more; --regions {fewest} "
            f"keeps the first {fewest} of each."
        )
    return fewest if regions is None else regions


def _lines(path: Path) -> Iterator[tuple[int, int, bytes]]:
    """Yield number, first byte and content of every line except a header and empty ones."""
    header = "\t".join(COLUMNS).encode()
    try:
        with (
            path.open("rb") as file,
            progress_bar(f"Reading {path.name}", total=path.stat().st_size, unit="bytes") as update,
        ):
            number = start = 0
            while content := file.readline(LONGEST_LINE):
                number += 1
                if len(content) == LONGEST_LINE:
                    raise UserError(
                        f"{path}, line {number}: more than {LONGEST_LINE:,} bytes; expected one "
                        f"image per line: {', '.join(COLUMNS)}."
                    )
                if content.strip() not in (b"", header):
                    yield number, start, content
                start += len(content)
                update(advance=len(content))
    except OSError as error:
        raise UserError(
            f"{path} cannot be read ({error.strerror}); expected a bottom-up file."
        ) from error
