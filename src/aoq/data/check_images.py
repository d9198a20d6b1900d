"""The doctor's look at images: the same one twice, in two splits, or nearly so.

An image is known by its id. Where a folder names none, equal features in two splits are taken for
the same image, which is an error: what a model has seen in training says nothing when it is asked
again in a test. `testall` contains `test` by design.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from aoq.data.dataset import PairDataset, features_file, is_built
from aoq.data.findings import Finding, error, warning
from aoq.data.resemblance import Vectors, look_alikes

Place = tuple[PairDataset, int]
TEST_SETS = {"test", "testall"}


@dataclass(frozen=True, eq=False)
class Scan:
    """What one look at all features of a split gives."""

    digests: Sequence[bytes]  # of every image
    broken: Sequence[int]  # rows that hold NaN or infinity
    means: Vectors  # (N, F), over the regions; empty after a quick look


def find_repeats(
    folder: Path, datasets: Sequence[PairDataset], scans: Mapping[str, Scan]
) -> list[Finding]:
    """Images in two splits, and images that are there twice."""
    named = is_built(folder) or any((folder / f"{d.split}_ids.txt").is_file() for d in datasets)
    ids: list[Sequence[Hashable]] = [dataset.image_ids for dataset in datasets]
    digests: list[Sequence[Hashable]] = [scans[dataset.split].digests for dataset in datasets]
    by_key = list(_repeats(datasets, ids if named else digests))
    by_features = list(_repeats(datasets, digests))
    return [
        *error(
            "Images in two splits",
            [
                f"{features_file(folder, again.split)}, image row {row}: the image "
                f"{again.image_ids[row]} is also in {first.split}, row {first_row}"
                for (first, first_row), (again, row) in by_key
                if first is not again
            ],
            "expected every image in one split: leave it out of the others",
        ),
        *error(
            "Ids of test that name another image in testall",
            _out_of_order(datasets, scans) if named else [],
            "expected the ids in the order of the rows",
        ),
        *warning(
            "Ids that several images have",
            [
                f"{again.image_ids[row]} in {again.split}, rows {first_row} and {row}"
                for (first, first_row), (again, row) in by_key
                if named and first is again
            ],
            "an id should name one image: look whether the ids fit the rows",
        ),
        *warning(
            "Pictures that are there twice",
            [
                f"{again.image_ids[row]} and {first.image_ids[first_row]} in {first.split} "
                "have equal features"
                for (first, first_row), (again, row) in by_features
                if first is again
            ],
            "each counts as a wrong answer to the captions of the other: leave one out",
        ),
        *warning(
            "Pictures in two splits under different ids",
            [
                f"{again.image_ids[row]} in {again.split} and {first.image_ids[first_row]} in "
                f"{first.split} have equal features"
                for (first, first_row), (again, row) in by_features
                if first is not again
                and named
                and first.image_ids[first_row] != again.image_ids[row]
            ],
            "a leak: leave them out of train, or results are too good",
        ),
    ]


def find_look_alikes(datasets: Sequence[PairDataset], scans: Mapping[str, Scan]) -> list[Finding]:
    """Pictures that are nearly those of an earlier split, equal ones aside."""
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
    """Pictures that are no longer where they were; the features are there, so training works."""
    return warning(
        "Pictures that are no longer where they were",
        [
            f"{path} of {dataset.split}"
            for dataset in datasets
            for path in dataset.pictures
            if path is not None and not path.is_file()
        ],
        "training needs only the features, but nobody can be shown what was found",
    )


def earlier_splits(datasets: Sequence[PairDataset], number: int) -> list[PairDataset]:
    """The splits before one that must have nothing in common with it."""
    return [
        other for other in datasets[:number] if {other.split, datasets[number].split} != TEST_SETS
    ]


def _repeats(
    datasets: Sequence[PairDataset], keys: Sequence[Sequence[Hashable]]
) -> Iterator[tuple[Place, Place]]:
    """Where a key occurs first, and where again."""
    first: dict[Hashable, Place] = {}
    for dataset, of_images in zip(datasets, keys, strict=True):
        for row, key in enumerate(of_images):
            place = first.setdefault(key, (dataset, row))
            if place != (dataset, row) and {place[0].split, dataset.split} != TEST_SETS:
                yield place, (dataset, row)


def _out_of_order(datasets: Sequence[PairDataset], scans: Mapping[str, Scan]) -> list[str]:
    """Ids that test and testall share, of different features: one of them is out of order."""
    by_split = {dataset.split: dataset for dataset in datasets}
    if not by_split.keys() >= TEST_SETS:
        return []
    rows = {image: row for row, image in enumerate(by_split["testall"].image_ids)}
    return [
        f"{image}, row {row} of test and row {rows[image]} of testall"
        for row, image in enumerate(by_split["test"].image_ids)
        if image in rows and scans["test"].digests[row] != scans["testall"].digests[rows[image]]
    ]
