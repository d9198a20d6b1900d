"""The data doctor: everything that is wrong or unusual in a data set, before hours of training.

Opening a split already rejects inconsistent files. The checks that read every row are here and in
the two modules beside it: files that changed since they were built, features that are not finite,
images (`check_images`) and captions (`check_captions`) that occur twice or in two splits, and words
of test captions in a vocabulary. Errors must be fixed, warnings are for users to judge. Training
runs the quick checks; a thorough check also finds near duplicates.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from aoq.data.checks import captions as caption_checks
from aoq.data.checks import images as image_checks
from aoq.data.checks.captions import TrainedVocabulary
from aoq.data.checks.findings import Finding, Report, SplitFacts, error, warning
from aoq.data.checks.images import Scan
from aoq.data.dataset import Features, PairDataset
from aoq.data.precomp import CAPTIONS_PER_IMAGE, captions_file
from aoq.data.splits import (
    MANIFEST,
    features_file,
    is_built,
    open_dataset,
    read_manifest,
    splits_of,
)
from aoq.errors import UserError, all_problems
from aoq.features.arrays import map_features
from aoq.parsing import byte_string_problems, read_lines, shown
from aoq.progress import progress_bar
from aoq.storage import hash_file
from aoq.types import SPLITS

ROWS_AT_ONCE = 256
FEW_IMAGES = 50  # fewer images make retrieval too easy


def check_dataset(
    folder: Path | str, *, trained: TrainedVocabulary | None = None, thorough: bool = False
) -> Report:
    """Check every row of every split of a folder, and the vocabulary `trained` on it."""
    folder = Path(folder)
    opened, problems = _open_splits(folder)
    datasets = tuple(opened.values())
    scans = {
        split: _scan_features(features, title=f"Checking {split}", thorough=thorough)
        for split, features in _features_of(folder, opened)
    }
    findings = [
        *error("What does not fit together", problems),
        *_check_files(folder, datasets),
        *_check_numbers(folder, scans),
        *image_checks.find_repeats(folder, datasets, scans),
        *error(
            "Captions that are byte strings",
            [fault for dataset in datasets for fault in byte_string_captions(folder, dataset)],
        ),
        *_missing_splits(folder),
        *_small_splits(folder, datasets),
        *caption_checks.find_repeats(folder, datasets),
        *caption_checks.find_odd_lengths(folder, datasets),
    ]
    if thorough:
        findings += _differing_repeats(folder, datasets)
        findings += image_checks.find_look_alikes(datasets, scans)
        findings += image_checks.find_missing_pictures(datasets)
        findings += caption_checks.find_near(folder, datasets)
    if trained is not None or thorough:
        findings += caption_checks.find_vocabulary_leaks(folder, datasets, trained=trained)
    return Report(
        folder=folder,
        splits=tuple(map(SplitFacts.of, datasets)),
        findings=tuple(sorted(findings, key=lambda finding: not finding.is_error)),
        datasets=opened,
    )


def byte_string_captions(folder: Path, dataset: PairDataset) -> list[str]:
    """Return a sentence about a split's byte-string captions, with the first place."""
    captions = enumerate(dataset.captions)
    if is_built(folder):
        file = folder / f"{dataset.split}.json"
        places = ((f"{file}, captions[{number}]", caption) for number, caption in captions)
    else:
        file = captions_file(folder, dataset.split)
        places = ((f"{file}, line {number + 1}", caption) for number, caption in captions)
    return byte_string_problems(places)


def _open_splits(folder: Path) -> tuple[dict[str, PairDataset], list[str]]:
    """Open the splits that can be opened, and list what is wrong with the others."""
    opened: dict[str, PairDataset] = {}
    problems: list[str] = []
    for split in splits_of(folder):
        try:
            opened[split] = open_dataset(folder, split)
        except UserError as fault:
            problems += all_problems(fault)
    return opened, problems


def _missing_splits(folder: Path) -> list[Finding]:
    present = splits_of(folder)
    return warning(
        "Splits that are missing",
        [f"{folder} has no {split}" for split in SPLITS if split not in present],
        "training needs train and dev, and `aoq run` judges on test",
    )


def _small_splits(folder: Path, datasets: Iterable[PairDataset]) -> list[Finding]:
    return warning(
        f"Splits of fewer than {FEW_IMAGES} images",
        [
            f"{len(dataset)} in {dataset.split} of {folder}"
            for dataset in datasets
            if dataset.split in ("dev", "test") and len(dataset) < FEW_IMAGES
        ],
        "R@10 says little among so few; evaluate on more pictures",
    )


