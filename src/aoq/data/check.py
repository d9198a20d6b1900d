"""The doctor: everything that is wrong or odd with a data set, before hours go into training.

Opening a split already refuses what does not fit together. What needs a look at every row is
here: features that are no numbers, files that changed since they were built, images in two
splits, pictures and captions that occur twice, captions of an odd length. Errors must be mended,
warnings are for people to judge.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from aoq.data.dataset import (
    PairDataset,
    features_file,
    is_built,
    open_dataset,
    read_manifest,
    splits_of,
)
from aoq.data.formats import raise_problems
from aoq.data.readers import byte_string_problems, shown
from aoq.errors import UserError
from aoq.progress import progress_bar
from aoq.storage import MANIFEST, hash_file
from aoq.types import SPLITS

ROWS_AT_ONCE = 256
FEWEST_WORDS, MOST_WORDS = 3, 60

Place = tuple[PairDataset, int]


@dataclass(frozen=True)
class Report:
    """What was found: sentences to act on, sentences to think about, and counts."""

    errors: tuple[str, ...]
    warnings: tuple[str, ...]
    facts: Mapping[str, int]

    def raise_for_errors(self) -> None:
        raise_problems(self.errors)


def check_dataset(folder: Path) -> Report:
    """Look at every row of every split of a folder."""
    errors: list[str] = []
    datasets: list[PairDataset] = []
    for split in splits_of(folder):
        try:
            datasets.append(open_dataset(folder, split))
        except UserError as error:
            errors += error.problems
    if is_built(folder):
        errors += _changed_files(folder, datasets)
    errors += _differing_shapes(folder, datasets)
    for dataset in datasets:
        errors += byte_string_captions(folder, dataset)
    digests = []
    for dataset in datasets:
        rows, broken = _scan_features(dataset)
        digests.append(rows)
        if broken:
            errors.append(
                f"{features_file(folder, dataset.split)}, image row {broken[0]}: NaN or infinite "
                f"features, {len(broken):,} such rows in all; expected finite numbers."
            )
    shared, twice = _repeated_images(folder, datasets, digests)
    return Report(
        errors=(*errors, *shared),
        warnings=(*_missing_splits(folder), *twice, *_odd_captions(datasets)),
        facts={
            f"{dataset.split} {what}": count
            for dataset in datasets
            for what, count in (("images", len(dataset)), ("captions", dataset.n_texts))
        },
    )


def byte_string_captions(folder: Path, dataset: PairDataset) -> list[str]:
    """A sentence about the captions of a split that are byte strings, with the first place."""
    captions = enumerate(dataset.captions)
    if is_built(folder):
        file = folder / f"{dataset.split}.json"
        places = ((f"{file}, captions[{number}]", caption) for number, caption in captions)
    else:
        file = folder / f"{dataset.split}_caps.txt"
        places = ((f"{file}, line {number + 1}", caption) for number, caption in captions)
    return byte_string_problems(places)


def _missing_splits(folder: Path) -> list[str]:
    present = splits_of(folder)
    missing = [split for split in SPLITS if split not in present]
    if not missing:
        return []
    return [
        f"{folder} has no {' and no '.join(missing)} split: training needs train and dev, and "
        "`aoq run` judges on test."
    ]


def _changed_files(folder: Path, datasets: Iterable[PairDataset]) -> list[str]:
    """Files that are not what dataset.json says of them, and what it fails to say."""
    recorded = read_manifest(folder)["splits"]
    problems: list[str] = []
    for dataset in datasets:
        described = recorded[dataset.split]
        hashes = described.get("sha256") if isinstance(described, dict) else None
        files = {f"{dataset.split}.json", features_file(folder, dataset.split).name}
        if not isinstance(hashes, dict) or not files <= hashes.keys():
            problems.append(
                f"{folder / MANIFEST}: sha256 of {dataset.split} is {shown(hashes)}; expected "
                f"the hashes of {' and '.join(sorted(files))}; build the data set again."
            )
            continue
        wrong = [_find_change(folder, name, digest) for name, digest in hashes.items()]
        problems += [problem for problem in wrong if problem]
    return problems


def _find_change(folder: Path, name: str, digest: object) -> str | None:
    if Path(name).name != name:
        return f"{folder / MANIFEST}: {shown(name)} is no file of the data set; expected a name."
    try:
        found = hash_file(folder / name)
    except (OSError, ValueError) as error:
        return (
            f"{folder / MANIFEST} names {shown(name)}, which cannot be read ({error}); "
            "build the data set again."
        )
    if found != digest:
        return f"{folder / name} is not what was built: its hash differs; build the data set again."
    return None


def _differing_shapes(folder: Path, datasets: Sequence[PairDataset]) -> list[str]:
    return [
        f"{features_file(folder, dataset.split)} has images of {dataset.features.shape[1:]}; "
        f"expected {datasets[0].features.shape[1:]} regions and width as in {datasets[0].split}."
        for dataset in datasets
        if dataset.features.shape[1:] != datasets[0].features.shape[1:]
    ]


def _scan_features(dataset: PairDataset) -> tuple[list[bytes], list[int]]:
    """A digest of every image's features, and the rows that hold NaN or infinity."""
    digests: list[bytes] = []
    broken: list[int] = []
    title = f"Checking {dataset.split}"
    with progress_bar(title, total=len(dataset), unit="images") as update:
        for start in range(0, len(dataset), ROWS_AT_ONCE):
            block = np.ascontiguousarray(dataset.features[start : start + ROWS_AT_ONCE])
            digests += [hashlib.sha256(row).digest() for row in block]
            finite = np.isfinite(block).all(axis=(1, 2))
            broken += (start + np.flatnonzero(~finite)).tolist()
            update(advance=len(block))
    return digests, broken


