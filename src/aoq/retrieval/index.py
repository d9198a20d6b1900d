"""An index: everything that is searched, encoded by one model, in a folder.

index.json          the model (its hash), what was indexed, and the parts in order
train-5be1c0d3/     a part: a split of the data set, or the photos of a folder
  entries.json      ids, pictures, captions, and the pairs of images and texts
  columns.json      what filters ask of the images, as `aoq.retrieval.metadata` reads it
  images-00000...   encodings of images, as `aoq.scoring.encoding_files` keeps them
  texts-00000...    encodings of texts
  teacher/          encodings by the embedding model that proposes, if there is one
  boxes.npy         boxes of the regions, unless they form a grid
captions-9a51c7e2/  the words of all captions, as `aoq.retrieval.text` keeps them

Images and texts are numbered through all parts. A part never changes, and its name is never used
again: added photos make a part of their own, photos are removed by a part that replaces another, an
index that is made again consists of other parts, and index.json, written last, names those that
count. A reader of an open index therefore either finds its parts as they were, or notices that they
are gone. Encodings are read on demand, so
opening an index costs as much as reading its entries.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np

from aoq.distributed import default_device
from aoq.errors import UserError
from aoq.features.regions import Boxes, RegionSource, grid_boxes
from aoq.manifest import DamagedFileError, check_file, read_checked
from aoq.parsing import parse_json
from aoq.retrieval.allowed import Allowed
from aoq.retrieval.filters import Filter
from aoq.retrieval.keys import image_keys, text_keys
from aoq.retrieval.metadata import Metadata
from aoq.retrieval.stores.rows import StoreRows
from aoq.retrieval.tuning import Tuning
from aoq.retrieval.vector_ranking import VectorRanker
from aoq.scoring.encoded import Modality, Rows
from aoq.scoring.encoding_files import StoredRows, join_rows, open_rows
from aoq.storage import hash_parts, read_json, write_json
from aoq.types import Encoding, Ids

VERSION = 2
INDEX = "index.json"
ENTRIES, COLUMNS, TEACHER, BOXES = "entries.json", "columns.json", "teacher", "boxes.npy"


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

    @property
    def picture_gone(self) -> bool:
        """Whether the picture is no longer where it was indexed."""
        return self.picture is not None and not self.picture.is_file()


@dataclass(frozen=True)
class TextEntry:
    """A text of an index."""

    number: int
    id: str
    text: str
    split: str | None
    images: tuple[int, ...]


@dataclass(frozen=True)
class IndexPart:
    """A part of an index, encoded at once: a split, or the photos of a folder."""

    name: str
    split: str | None
    n_images: int
    n_texts: int
    entries_hash: str
    folder: str | None = None
    "Folder of the photos, if it is no split."


@dataclass(frozen=True)
class EngineRecord:
    """An engine that finds nearly all of the nearest vectors, and how much of them."""

    name: Literal["ivf"]
    file: str
    groups: int
    probes: int
    "Groups that a query visits."
    longest: float
    recall: float
    "Share found of the nearest 10."
    queries: int
    asked_with: Modality
    "Of what the queries were vectors, on which recall was measured."


@dataclass(frozen=True)
class CaptionsRecord:
    """The captions file of a folder of photos, as it was read."""

    path: str
    content: str
    "SHA-256"


@dataclass(frozen=True)
class StoreRecord:
    """A store outside of the index that holds its vectors."""

    address: str
    width: int
    longest: Mapping[str, float]
    "Of images and texts: the length of the longest vector, or more."
    owner: str = ""
    "Machine and folder of the index when it was made: its collections are of no other."


@dataclass(frozen=True)
class TeacherRecord:
    """The embedding model that proposes, and how much of the exact answers it finds."""

    run: str
    model_hash: str
    proposals: int
    recall: Mapping[str, Mapping[str, float]]
    "Of i2t and t2i: the queries that were tried, and the share found of the first 1, 5 and 10."
    recall_split: str | None
    "Split that the queries were taken from; None if they were taken from all entries."


@dataclass(frozen=True, kw_only=True)
class IndexManifest:
    """The content of index.json."""

    model_name: str
    model_hash: str
    data: str | None
    "Folder of the data set, if one was indexed."
    fingerprints: Mapping[str, str]
    "By split."
    results: Mapping[str, Mapping[str, Any]]
    "Metrics of the model by split, as far as they were known."
    source: RegionSource | None
    teacher: TeacherRecord | None
    parts: tuple[IndexPart, ...]
    captions_files: Mapping[str, CaptionsRecord] = field(default_factory=dict)
    "By folder of photos."
    left_out: tuple[str, ...] = ()
    "Contents of photos that were removed and may still be in their folder."
    store: StoreRecord | None = None
    "The store that holds the vectors; None: they are in the parts."
    engines: Mapping[str, EngineRecord] = field(default_factory=dict)
    "Of images and texts, if there are too many to compare all of them with a query."
    captions: str | None = None
    "Folder of the search of captions, if there are any."
    tuning: Tuning | None = None
    "What the captions of dev have taught, if there are any."
    model_function: str | None = None
    "What --model named when a model of the user's own made the index; it is never imported."

    def save(self, folder: Path) -> None:
        write_json(folder / INDEX, {"version": VERSION, **asdict(self)})

    @classmethod
    def load(cls, folder: Path) -> Self:
        path = folder / INDEX
        try:
            fields = parse_json(read_checked(path).decode())
            version = fields.pop("version")
            manifest = cls._of_fields(fields) if version == VERSION else None
        except FileNotFoundError:
            raise UserError(f"{folder} is not an index: it has no {INDEX}.") from None
        except DamagedFileError:
            raise damaged(path, "its content has changed") from None
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
        source, teacher, tuning = (fields.get(name) for name in ("source", "teacher", "tuning"))
        return cls(
            **fields
            | {
                "source": None if source is None else RegionSource.from_dict(source),
                "teacher": None if teacher is None else TeacherRecord(**teacher),
                "parts": tuple(IndexPart(**part) for part in fields["parts"]),
                "store": StoreRecord(**fields["store"]) if fields.get("store") else None,
                "engines": {
                    kind: EngineRecord(**engine)
                    for kind, engine in fields.get("engines", {}).items()
                },
                "captions_files": {
                    folder: CaptionsRecord(**captions)
                    for folder, captions in fields.get("captions_files", {}).items()
                },
                "left_out": tuple(fields.get("left_out", ())),
                "tuning": None if tuning is None else Tuning.from_dict(tuning),
            }
        )


def damaged(path: Path, problem: str) -> UserError:
    return UserError(
        f"{path} is damaged ({problem}); make the index again with `aoq index RUN --force`."
    )


class IndexChangedError(UserError):
    """An index has changed since it was opened."""


@dataclass(frozen=True, eq=False)
class Index:
    """An index on disk, with its entries in memory."""

    folder: Path
    manifest: IndexManifest
    images: tuple[ImageEntry, ...]
    texts: tuple[TextEntry, ...]

    @classmethod
    def open(cls, folder: Path | str) -> Self:
        """Read the entries of all parts; encodings are opened on demand."""
        folder = Path(folder)
        return cls.of(folder, IndexManifest.load(folder))

    @classmethod
    def of(cls, folder: Path, manifest: IndexManifest) -> Self:
        """Read the entries of the parts of a manifest, which need not be written yet."""
        images: list[ImageEntry] = []
        texts: list[TextEntry] = []
        with _unchanged(folder, manifest.parts):
            for part in manifest.parts:
                listing = _read_entries(folder / part.name / ENTRIES, part)
                own_texts: list[list[int]] = [[] for _ in listing["images"]]
                own_images: list[list[int]] = [[] for _ in listing["texts"]]
                for image, text in listing["pairs"]:
                    own_texts[image].append(text + len(texts))
                    own_images[text].append(image + len(images))
                images += [
                    ImageEntry(number, name, picture and Path(picture), part.split, own, content)
                    for number, ((name, picture, content), own) in enumerate(
                        zip(listing["images"], map(tuple, own_texts), strict=True), len(images)
                    )
                ]
                texts += [
                    TextEntry(number, name, text, part.split, own)
                    for number, ((name, text), own) in enumerate(
                        zip(listing["texts"], map(tuple, own_images), strict=True), len(texts)
                    )
                ]
        return cls(folder, manifest, tuple(images), tuple(texts))

    def unchanged(self) -> AbstractContextManager[None]:
        """Guarantee that what is read in the block is what was indexed.

        Raises an `IndexChangedError` at its end otherwise.
        """
        return _unchanged(self.folder, self.manifest.parts)

    def rows(self, kind: Modality, *, by_teacher: bool = False) -> Rows[Encoding] | None:
        """Open the encodings of all images or texts, by the model or its teacher; None if empty."""
        if self.manifest.store is not None:
            return self._stored_elsewhere(self.manifest.store, kind)
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

    @cached_property
    def metadata(self) -> Metadata:
        """What filters ask of the images, one value per image and column."""
        parts, first = [], 0
        with self.unchanged():
            for part in self.manifest.parts:
                path = self.folder / part.name / COLUMNS
                if path.is_file():
                    parts.append(Metadata(read_json(path)))
                else:
                    ids = [image.id for image in self.images[first : first + part.n_images]]
                    parts.append(Metadata.of_ids(ids, split=part.split))
                first += part.n_images
        return Metadata.join(parts)

    def allowed(self, where: Filter | str | None, kind: Modality) -> Allowed | None:
        """Return the images that a filter lets be found, or the texts of these images."""
        if where is None:
            return None
        parsed = Filter.parse(where) if isinstance(where, str) else where
        images = parsed.mask(self.metadata.columns)
        if kind == "images":
            return Allowed(images, parsed, self.metadata.columns)
        mask = np.zeros(len(self.texts), bool)
        for text in self.texts:
            mask[text.number] = any(images[image] for image in text.images)
        return Allowed.of_mask(mask)

    def keys(self, kind: Modality) -> Ids:
        """Return the key of each image or text, which stays the same when the index changes."""
        images = image_keys((image.split, image.id, image.content) for image in self.images)
        if kind == "images":
            return images
        return text_keys(
            (text.split, text.id, text.text, int(images[text.images[0]]) if text.images else None)
            for text in self.texts
        )

    def vector_ranker(self, kind: Modality, rows: Rows[Encoding]) -> VectorRanker:
        """Return what ranks the images or texts of a model that compares vectors."""
        if isinstance(rows, StoreRows):
            return VectorRanker(rows.store, rows.keys)
        engine = self.manifest.engines.get(kind)
        if engine is None:
            return VectorRanker.of_rows(rows)
        from aoq.retrieval.engines import open_engine

        keys = self.keys(kind)
        return VectorRanker(open_engine(self.folder / engine.file, engine, rows, keys), keys)

    def _stored_elsewhere(self, record: StoreRecord, kind: Modality) -> StoreRows | None:
        """Open the vectors of images or texts in the store that holds them; None if empty."""
        from aoq.retrieval.stores.milvus import MilvusAddress, MilvusStore

        keys = self.keys(kind)
        if not len(keys):
            return None
        store = MilvusStore.open(
            MilvusAddress.parse(record.address),
            kind,
            model_hash=self.manifest.model_hash,
            longest=record.longest[kind],
        )
        return StoreRows(store, keys, record.width, default_device())

    def require_model(self, model_hash: str, *, run: Path) -> None:
        """Reject an index that another model encoded."""
        if self.manifest.model_hash != model_hash:
            raise UserError(
                f"{self.folder} is an index of another model than that of {run}, or of the same "
                "before it was trained further; make it again with `aoq index RUN --force`."
            )

    def images_of(self, part: IndexPart) -> tuple[ImageEntry, ...]:
        """Return the images of a part."""
        parts = self.manifest.parts
        first = sum(each.n_images for each in parts[: parts.index(part)])
        return self.images[first : first + part.n_images]

    def boxes(self, image: int) -> Boxes | None:
        """Return the boxes of an image's regions, as shares of width and height. (R, 4)"""
        stored = self.stored_boxes(image)
        return self.grid_boxes if stored is None else stored

    def stored_boxes(self, image: int) -> Boxes | None:
        """Return the boxes that are stored for an image; None if its regions form a grid. (R, 4)"""
        first = 0
        for part in self.manifest.parts:
            if image < first + part.n_images:
                stored = self._stored_boxes.get(part.name)
                return None if stored is None else stored[image - first]
            first += part.n_images
        raise IndexError(image)

    @cached_property
    def grid_boxes(self) -> Boxes | None:
        """Boxes of the regions of an uploaded picture. (R, 4)"""
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
def _unchanged(folder: Path, parts: Sequence[IndexPart]) -> Iterator[None]:
    """Check at the end that all parts are there: then they were there all the time."""
    try:
        yield
    finally:
        if not all((folder / part.name).is_dir() for part in parts):
            raise IndexChangedError(
                f"{folder} was made again or removed since it was opened; open it again, or make "
                "it with `aoq index RUN --force` if parts of it are missing."
            )


def _read_entries(path: Path, part: IndexPart) -> dict[str, Any]:
    """Read the images, texts and pairs of a part, which number from 0."""
    try:
        content = read_checked(path)
        if hash_parts(content) != part.entries_hash:
            raise damaged(path, f"it is not the file that {INDEX} was written for")
        listing: dict[str, Any] = parse_json(content.decode())
    except FileNotFoundError:
        raise damaged(path, "it is missing") from None
    except DamagedFileError:
        raise damaged(path, "its content has changed") from None
    return listing


def _open_rows(folder: Path, kind: Modality, count: int) -> StoredRows:
    try:
        return open_rows(folder, kind, count, device=default_device())
    except UserError as error:
        raise damaged(folder, str(error).partition(";")[0]) from None
