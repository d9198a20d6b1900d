"""What a model reads of a data set, if that is not the data set's own features and words.

A model with pretrained towers brings its own image network, whose frozen part sees the photos of
any data set, and its own text tower, with a tokenizer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from aoq.data.dataset import Features, ImagesOnDemand, PairDataset
from aoq.distributed import ALONE, Processes
from aoq.errors import UserError
from aoq.features.extract import ExtractedPictures, extract_in_shares
from aoq.features.regions import RegionSource
from aoq.features.text_models import TextSource
from aoq.parsing import shown

_HELD = 2**30  # bytes of features that are held in memory; more are read as they are needed


@dataclass(frozen=True)
class Inputs:
    """The networks whose frozen parts read images and texts for a model."""

    images: RegionSource | None = None
    "None: the features of the data set."
    texts: TextSource | None = None
    "None: the words of a vocabulary."

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Self:
        """Read what `as_dict` wrote; raise a `UserError` for anything else."""
        images, texts = fields.get("images"), fields.get("texts")
        if not isinstance(images, dict | None) or not isinstance(texts, dict | None):
            raise UserError(f"{shown(fields)} are not inputs; expected images and texts.")
        return cls(
            None if images is None else RegionSource.from_dict(images),
            None if texts is None else TextSource.from_dict(texts),
        )

    def as_dict(self) -> dict[str, Any]:
        return {
            "images": None if self.images is None else self.images.as_dict(),
            "texts": None if self.texts is None else self.texts.as_dict(),
        }

    @property
    def ids(self) -> list[str]:
        """The hashes of what is read with, wherever the networks are."""
        return [source.id for source in (self.images, self.texts) if source is not None]

    def at(self, place_of: Callable[[str], str]) -> Self:
        """Return these inputs with their networks where `place_of` says they are."""
        images, texts = self.images, self.texts
        return replace(
            self,
            images=images and replace(images, backbone=place_of(images.backbone)),
            texts=texts and replace(texts, tower=place_of(texts.tower)),
        )

    def of_towers(self, folder: Path) -> Self:
        """Return these inputs with a pretrained model in another place."""
        assert self.images is not None
        assert self.texts is not None
        return replace(
            self,
            images=replace(self.images, backbone=str(folder)),
            texts=replace(self.texts, tower=str(folder)),
        )

    def view(self, dataset: PairDataset, *, processes: Processes = ALONE) -> PairDataset:
        """Return a data set as the model sees it: its photos, through the model's own network.

        Several processes share the work, if all of them call this.
        """
        if self.images is None or dataset.source == self.images:
            return dataset
        seen = _seen_by(self.images, dataset, processes=processes)
        return dataset.with_features(seen, self.images)


def photos_of(dataset: PairDataset, reader: str) -> list[Path]:
    """Return the photos of all images; the error says with what the model would read them."""
    pictures = [picture for picture in dataset.pictures if picture is not None]
    lost = [path for path in pictures if not path.is_file()]
    if len(pictures) < len(dataset) or lost:
        example = f", such as {lost[0]}" if lost else ""
        count = len(dataset) - len(pictures) + len(lost)
        raise UserError(
            f"{dataset.name} ({dataset.split}) lacks {count:,} of its {len(dataset):,} photos"
            f"{example}, which the model reads with {reader}; expected a data set that "
            "`aoq data build` made of photos, with the photos where they were."
        )
    return pictures


def _seen_by(source: RegionSource, dataset: PairDataset, *, processes: Processes) -> Features:
    pictures = photos_of(dataset, source.backbone)
    stored = extract_in_shares(pictures, source, processes=processes).stored
    reader = ExtractedPictures([stored[picture] for picture in pictures], source)
    features = ImagesOnDemand.of(reader)
    size = math.prod(features.shape) * features.dtype.itemsize
    return np.asarray(features) if size <= _HELD else features
