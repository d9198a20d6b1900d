"""What is known of each photo besides its encoding: the columns that filters name.

`folder`, `name` and `split` come from the photo's id, `date`, `width` and `height` from the head of
its file, and a captions file adds columns of its own. A part of an index keeps what was read when
it was written, in columns.json; parts of earlier versions have what their entries say.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from aoq.errors import UserError
from aoq.progress import track
from aoq.retrieval.filters import Column, Value

if TYPE_CHECKING:
    from PIL.Image import Image

COLUMNS = ("folder", "name", "date", "width", "height", "split")
_EXIF_IFD, _TAKEN, _WRITTEN = 0x8769, 0x9003, 0x0132  # DateTimeOriginal, DateTime
_EXIF_DATE = re.compile(r"(\d{4}):(\d\d):(\d\d) (\d\d):(\d\d):(\d\d)")
_NAME = re.compile(r"[a-z_][a-z0-9_]*")


@dataclass(frozen=True)
class Metadata:
    """One value per image in every column, None where nothing is known."""

    columns: Mapping[str, Column]

    def __len__(self) -> int:
        return len(self.columns["name"])

    def row(self, number: int) -> dict[str, Value | None]:
        """Return what is known of one image."""
        return {name: column[number] for name, column in self.columns.items()}

    def rows(self, numbers: Sequence[int]) -> Metadata:
        """Return the metadata of some images."""
        return Metadata(
            {name: tuple(column[n] for n in numbers) for name, column in self.columns.items()}
        )

    def renamed(self, ids: Mapping[int, str]) -> Metadata:
        """Return the metadata of images of which some have other ids."""
        changed = {name: list(column) for name, column in self.columns.items()}
        for name, cells in _of_ids(list(ids.values())).items():
            for number, cell in zip(ids, cells, strict=True):
                changed[name][number] = cell
        return Metadata(changed)

    @classmethod
    def of(
        cls,
        ids: Sequence[str],
        pictures: Sequence[Path | None],
        *,
        split: str | Sequence[str | None] | None,
        extra: Mapping[str, Column] | None = None,
    ) -> Metadata:
        """Read the metadata of images; one whose file cannot be read has no date and no size."""
        with ThreadPoolExecutor() as pool:
            heads = list(
                track(
                    pool.map(_head_of, pictures),
                    "Reading dates and sizes",
                    total=len(pictures),
                    unit="pictures",
                )
            )
        dates, widths, heights = zip(*heads, strict=True) if heads else ((), (), ())
        splits = (split,) * len(ids) if split is None or isinstance(split, str) else tuple(split)
        known = {**_of_ids(ids), "date": dates, "width": widths, "height": heights, "split": splits}
        return cls({name: known[name] for name in COLUMNS} | dict(extra or {}))

    @classmethod
    def of_ids(cls, ids: Sequence[str], *, split: str | None) -> Metadata:
        """Return what ids say, for a part that was written without columns."""
        none = (None,) * len(ids)
        known = {**_of_ids(ids), "date": none, "width": none, "height": none}
        return cls({**known, "split": (split,) * len(ids)})

    @classmethod
    def join(cls, parts: Sequence[Metadata]) -> Metadata:
        """Join the rows of parts; a column that a part does not have is empty there."""
        names = dict.fromkeys([*COLUMNS, *(name for part in parts for name in part.columns)])
        joined = {
            name: [cell for part in parts for cell in part.columns.get(name, (None,) * len(part))]
            for name in names
        }
        return cls({name: _of_one_type(column) for name, column in joined.items()})


def column_name(header: str) -> str:
    """Make the name of a column from a header: lower case, words joined by an underscore.

    >>> column_name("Lens Model")
    'lens_model'
    """
    name = re.sub(r"[^a-z0-9_]+", "_", header.strip().lower()).strip("_")
    if not _NAME.fullmatch(name):
        raise UserError(
            f"{header!r} cannot be the name of a column; expected letters, digits and underscores, "
            "first a letter."
        )
    return name


def typed_column(cells: Sequence[Any]) -> Column:
    """Return cells as numbers where all of them are numbers, as text otherwise; empty as None."""
    filled = [None if cell is None or str(cell).strip() == "" else cell for cell in cells]
    for kind in (int, float):
        with suppress(TypeError, ValueError, OverflowError):
            return tuple(None if cell is None else _number(cell, kind) for cell in filled)
    return tuple(None if cell is None else str(cell).strip() for cell in filled)


def _number(cell: Any, kind: type[int] | type[float]) -> Value | None:
    """Read a number; NaN, which tables write for a missing one, is None."""
    number = kind(cell)
    if math.isnan(number):
        return None
    if math.isinf(number) or (isinstance(cell, float) and number != cell):
        raise ValueError
    return number


def _of_one_type(column: list[Value | None]) -> Column:
    """Turn a column that is text in one part and numbers in another to text."""
    if any(isinstance(cell, str) for cell in column):
        return tuple(None if cell is None else str(cell) for cell in column)
    return tuple(column)


def _of_ids(ids: Sequence[str]) -> dict[str, Column]:
    paths = [PurePosixPath(name) for name in ids]
    folders = ["" if path.parent == PurePosixPath() else path.parent.as_posix() for path in paths]
    return {"folder": tuple(folders), "name": tuple(path.name for path in paths)}


def _head_of(picture: Path | None) -> tuple[str | None, int | None, int | None]:
    """Read date, width and height from the head of a file."""
    from aoq.features.pictures import open_picture, upright_size

    if picture is None:
        return None, None, None
    try:
        with open_picture(picture) as image:
            return _date_of(image), *upright_size(image)
    except (UserError, OSError):
        return None, None, None


def _date_of(image: Image) -> str | None:
    """Return when a photo was taken, as its camera says; damaged Exif data say nothing."""
    try:
        exif = image.getexif()
        stated = exif.get_ifd(_EXIF_IFD).get(_TAKEN) or exif.get(_WRITTEN)
        found = _EXIF_DATE.match(str(stated))
    except Exception:  # Pillow raises almost anything
        return None
    if found is None or found[1] == "0000":
        return None
    year, month, day, hour, minute, second = found.groups()
    return f"{year}-{month}-{day}T{hour}:{minute}:{second}"
