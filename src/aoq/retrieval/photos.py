"""The photos of a folder as a data set without captions.

Regions are read from the cache of extractions while they are encoded, so a folder of any size takes
no memory. A photo is identified by its content: one that is in two places counts once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from aoq.data.dataset import ImagesOnDemand, PairDataset
from aoq.features.extract import ExtractedPictures, extract_pictures, tell_left_out
from aoq.features.pictures import find_pictures
from aoq.features.regions import RegionSource
from aoq.types import Positives


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
        """Drop the photos with one of these contents, and keep each other content once."""
        seen, fresh = set(contents), dict[Path, Path]()
        for photo, place in self.stored.items():
            if place.stem not in seen:
                fresh[photo] = place
                seen.add(place.stem)
        return replace(self, stored=fresh)

    def dataset(self) -> PairDataset:
        """Make a data set of the photos; an id is the path below the folder."""
        regions = ExtractedPictures(tuple(self.stored.values()), self.source)
        return PairDataset(
            name=str(self.folder),
            split="pictures",
            features=ImagesOnDemand.of(regions),
            image_ids=tuple(photo.relative_to(self.folder).as_posix() for photo in self.stored),
            captions=(),
            caption_ids=(),
            positives=Positives.from_pairs((), n_images=len(self), n_texts=0),
            pictures=tuple(self.stored),
        )


def read_photos(folder: Path, source: RegionSource) -> Photos:
    """Extract the regions of all pictures below a folder, and warn of unusable ones."""
    found = find_pictures(folder)
    extraction = extract_pictures(found.pictures, source)
    tell_left_out(extraction, found)
    return Photos(folder, extraction.stored, source)
