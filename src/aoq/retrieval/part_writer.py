"""Encodes data sets and photos into the parts of an index.

A part is written whole or not at all, under a name that is never used again, and counts when
index.json names it. Encodings that mining made of the same data are copied.
"""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aoq.data.dataset import PairDataset
from aoq.errors import UserError
from aoq.features.regions import Boxes
from aoq.manifest import check_file
from aoq.progress import track
from aoq.retrieval.encoder import QueryEncoder
from aoq.retrieval.index import BOXES, COLUMNS, ENTRIES, TEACHER, Index, IndexPart
from aoq.retrieval.metadata import Metadata
from aoq.retrieval.photos import read_photos
from aoq.runs.encodings import kept_encodings
from aoq.scoring.encoding_files import encode_to_disk, open_stored
from aoq.storage import atomic_folder, hash_file, write_array, write_json, write_text


@dataclass(frozen=True)
class AddedPhotos:
    """How many photos of a folder were added."""

    added: int
    present: int
    "In the index already, or twice in the folder."
    unmeasured: int | None = None
    "Number of a teacher's proposals, if their recall has to be measured again."


class PartWriter:
    """Writes parts into the folder of an index, one after the other."""

    def __init__(
        self,
        folder: Path,
        encoder: QueryEncoder,
        *,
        teacher: QueryEncoder | None,
        index: Index | None = None,
    ) -> None:
        self.folder = folder
        self.encoder = encoder
        self.teacher = teacher
        self.parts = [] if index is None else list(index.manifest.parts)
        self._contents = set() if index is None else {image.content for image in index.images}

    def write_split(self, dataset: PairDataset, *, boxes: Boxes | None) -> None:
        """Write a part of a split; `boxes` are those of its regions, unless they form a grid."""
        contents = _contents_of(dataset.pictures)
        self._write(dataset, split=dataset.split, contents=contents, boxes=boxes)

    def write_photos(self, folder: Path) -> AddedPhotos:
        """Write a part of the photos of a folder that are not in the index, if there are any."""
        photos = read_photos(folder, self.encoder.source)
        fresh = photos.without(self._contents)
        if len(fresh):
            self._write(fresh.dataset(), split=None, contents=fresh.contents, source=folder)
        return AddedPhotos(len(fresh), present=len(photos) - len(fresh))

    def _write(
        self,
        dataset: PairDataset,
        *,
        split: str | None,
        contents: Sequence[str | None],
        boxes: Boxes | None = None,
        source: Path | None = None,
    ) -> None:
        name = f"{split or 'photos'}-{secrets.token_hex(4)}"
        with atomic_folder(self.folder / name, what="part of an index") as part:
            _encode(dataset, part, self.encoder)
            if self.teacher is not None:
                _encode(dataset, part / TEACHER, self.teacher)
            if boxes is not None:
                write_array(part / BOXES, boxes)
            entries = part / ENTRIES
            write_text(entries, json.dumps(_entries(dataset, contents), ensure_ascii=False))
            metadata = Metadata.of(dataset.image_ids, dataset.pictures, split=split)
            write_json(part / COLUMNS, metadata.columns)
            counts = len(dataset), dataset.n_texts
            folder = None if source is None else str(source.absolute())
            self.parts.append(IndexPart(name, split, *counts, hash_file(entries), folder))
        self._contents.update(contents)


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


def _entries(dataset: PairDataset, contents: Sequence[str | None]) -> dict[str, Any]:
    """List entries as entries.json does, links to pictures by the file they lead to."""
    pictures = [None if path is None else str(path.resolve()) for path in dataset.pictures]
    return {
        "images": list(zip(dataset.image_ids, pictures, contents, strict=True)),
        "texts": list(zip(dataset.caption_ids, dataset.captions, strict=True)),
        "pairs": dataset.positives.pairs.tolist(),
    }


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
