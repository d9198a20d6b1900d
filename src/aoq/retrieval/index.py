"""An index: everything that is searched, encoded by one model, in a folder.

index.json          whose it is (hash of the model), what it was made of, its parts in order
train-5be1c0d3/     a part: a split of the data set, or the photos of a folder
  entries.json      ids, pictures, captions, and who belongs to whom
  images-00000...   encodings, as `aoq.scoring.stored` keeps them; texts-00000... the same
  teacher/          the same by the embedding model that proposes, where there is one
  boxes.npy         where the regions are, if they are no grid

Images and texts are numbered through all parts. Nothing in a part ever changes, and no other part
ever gets its name: photos that are added make a part of their own, an index that is made again is
made of others, and index.json, written last, names those that count. So whoever has an index open
either finds its parts as they were, or notices that they are gone. Encodings are read when they are
needed, so opening costs as much as reading the entries.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import numpy as np

from aoq.data.brought import parse_json
from aoq.data.regions import Boxes, RegionSource, grid_boxes
from aoq.errors import UserError
from aoq.manifest import DamagedFileError, check_file, read_checked
from aoq.scoring.encoded import Kind
from aoq.scoring.stored import StoredRows, join_rows, open_rows
from aoq.storage import hash_parts, write_json
from aoq.training.inputs import default_device
from aoq.types import Positives

VERSION = 2
INDEX = "index.json"
ENTRIES, TEACHER, BOXES = "entries.json", "teacher", "boxes.npy"


@dataclass(frozen=True)
class ImageEntry:
    """An image of an index; a photo that was added has no split and no texts."""

    number: int
    id: str
    picture: Path | None
    split: str | None
    texts: tuple[int, ...]
    content: str | None
    "SHA-256 of the picture, if it was there when it was indexed."


@dataclass(frozen=True)
class TextEntry:
    """A text of an index."""

    number: int
    id: str
    text: str
    split: str | None
    images: tuple[int, ...]


@dataclass(frozen=True)
class Part:
    """What was encoded together: a split, or the photos of a folder."""

    name: str
    split: str | None
    n_images: int
    n_texts: int
    entries_hash: str


@dataclass(frozen=True)
class TeacherRecord:
    """The embedding model that proposes, and how much is found that way."""

    run: str
    model_hash: str
    proposals: int
    recall: Mapping[str, Mapping[str, float]]
    "Of i2t and t2i: the queries that were tried, and the share found of the first 1, 5 and 10."
    recall_split: str | None
    "Split that the queries were taken from; none where they were taken from all entries."


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What an index says about itself."""

    model_name: str
    model_hash: str
    data: str | None
    "Folder of the data set, if one was indexed."
    fingerprints: Mapping[str, str]
    "Of its splits."
    results: Mapping[str, Mapping[str, Any]]
    "Of the model on these splits, as far as they were known."
    source: RegionSource | None
    teacher: TeacherRecord | None
    parts: tuple[Part, ...]

    def save(self, folder: Path) -> None:
        fields = vars(self) | {
            "source": None if self.source is None else self.source.as_dict(),
            "teacher": None if self.teacher is None else asdict(self.teacher),
            "parts": [asdict(part) for part in self.parts],
        }
        write_json(folder / INDEX, {"version": VERSION, **fields})

    @classmethod
    def load(cls, folder: Path) -> Self:
        path = folder / INDEX
        try:
            fields = parse_json(read_checked(path).decode())
            version = fields.pop("version")
            manifest = cls._of_fields(fields) if version == VERSION else None
        except FileNotFoundError:
            raise UserError(f"{folder} is no index: it has no {INDEX}.") from None
        except DamagedFileError:
            raise damaged(path, "it is not what was written") from None
        except (UserError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise damaged(path, repr(error)) from None
        if manifest is None:
            raise UserError(
                f"{path} is of version {version}, expected {VERSION}; make the index again with "
                "`aoq index RUN --force`."
            )
        if not manifest.parts or any(Path(part.name).name != part.name for part in manifest.parts):
            raise damaged(path, "it names no parts, or parts elsewhere")
        return manifest

    @classmethod
    def _of_fields(cls, fields: dict[str, Any]) -> Self:
        source, teacher = fields["source"], fields["teacher"]
        return cls(
            **fields
            | {
                "source": None if source is None else RegionSource.from_dict(source),
                "teacher": None if teacher is None else TeacherRecord(**teacher),
                "parts": tuple(Part(**part) for part in fields["parts"]),
            }
        )


def damaged(path: Path, problem: str) -> UserError:
    return UserError(
        f"{path} is damaged ({problem}); make the index again with `aoq index RUN --force`."
    )


class IndexChangedError(UserError):
    """An index is no longer what it was when it was opened."""


@dataclass(frozen=True, eq=False)
class Index:
    """An index as it lies on disk, with its entries in memory."""

    folder: Path
    manifest: Manifest
    images: tuple[ImageEntry, ...]
    texts: tuple[TextEntry, ...]

    @classmethod
    def open(cls, folder: Path | str) -> Self:
        """Read the entries of all parts; encodings are opened when they are asked for."""
        folder = Path(folder)
        return cls.of(folder, Manifest.load(folder))

    @classmethod
    def of(cls, folder: Path, manifest: Manifest) -> Self:
        """The same where index.json is still to be written."""
        images: list[tuple[str, str | None, str | None, str | None]] = []
        texts: list[tuple[str, str, str | None]] = []
        pairs: list[tuple[int, int]] = []
        with _unchanged(folder, manifest.parts):
            for part in manifest.parts:
                listing = _read_entries(folder / part.name / ENTRIES, part)
                pairs += [(i + len(images), t + len(texts)) for i, t in listing["pairs"]]
                images += [(*image, part.split) for image in listing["images"]]
                texts += [(*text, part.split) for text in listing["texts"]]
        positives = Positives.from_pairs(pairs, n_images=len(images), n_texts=len(texts))
        return cls(
            folder,
            manifest,
            tuple(
                ImageEntry(number, name, Path(picture) if picture else None, split, own, content)
                for number, ((name, picture, content, split), own) in enumerate(
                    zip(images, _partners(positives), strict=True)
                )
            ),
            tuple(
                TextEntry(number, name, text, split, own)
                for number, ((name, text, split), own) in enumerate(
                    zip(texts, _partners(positives.swapped), strict=True)
                )
            ),
        )

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """What was read inside is what was indexed, or an `IndexChangedError` says otherwise."""
        with _unchanged(self.folder, self.manifest.parts):
            yield

    def rows(self, kind: Kind, *, by_teacher: bool = False) -> StoredRows | None:
        """The encodings of all images or texts, by the model or its teacher; none of none."""
        counts = {
            part.name: part.n_images if kind == "images" else part.n_texts
            for part in self.manifest.parts
        }
        parts = []
        for name, count in counts.items():
            folder = self.folder / name / (TEACHER if by_teacher else "")
            if count:
                parts.append(_open_rows(folder, kind, count))
        return join_rows(parts) if parts else None

    def require_model(self, model_hash: str, *, run: Path) -> None:
        """Refuse to search what another model encoded."""
        if self.manifest.model_hash != model_hash:
            raise UserError(
                f"{self.folder} is an index of another model than that of {run}, or of the same "
                "before it was trained further; make it again with `aoq index RUN --force`."
            )

    def boxes(self, image: int) -> Boxes | None:
        """Where the regions of an image are, as shares of width and height, if known. (R, 4)"""
        first = 0
        for part in self.manifest.parts:
            if image < first + part.n_images:
                stored = self._stored_boxes.get(part.name)
                return self.grid_boxes if stored is None else stored[image - first]
            first += part.n_images
        raise IndexError(image)

    @cached_property
    def grid_boxes(self) -> Boxes | None:
        """The same of pictures that are read here."""
        source = self.manifest.source
        return None if source is None else grid_boxes(source.grid)

    @cached_property
    def _stored_boxes(self) -> dict[str, Boxes]:
        found = {part.name: self.folder / part.name / BOXES for part in self.manifest.parts}
        for path in found.values():
            if path.is_file():
                check_file(path)
        try:
            return {
                name: np.load(path, mmap_mode="r", allow_pickle=False)
                for name, path in found.items()
                if path.is_file()
            }
        except (ValueError, OSError) as error:
            raise damaged(self.folder, f"its boxes cannot be read: {error}") from None


@contextmanager
def _unchanged(folder: Path, parts: Sequence[Part]) -> Iterator[None]:
    """Looks afterwards whether all parts are still there: then they were all the time."""
    try:
        yield
    finally:
        if not all((folder / part.name).is_dir() for part in parts):
            raise IndexChangedError(
                f"{folder} was made again or removed since it was opened; open it again, or make "
                "it with `aoq index RUN --force` if parts of it are missing."
            )


def _read_entries(path: Path, part: Part) -> dict[str, Any]:
    """Images, texts and pairs of a part, numbered from 0, as they were written."""
    try:
        content = read_checked(path)
        if hash_parts(content) != part.entries_hash:
            raise damaged(path, f"it is not the file that {INDEX} was written for")
        listing: dict[str, Any] = parse_json(content.decode())
    except FileNotFoundError:
        raise damaged(path, "it is missing") from None
    except DamagedFileError:
        raise damaged(path, "it is not what was written") from None
    return listing


def _partners(positives: Positives) -> list[tuple[int, ...]]:
    """The texts of each image."""
    texts = positives.pairs[:, 1].tolist()
    return [tuple(texts[start:stop]) for start, stop in pairwise(positives.starts.tolist())]


def _open_rows(folder: Path, kind: Kind, count: int) -> StoredRows:
    try:
        return open_rows(folder, kind, count, device=default_device())
    except UserError as error:
        raise damaged(folder, str(error).partition(";")[0]) from None
