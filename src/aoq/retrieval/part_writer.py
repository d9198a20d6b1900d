"""Encodes data sets and photos into the parts of an index, and rewrites parts without some photos.

A part is written whole or not at all, under a name that is never used again, and counts when
index.json names it. Encodings that mining made of the same data are copied. Where a store holds the
vectors of an index, they are written there and the part keeps the rest.
"""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from aoq.data.dataset import PairDataset
from aoq.errors import UserError
from aoq.features.regions import Boxes
from aoq.manifest import check_file
from aoq.progress import track
from aoq.retrieval.encoder import QueryEncoder
from aoq.retrieval.index import BOXES, COLUMNS, ENTRIES, TEACHER, Index, IndexPart
from aoq.retrieval.metadata import Metadata
from aoq.retrieval.photo_captions import PhotoCaptions
from aoq.retrieval.photos import Photos, read_photos
from aoq.runs.encodings import kept_encodings
from aoq.scoring.encoded import Modality
from aoq.scoring.encoding_files import copy_rows, encode_to_disk, open_stored
from aoq.storage import atomic_folder, hash_file, write_array, write_json, write_text


@dataclass(frozen=True)
class AddedPhotos:
    """How many photos of a folder were added."""

    added: int
    present: int
    "In the index already, or twice in the folder."
    unmeasured: int | None = None
    "Number of a teacher's proposals, if their recall has to be measured again."


@dataclass(frozen=True)
class KeptEntries:
    """Entries that a rewritten part takes over, and what photos that have moved are called now."""

    images: Sequence[int]
    "Numbers in the index."
    moved: Mapping[int, str] = field(default_factory=dict)
    "The id, which is the path below the folder, by number."


class PartWriter:
    """Writes parts into the folder of an index, one after the other.

    The models are loaded when something has to be encoded.
    """

    def __init__(
        self,
        folder: Path,
        load_encoder: Callable[[], QueryEncoder],
        *,
        load_teacher: Callable[[], QueryEncoder | None] = lambda: None,
        index: Index | None = None,
    ) -> None:
        self.folder = folder
        self._load_encoder = load_encoder
        self._load_teacher = load_teacher
        self.parts = [] if index is None else list(index.manifest.parts)
        self.contents = set() if index is None else {image.content for image in index.images}

    @cached_property
    def encoder(self) -> QueryEncoder:
        return self._load_encoder()

    @cached_property
    def teacher(self) -> QueryEncoder | None:
        return self._load_teacher()

    def write_split(self, dataset: PairDataset, *, boxes: Boxes | None) -> None:
        """Write a part of a split; `boxes` are those of its regions, unless they form a grid."""
        contents = _contents_of(dataset.pictures)
        metadata = Metadata.of(dataset.image_ids, dataset.pictures, split=dataset.split)
        self._write(dataset, metadata, split=dataset.split, contents=contents, boxes=boxes)

    def write_photos(
        self,
        folder: Path,
        *,
        some: Sequence[Path] | None = None,
        captions: PhotoCaptions | None = None,
    ) -> tuple[Photos, AddedPhotos]:
        """Write a part of the photos of a folder that are not in the index, if there are any.

        Returns all photos that can be read, too. `some` of the folder are read instead of all.
        """
        photos = read_photos(folder, self.encoder.source, some=some, captions=captions)
        fresh = photos.without(self.contents)
        if len(fresh):
            dataset = fresh.dataset()
            names = dataset.image_ids
            metadata = Metadata.of(
                names,
                dataset.pictures,
                split=[photos.captions.split_of(name) for name in names],
                extra=photos.captions.columns(names),
            )
            self._write(dataset, metadata, split=None, contents=fresh.contents, source=folder)
        return photos, AddedPhotos(len(fresh), present=len(photos) - len(fresh))

    def _write(
        self,
        dataset: PairDataset,
        metadata: Metadata,
        *,
        split: str | None,
        contents: Sequence[str | None],
        boxes: Boxes | None = None,
        source: Path | None = None,
    ) -> None:
        name = _new_name(split)
        with atomic_folder(self.folder / name, what="part of an index") as part:
            _encode(dataset, part, self.encoder)
            if self.teacher is not None:
                _encode(dataset, part / TEACHER, self.teacher)
            if boxes is not None:
                write_array(part / BOXES, boxes)
            write_json(part / COLUMNS, metadata.columns)
            pictures = [None if path is None else str(path.resolve()) for path in dataset.pictures]
            entries = {
                "images": list(zip(dataset.image_ids, pictures, contents, strict=True)),
                "texts": list(zip(dataset.caption_ids, dataset.captions, strict=True)),
                "pairs": dataset.positives.pairs.tolist(),
            }
            counts = len(dataset), dataset.n_texts
            folder = None if source is None else str(source.absolute())
            self.parts.append(
                IndexPart(name, split, *counts, _write_entries(part, entries), folder)
            )
        self.contents.update(contents)

    def rewrite(self, index: Index, parts: Sequence[IndexPart], kept: KeptEntries) -> None:
        """Replace parts of an index by one that holds some of their images, and these' texts.

        Nothing is encoded. All parts are of the same split, or of the same folder of photos.
        """
        first = self.parts.index(parts[0])
        self.parts = [part for part in self.parts if part not in parts]
        self.contents -= {image.content for part in parts for image in index.images_of(part)} - {
            index.images[number].content for number in kept.images
        }
        if not kept.images:
            return
        images = list(kept.images)
        texts = sorted({text for number in images for text in index.images[number].texts})
        place = {number: row for row, number in enumerate(images)}
        pairs = [
            (place[image], row)
            for row, text in enumerate(texts)
            for image in index.texts[text].images
            if image in place
        ]
        entries = {
            "images": [_entry_of(index, parts[0], number, kept.moved) for number in images],
            "texts": [(index.texts[text].id, index.texts[text].text) for text in texts],
            "pairs": sorted(pairs),
        }
        metadata = index.metadata.rows(images).renamed(
            {place[number]: name for number, name in kept.moved.items()}
        )
        name = _new_name(parts[0].split)
        with atomic_folder(self.folder / name, what="part of an index") as part:
            if index.manifest.store is None or kept.moved:  # a store needs the new metadata
                _copy(index, "images", images, part)
                _copy(index, "texts", texts, part)
            boxes = [index.stored_boxes(number) for number in images]
            if any(box is not None for box in boxes):
                write_array(part / BOXES, np.stack([box for box in boxes if box is not None]))
            write_json(part / COLUMNS, metadata.columns)
            counts = len(images), len(texts)
            digest = _write_entries(part, entries)
            self.parts.insert(
                first, IndexPart(name, parts[0].split, *counts, digest, parts[0].folder)
            )


