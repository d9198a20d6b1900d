"""Encodes data sets and photos into the parts of an index.

What mining encoded before is taken over. A part is written whole or not at all, under a name that
no other ever gets, and counts when index.json names it.
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
from aoq.data.regions import Boxes, RegionSource, dataset_boxes
from aoq.errors import UserError
from aoq.manifest import check_file
from aoq.progress import track
from aoq.retrieval.encoder import QueryEncoder
from aoq.retrieval.index import BOXES, ENTRIES, TEACHER, Index, Part
from aoq.retrieval.photos import read_photos
from aoq.scoring.stored import encode_to_disk, open_stored
from aoq.storage import atomic_folder, hash_file, write_array, write_text
from aoq.training.trained import kept_encodings


@dataclass(frozen=True)
class AddedPhotos:
    """What became of the photos of a folder."""

    added: int
    present: int
    "In the index already, or twice in the folder."
    unmeasured: int | None = None
    "Proposals of a teacher, where it is to be measured again what they miss."


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

    def write_split(self, dataset: PairDataset, *, data: Path) -> None:
        """A part of a split of `data`."""
        is_grid = RegionSource.of_dataset(data) is not None  # the same for all images
        boxes = None if is_grid else dataset_boxes(data, dataset.split)
        contents = _contents_of(dataset.pictures)
        self._write(dataset, split=dataset.split, contents=contents, boxes=boxes)

    def write_photos(self, folder: Path) -> AddedPhotos:
        """A part of the photos of a folder, if any of them is not in the index."""
        photos = read_photos(folder, self.encoder.source)
        fresh = photos.without(self._contents)
        if len(fresh):
            self._write(fresh.dataset(), split=None, contents=fresh.contents)
        return AddedPhotos(len(fresh), present=len(photos) - len(fresh))

    def _write(
        self,
        dataset: PairDataset,
        *,
        split: str | None,
        contents: Sequence[str | None],
        boxes: Boxes | None = None,
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
            self.parts.append(Part(name, split, len(dataset), dataset.n_texts, hash_file(entries)))
        self._contents.update(contents)


def _encode(dataset: PairDataset, folder: Path, encoder: QueryEncoder) -> None:
    """Encodings by one model; what it made of the same data for mining is taken over."""
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
    """As entries.json lists them; a picture by the file itself, where its name is a link."""
    pictures = [None if path is None else str(path.resolve()) for path in dataset.pictures]
    return {
        "images": list(zip(dataset.image_ids, pictures, contents, strict=True)),
        "texts": list(zip(dataset.caption_ids, dataset.captions, strict=True)),
        "pairs": dataset.positives.pairs.tolist(),
    }


def _contents_of(pictures: Sequence[Path | None]) -> list[str | None]:
    """The hash of each picture's content, by which photos are known; none where it is missing."""
    with ThreadPoolExecutor() as pool:
        found = pool.map(_content_of, pictures)
        return list(track(found, "Reading pictures", total=len(pictures), unit="pictures"))


def _content_of(picture: Path | None) -> str | None:
    with suppress(OSError):
        if picture is not None and picture.is_file():
            return hash_file(picture)
    return None