# Files


def _check_files(folder: Path, datasets: Sequence[PairDataset]) -> list[Finding]:
    differing = [
        f"{features_file(folder, dataset.split)} has images of {dataset.features.shape[1:]}; "
        f"expected {datasets[0].features.shape[1:]} regions and width as in {datasets[0].split}."
        for dataset in datasets
        if dataset.features.shape[1:] != datasets[0].features.shape[1:]
    ]
    found = error("Splits of different shapes", differing)
    if is_built(folder):
        return found + error("Files that changed", _changed_files(folder, datasets))
    return found + _unlike_word_ids(folder, datasets)


def _changed_files(folder: Path, datasets: Iterable[PairDataset]) -> list[str]:
    """List files that differ from their entries in dataset.json, and missing entries."""
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
        return f"{folder / MANIFEST}: {shown(name)} is not a file of the data set; expected a name."
    try:
        found = hash_file(folder / name)
    except (OSError, ValueError) as fault:
        return (
            f"{folder / MANIFEST} names {shown(name)}, which cannot be read ({fault}); "
            "build the data set again."
        )
    if found != digest:
        return f"{folder / name} is not what was built: its hash differs; build the data set again."
    return None


def _unlike_word_ids(folder: Path, datasets: Iterable[PairDataset]) -> list[Finding]:
    """Find BFAN's captions in numbers that cannot match the captions in words."""
    places: list[str] = []
    for dataset in datasets:
        numbers = folder / f"{dataset.split}_precaps.txt"
        if numbers.is_file() and (count := len(read_lines(numbers))) != dataset.n_texts:
            places.append(f"{numbers} has {count:,} lines for {dataset.n_texts:,} captions")
    return warning(
        "Captions in numbers that do not fit those in words",
        places,
        "aoq reads the words; make the numbers again if BFAN's program is to read them",
    )


# Features


def _features_of(folder: Path, opened: Mapping[str, PairDataset]) -> Iterator[tuple[str, Features]]:
    """Yield the features of every split, even if its captions keep it from being opened."""
    for split in splits_of(folder):
        if split in opened:
            yield split, opened[split].features
            continue
        try:
            features = map_features(features_file(folder, split))
        except UserError:
            continue  # opening the split has reported it
        yield split, features


def _scan_features(features: Features, *, title: str, thorough: bool) -> Scan:
    """Read every image once; computing means takes as long as the rest, and is optional."""
    digests: list[bytes] = []
    broken: list[int] = []
    means = np.zeros((len(features) if thorough else 0, features.shape[-1]), np.float32)
    with progress_bar(title, total=len(features), unit="images") as update:
        for start in range(0, len(features), ROWS_AT_ONCE):
            rows = np.arange(start, min(start + ROWS_AT_ONCE, len(features)))
            block = np.ascontiguousarray(features[rows])
            digests += [hashlib.sha256(row).digest() for row in block]
            finite = np.isfinite(block).all(axis=(1, 2))
            broken += rows[~finite].tolist()
            if thorough:
                means[rows[finite]] = block[finite].mean(axis=1, dtype=np.float32)
            update(advance=len(block))
    return Scan(digests, broken, means)


def _check_numbers(folder: Path, scans: Mapping[str, Scan]) -> list[Finding]:
    places = [
        f"{features_file(folder, split)}, image row {row}"
        for split, scan in scans.items()
        for row in scan.broken
    ]
    return error(
        "NaN or infinite features",
        places,
        "expected finite numbers: extract these pictures again, or leave them out",
    )


def _differing_repeats(folder: Path, datasets: Iterable[PairDataset]) -> list[Finding]:
    """Find rows that differ from their image's others in files with a row per caption (VSE++)."""
    places: list[str] = []
    for dataset in datasets:
        path = features_file(folder, dataset.split)
        rows = map_features(path)
        if len(rows) != CAPTIONS_PER_IMAGE * len(dataset) or is_built(folder):
            continue
        for start in range(0, len(rows), CAPTIONS_PER_IMAGE):
            repeats = rows[start : start + CAPTIONS_PER_IMAGE]
            if not all(np.array_equal(repeats[0], row, equal_nan=True) for row in repeats[1:]):
                places.append(f"{path}, rows {start} to {start + CAPTIONS_PER_IMAGE - 1}")
    return error(
        "Rows of one image that differ",
        places,
        "expected five equal rows per image, because there are as many rows as captions",
    )
