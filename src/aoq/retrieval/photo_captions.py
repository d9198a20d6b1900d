"""The captions of a folder of photos: what is said of them, and columns to filter by.

Unlike the captions of a data set, they may be about some of the photos only, and name no splits
that a model is trained on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aoq.data.sources.captions import Entry, read_entries
from aoq.errors import UserError, raise_problems
from aoq.features.names import Names
from aoq.progress import warn
from aoq.retrieval.filters import Column
from aoq.retrieval.index import CaptionsRecord
from aoq.retrieval.metadata import COLUMNS, column_name, typed_column
from aoq.storage import hash_file


@dataclass(frozen=True)
class PhotoText:
    """A caption of a photo."""

    id: str
    words: str


@dataclass(frozen=True)
class PhotoCaptions:
    """Captions by the path of the photo below its folder."""

    entries: Mapping[str, Sequence[Entry]] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path, *, folder: Path, photos: Sequence[Path]) -> PhotoCaptions:
        """Read a captions file of any format; reject lines that cannot be read."""
        names = Names([photo.relative_to(folder).as_posix() for photo in photos])
        problems: list[str] = []
        entries: dict[str, list[Entry]] = {}
        unknown: list[str] = []
        for entry in read_entries(path, pictures=folder, problems=problems):
            name = names.find(_below(folder, entry.image))
            if name is None:
                unknown.append(entry.image)
            else:
                entries.setdefault(name, []).append(entry)
        raise_problems(problems)
        if not entries:
            raise UserError(
                f"{path} names none of the photos in {folder}; its first is "
                f"{unknown[0] if unknown else 'missing'}, expected paths below that folder."
            )
        if unknown:
            distinct = list(dict.fromkeys(unknown))
            warn(
                f"{path} names photos that are not in {folder}: {len(distinct):,}, the first is "
                f"{distinct[0]}."
            )
        return cls(entries)

    def of(self, name: str) -> list[PhotoText]:
        """Return the captions of a photo, without empty ones."""
        return [
            PhotoText(entry.caption_id or f"{name}#{number}", entry.caption)
            for number, entry in enumerate(self.entries.get(name, ()))
            if entry.caption
        ]

    def split_of(self, name: str) -> str | None:
        return next((entry.split for entry in self.entries.get(name, ()) if entry.split), None)

    def columns(self, names: Sequence[str]) -> dict[str, Column]:
        """Return the further columns of the file, one value per photo: its first."""
        found: dict[str, list[Any]] = {}
        first = {name: self.entries[name][0].columns for name in names if name in self.entries}
        for header in dict.fromkeys(header for cells in first.values() for header in cells):
            name = column_name(header)
            if name in COLUMNS:
                continue
            found[name] = [first.get(photo, {}).get(header) for photo in names]
        return {name: typed_column(cells) for name, cells in found.items()}


def captions_record(path: Path) -> CaptionsRecord:
    """Describe a captions file, so that a change of it is noticed."""
    return CaptionsRecord(str(path.absolute()), hash_file(path))


def _below(folder: Path, name: str) -> str:
    """Return a photo's path below its folder, also if the whole path is given."""
    for root in (folder.absolute(), folder.resolve()):
        if Path(name).is_relative_to(root):
            return Path(name).relative_to(root).as_posix()
    return name