def _new_name(split: str | None) -> str:
    return f"{split or 'photos'}-{secrets.token_hex(4)}"


def _write_entries(part: Path, entries: Mapping[str, Any]) -> str:
    """Write the entries of a part, and return their hash."""
    write_text(part / ENTRIES, json.dumps(entries, ensure_ascii=False))
    return hash_file(part / ENTRIES)


def _entry_of(
    index: Index, part: IndexPart, number: int, moved: Mapping[int, str]
) -> tuple[str, str | None, str | None]:
    image = index.images[number]
    if number in moved and part.folder is not None:
        return moved[number], str(Path(part.folder, moved[number]).resolve()), image.content
    return image.id, None if image.picture is None else str(image.picture), image.content


def _copy(index: Index, kind: Modality, numbers: Sequence[int], part: Path) -> None:
    """Copy the encodings of some images or texts, by the model and by its teacher."""
    if not numbers:
        return
    selected = torch.tensor(numbers)
    for by_teacher in (False, True) if index.manifest.teacher else (False,):
        rows = index.rows(kind, by_teacher=by_teacher)
        assert rows is not None
        folder = part / TEACHER if by_teacher else part
        folder.mkdir(exist_ok=True)
        copy_rows(rows, selected, folder, kind)


def _encode(dataset: PairDataset, folder: Path, encoder: QueryEncoder) -> None:
    """Encode a data set with one model, or copy what it encoded for mining."""
    folder.mkdir(exist_ok=True)
    if dataset.n_texts:
        kept = kept_encodings(encoder.run, dataset, model_hash=encoder.model_hash)
        with suppress(UserError):  # incomplete or damaged
            open_stored(kept, len(dataset), dataset.n_texts)
            for piece in kept.glob("*.safetensors"):
                check_file(piece)
                shutil.copyfile(piece, folder / piece.name)
    encode_to_disk(
        encoder.model,
        encoder.collator(dataset),
        folder,
        description=f"encode {dataset.split} with {encoder.run.name}",
    )


def _contents_of(pictures: Sequence[Path | None]) -> list[str | None]:
    """Hash the content of each picture, which identifies photos; None if it is missing."""
    with ThreadPoolExecutor() as pool:
        found = pool.map(_content_of, pictures)
        return list(track(found, "Reading pictures", total=len(pictures), unit="pictures"))


def _content_of(picture: Path | None) -> str | None:
    with suppress(OSError):
        if picture is not None and picture.is_file():
            return hash_file(picture)
    return None