def _repeated_images(
    folder: Path, datasets: Sequence[PairDataset], digests: Sequence[Sequence[bytes]]
) -> tuple[list[str], list[str]]:
    """Images in two splits, which are errors, and pictures that are there twice.

    An image is known by its id. Where a folder names none, equal features in two splits are
    taken for the same image.
    """
    named = is_built(folder) or any((folder / f"{d.split}_ids.txt").is_file() for d in datasets)
    keys: Sequence[Sequence[Hashable]] = [d.image_ids for d in datasets] if named else digests
    shared = [
        f"{features_file(folder, again.split)}, image row {row}: the image "
        f"{again.image_ids[row]} is also in {first.split}, row {first_row}; "
        "expected every image in one split."
        for (first, first_row), (again, row) in _repeats(datasets, keys)
        if first is not again
    ]
    twice = [
        f"{again.image_ids[row]} in {again.split} and {first.image_ids[first_row]} in {first.split}"
        for (first, first_row), (again, row) in _repeats(datasets, digests)
        if first is again or (named and first.image_ids[first_row] != again.image_ids[row])
    ]
    return shared, _one_line(twice, "pictures are there twice (equal features)")


def _repeats(
    datasets: Sequence[PairDataset], keys: Sequence[Sequence[Hashable]]
) -> Iterator[tuple[Place, Place]]:
    """Where a key occurs first, and where again; `testall` contains `test` by design."""
    first: dict[Hashable, Place] = {}
    for dataset, of_images in zip(datasets, keys, strict=True):
        for row, key in enumerate(of_images):
            place = first.setdefault(key, (dataset, row))
            if place != (dataset, row) and {place[0].split, dataset.split} != {"test", "testall"}:
                yield place, (dataset, row)


def _odd_captions(datasets: Sequence[PairDataset]) -> Iterator[str]:
    repeated, short, long = [], [], []
    for dataset in datasets:
        owners: dict[str, int] = {}
        for image_id, text_id in dataset.positives.pairs.tolist():
            caption = dataset.captions[text_id]
            example = f"{caption[:60]!r} of {dataset.image_ids[image_id]} in {dataset.split}"
            if owners.setdefault(caption.casefold(), image_id) != image_id:
                repeated.append(example)
            words = len(caption.split())
            if words < FEWEST_WORDS:
                short.append(example)
            elif words > MOST_WORDS:
                long.append(example)
    yield from _one_line(repeated, "captions are also those of another image")
    yield from _one_line(short, f"captions have fewer than {FEWEST_WORDS} words")
    yield from _one_line(long, f"captions have more than {MOST_WORDS} words")


def _one_line(examples: Sequence[str], what: str) -> list[str]:
    return [f"{len(examples):,} {what}, the first is {examples[0]}."] if examples else []
