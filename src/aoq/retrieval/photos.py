"""The photos of a folder as a data set without captions.

Regions come from the cache that every extraction fills, and are read from there when they are
encoded, so a folder of any size takes no memory. A photo is known by its content: one that is in
two places counts once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from aoq.data.backbones import Regions
from aoq.data.dataset import ImagesOnDemand, PairDataset
from aoq.data.extract import extract_pictures, load_regions, tell_left_out
from aoq.data.pictures import find_pictures
from aoq.data.regions import RegionSource
from aoq.retrieval.encoder import only_images
from aoq.types import Ids


@dataclass(frozen=True)
class CachedRegions:
    """Regions of pictures that were extracted, read from the cache when asked."""

    places: Sequence[Path]
    source: RegionSource

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, ids: Ids, /) -> Regions:
        return np.stack([load_regions(self.places[row], self.source) for row in ids])


@dataclass(frozen=True)
class Photos:
    """The pictures below a folder that can be used, and where the cache keeps their regions."""

    folder: Path
    stored: Mapping[Path, Path]
    source: RegionSource

    def __len__(self) -> int:
        return len(self.stored)

    @property
    def contents(self) -> tuple[str, ...]:
        """The hash of each file's content, under which the cache keeps it."""
        return tuple(place.stem for place in self.stored.values())

    def without(self, contents: Iterable[str | None]) -> Photos:
        """Those that have none of some contents, each content once."""
        seen, fresh = set(contents), dict[Path, Path]()
        for photo, place in self.stored.items():
            if place.stem not in seen:
                fresh[photo] = place
                seen.add(place.stem)
        return replace(self, stored=fresh)

    def dataset(self) -> PairDataset:
        """As the encoders take them; an id is the place below the folder."""
        return only_images(
            ImagesOnDemand.of(CachedRegions(tuple(self.stored.values()), self.source)),
            [photo.relative_to(self.folder).as_posix() for photo in self.stored],
            name=str(self.folder),
            pictures=tuple(self.stored),
        )


def read_photos(folder: Path, source: RegionSource) -> Photos:
    """Extract the regions of all pictures below a folder; those that cannot be used are named."""
    found = find_pictures(folder)
    extraction = extract_pictures(found.pictures, source)
    tell_left_out(extraction, found)
    return Photos(folder, extraction.stored, source)
