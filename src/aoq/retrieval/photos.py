"""The photos of a folder as a data set, with the captions of a file if there is one.

Regions are read from the cache of extractions while they are encoded, so a folder of any size takes
no memory. For a model that reads pictures by a function of its own, nothing is cached: photos are
decoded once to find those that cannot be used, and once to be encoded. A photo is identified by its
content: one that is in two places counts once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from aoq.data.dataset import ImageReader, ImagesOnDemand, PairDataset
from aoq.features.extract import (
    ExtractedPictures,
    extract_pictures,
    hash_readable,
    report_left_out,
)
from aoq.features.pictures import PictureFolder, find_pictures
from aoq.retrieval.photo_captions import PhotoCaptions
from aoq.runs.query_reader import OwnPictures, PictureSource
from aoq.types import Positives


@dataclass(frozen=True)
class Photos:
    """The pictures below a folder that can be used, with the hashes of their contents."""

    folder: Path
    hashes: Mapping[Path, str]
    read: Callable[[Sequence[Path]], ImageReader] = field(repr=False)
    "Reads photos as the model does."
    captions: PhotoCaptions

    def __len__(self) -> int:
        return len(self.hashes)

    @property
    def contents(self) -> tuple[str, ...]:
        """The hash of each file's content."""
        return tuple(self.hashes.values())

    def without(self, contents: Iterable[str | None]) -> Photos:
        """Drop the photos with one of these contents, and keep each other content once."""
        seen, fresh = set(contents), dict[Path, str]()
        for photo, content in self.hashes.items():
            if content not in seen:
                fresh[photo] = content
                seen.add(content)
        return replace(self, hashes=fresh)

    def dataset(self) -> PairDataset:
        """Make a data set of the photos; an id is the path below the folder."""
        ids = [photo.relative_to(self.folder).as_posix() for photo in self.hashes]
        texts = [(row, text) for row, name in enumerate(ids) for text in self.captions.of(name)]
        return PairDataset(
            name=str(self.folder),
            split="pictures",
            features=ImagesOnDemand.of(self.read(tuple(self.hashes))),
            image_ids=tuple(ids),
            captions=tuple(text.words for _, text in texts),
            caption_ids=tuple(text.id for _, text in texts),
            positives=Positives.from_pairs(
                [(row, number) for number, (row, _) in enumerate(texts)],
                n_images=len(self),
                n_texts=len(texts),
            ),
            pictures=tuple(self.hashes),
        )


def read_photos(
    folder: Path,
    source: PictureSource,
    *,
    some: Sequence[Path] | None = None,
    captions: PhotoCaptions | None = None,
) -> Photos:
    """Find all pictures below a folder, extract their regions, and warn of unusable ones.

    `some` are pictures there that are read instead of all, and of which none may be usable.
    """
    found = find_pictures(folder) if some is None else PictureFolder(folder, tuple(some), Counter())
    captions = captions or PhotoCaptions()
    if isinstance(source, OwnPictures):
        hashes, faults = hash_readable(found.pictures)
        report_left_out(faults, found, may_be_all=some is not None)
        return Photos(folder, hashes, source.of_files, captions)
    extraction = extract_pictures(found.pictures, source)
    report_left_out(extraction.skipped, found, may_be_all=some is not None)
    stored = extraction.stored
    return Photos(
        folder,
        {photo: place.stem for photo, place in stored.items()},
        lambda photos: ExtractedPictures([stored[photo] for photo in photos], source),
        captions,
    )
