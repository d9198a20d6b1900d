"""Checks of images: repeats, images in two splits, and near duplicates.

Images are compared by id. If one of two splits has no ids, equal features count as the same image,
which is an error: a test on images that the model has seen in training proves nothing. `testall`
contains `test` by design.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from aoq.data.checks.findings import Finding, error, warning
from aoq.data.checks.resemblance import Vectors, look_alikes
from aoq.data.dataset import PairDataset
from aoq.data.splits import features_file, is_built

TEST_SETS = {"test", "testall"}


@dataclass(frozen=True, eq=False)
class Scan:
    """The result of reading all features of a split once."""

    digests: Sequence[bytes]  # one per image
    broken: Sequence[int]  # rows that hold NaN or infinity
    means: Vectors  # (N, F), over the regions; empty after a quick check


@dataclass(frozen=True, eq=False)
class Repeat:
    """A key that occurs in a row of a split, and earlier in a row of this or another split."""

    first: PairDataset
    first_row: int
    again: PairDataset
    row: int

    @property
    def splits(self) -> set[str]:
        return {self.first.split, self.again.split}

    @property
    def is_across(self) -> bool:
        return len(self.splits) > 1

    @property
    def ids(self) -> tuple[str, str]:
        return self.again.image_ids[self.row], self.first.image_ids[self.first_row]

    def place(self, folder: Path) -> str:
        return (
            f"{features_file(folder, self.again.split)}, image row {self.row}: the image "
            f"{self.ids[0]} is also in {self.first.split}, row {self.first_row}"
        )


def find_repeats(
    folder: Path, datasets: Sequence[PairDataset], scans: Mapping[str, Scan]
) -> list[Finding]:
    """Find images in two splits, and images that occur twice in one."""
    named = {
        dataset.split
        for dataset in datasets
        if is_built(folder) or (folder / f"{dataset.split}_ids.txt").is_file()
    }
    digests = {dataset.split: scans[dataset.split].digests for dataset in datasets}
    by_id = list(_repeats(datasets, [dataset.image_ids for dataset in datasets]))
    by_features = list(_repeats(datasets, list(digests.values())))

    def is_one_image(found: Repeat) -> bool:
        digest = digests[found.first.split][found.first_row]
        return digest == digests[found.again.split][found.row]

    same_id = [found for found in by_id if found.is_across]
    other_id = [found for found in by_features if found.is_across and len({*found.ids}) > 1]
    renamed = [found for found in other_id if found.splits <= named]
    shared = [found for found in same_id if is_one_image(found)]
    shared += [found for found in other_id if not found.splits <= named]
    return [
        *error(
            "Images in two splits",
            [found.place(folder) for found in shared],
            "expected every image in one split: leave it out of the others",
        ),
        *error(
            "Ids in two splits that do not name the same image",
            [found.place(folder) for found in same_id if not is_one_image(found)],
            "the features differ: look whether the ids fit the rows; if they do, leave the image "
            "out of one split",
        ),
        *error(
            "Ids of test that name another image in testall",
            _out_of_order(datasets, scans),
            "expected the ids in the order of the rows",
        ),
        *warning(
            "Ids that several images have",
            [
                f"{found.ids[0]} in {found.again.split}, rows {found.first_row} and {found.row}"
                for found in by_id
                if not found.is_across
            ],
            "an id should name one image: look whether the ids fit the rows",
        ),
        *warning(
            "Pictures that occur twice",
            [
                f"{found.ids[0]} and {found.ids[1]} in {found.first.split} have equal features"
                for found in by_features
                if not found.is_across and len({*found.ids}) > 1
            ],
            "each counts as a wrong answer to the captions of the other: leave one out",
        ),
        *warning(
            "Pictures in two splits under different ids",
            [
                f"{found.ids[0]} in {found.again.split} and {found.ids[1]} in "
                f"{found.first.split} have equal features"
                for found in renamed
            ],
            "a leak: leave them out of train, or results are too good",
        ),
    ]


def find_look_alikes(datasets: Sequence[PairDataset], scans: Mapping[str, Scan]) -> list[Finding]:
    """Find pictures that nearly equal one of an earlier split, without exact copies."""
    places: list[str] = []
    for number, dataset in enumerate(datasets):
        scan = scans[dataset.split]
        others = [
            other
            for other in earlier_splits(datasets, number)
            if other.features.shape[-1] == dataset.features.shape[-1]
        ]
        if not others:
            continue
        rows = [(other, row) for other in others for row in range(len(other))]
        means = np.concatenate([scans[other.split].means for other in others])
        for row, place in look_alikes(scan.means, means):
            other, other_row = rows[place]
            if scan.digests[row] != scans[other.split].digests[other_row]:
                places.append(
                    f"{dataset.image_ids[row]} in {dataset.split} is much like "
                    f"{other.image_ids[other_row]} in {other.split}"
                )
    return warning(
        "Pictures that are nearly in two splits",
        places,
        "look at them: copies in another quality or of the same moment are leaks",
    )


def find_missing_pictures(datasets: Sequence[PairDataset]) -> list[Finding]:
    """Find pictures that were moved or deleted; training only needs their features."""
    return warning(
        "Pictures that are no longer where they were",
        [
            f"{path} of {dataset.split}"
            for dataset in datasets
            for path in dataset.pictures
            if path is not None and not path.is_file()
        ],
        "training does not need them; restore them or build again to display search results",
    )


def earlier_splits(datasets: Sequence[PairDataset], number: int) -> list[PairDataset]:
    """Return the earlier splits that must have nothing in common with this one."""
    return [
        other for other in datasets[:number] if {other.split, datasets[number].split} != TEST_SETS
    ]


def _repeats(
    datasets: Sequence[PairDataset], keys: Sequence[Sequence[Hashable]]
) -> Iterator[Repeat]:
    """Yield where a key occurs first, and where it occurs again."""
    first: dict[Hashable, tuple[PairDataset, int]] = {}
    for dataset, of_images in zip(datasets, keys, strict=True):
        for row, key in enumerate(of_images):
            place = first.setdefault(key, (dataset, row))
            if place != (dataset, row) and {place[0].split, dataset.split} != TEST_SETS:
                yield Repeat(*place, dataset, row)


def _out_of_order(datasets: Sequence[PairDataset], scans: Mapping[str, Scan]) -> list[str]:
    """List ids of test and testall with different features: one split is out of order."""
    by_split = {dataset.split: dataset for dataset in datasets}
    if not by_split.keys() >= TEST_SETS:
        return []
    rows = {image: row for row, image in enumerate(by_split["testall"].image_ids)}
    return [
        f"{image}, row {row} of test and row {rows[image]} of testall"
        for row, image in enumerate(by_split["test"].image_ids)
        if image in rows and scans["test"].digests[row] != scans["testall"].digests[rows[image]]
    ]
