"""Opens data sets in place.

Two kinds of folders are supported: those of `aoq.data.build`, and the "precomp" folders that SCAN,
VSE++ and their successors publish.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np

from aoq.data.dataset import ROWS_SAMPLED, ImagesOnDemand, PairDataset, no_pair, without_partner
from aoq.data.precomp import CAPTIONS_PER_IMAGE, captions_file, read_captions, read_ids
from aoq.errors import UserError, all_problems, raise_problems
from aoq.features.arrays import Array, CheckedFeatures, map_features
from aoq.features.backbones import DEFAULT_BACKBONE
from aoq.features.outputs import PATCHES
from aoq.features.regions import Boxes, RegionSource, grid_boxes
from aoq.manifest import check_file
from aoq.parsing import json_fault, parse_json, read_text, shown, wrong_fields
from aoq.types import SPLITS, Positives

VERSION = 1
MANIFEST = "dataset.json"
PRECOMP_SPLITS = (*SPLITS, "testall")
PRECOMP_PARTS = ("ims.npy", "caps.txt", "precaps.txt")
_OTHER_NUMBERS = (
    "for other numbers of captions write them as JSON lines of image and caption, and build a data "
    "set with `aoq data build captions.jsonl --features REGIONS`"
)


def open_dataset(folder: Path | str, split: str) -> PairDataset:
    """Open one split of a folder of either kind."""
    folder = Path(folder)
    present = splits_of(folder)
    if split not in present:
        raise UserError(f"{folder} has no split {split!r}; it holds {', '.join(present)}.")
    return _open_built(folder, split) if is_built(folder) else _open_precomp(folder, split)


def splits_of(folder: Path | str) -> tuple[str, ...]:
    """Return the splits of a folder, train first."""
    folder = Path(folder)
    if is_built(folder):
        return tuple(read_manifest(folder)["splits"])
    if not folder.is_dir():
        raise UserError(
            f"{folder} is not a folder; name the folder of a data set; if it was moved, name its "
            "place with --data FOLDER."
        )
    present = tuple(
        split
        for split in PRECOMP_SPLITS
        if any((folder / f"{split}_{part}").is_file() for part in PRECOMP_PARTS)
    )
    if not present:
        raise UserError(
            f"{folder} is not a data set: it holds neither {MANIFEST} nor files like train_ims.npy "
            "and train_caps.txt; build one with `aoq data`, or name another folder."
        )
    return present


def training_captions(folder: Path | str) -> tuple[str, ...]:
    """Return the captions a vocabulary may be built from: train and dev, never test."""
    folder = Path(folder)
    present = splits_of(folder)
    if "train" not in present:
        raise UserError(f"{folder} has no split 'train' to take words from.")
    return tuple(
        caption
        for split in ("train", "dev")
        if split in present
        for caption in _captions_of(folder, split)
    )


def is_built(folder: Path) -> bool:
    """Return whether a folder was written by `aoq.data.build`."""
    return (folder / MANIFEST).is_file()


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read the manifest of a built folder."""
    path = folder / MANIFEST
    manifest = _read_json(path)
    if not isinstance(manifest, dict) or manifest.get("version") != VERSION:
        raise UserError(f"{path} is not of version {VERSION}; build the data set again.")
    splits = manifest.get("splits")
    if not isinstance(splits, dict) or not splits or not splits.keys() <= set(SPLITS):
        raise UserError(
            f"{path}: splits is {shown(splits)}; expected {', '.join(SPLITS)} or some of them; "
            "build the data set again."
        )
    raise_problems(wrong_fields(str(path), manifest, name="words"))
    return manifest


def features_file(folder: Path, split: str) -> Path:
    """Return the path of a split's features."""
    return folder / (f"{split}.features.npy" if is_built(folder) else f"{split}_ims.npy")


def boxes_file(folder: Path, split: str) -> Path:
    """Return the path of a built split's region boxes, unless they are the cells of a grid."""
    return folder / f"{split}.boxes.npy"


def region_source(folder: Path) -> RegionSource | None:
    """Return the source of a data set's regions; None if it was built from features."""
    if not is_built(folder):
        return None
    manifest = read_manifest(folder)
    if "grid" not in manifest:
        return None
    fields = {
        "backbone": manifest.get("backbone", DEFAULT_BACKBONE),
        "id": manifest.get("extractor"),
        "grid": manifest["grid"],
        "output": manifest.get("output", str(PATCHES)),
    }
    return RegionSource.from_dict(fields)


def dataset_boxes(folder: Path, split: str) -> Boxes | None:
    """Return the boxes of a split's regions; None if they are unknown. (N, R, 4)

    The boxes of a grid are equal for every image: a view that takes no memory.
    """
    if not is_built(folder):
        return None
    n_images, n_regions, _ = map_features(features_file(folder, split)).shape
    source = region_source(folder)
    if source is not None:
        boxes = grid_boxes(source.grid)
    elif boxes_file(folder, split).is_file():
        check_file(boxes_file(folder, split))
        boxes = map_features(boxes_file(folder, split))
    else:
        return None
    try:
        return np.broadcast_to(boxes, (n_images, n_regions, 4))
    except ValueError as error:
        raise UserError(
            f"{folder}: the boxes of {split} have the shape {boxes.shape}; expected "
            f"({n_images}, {n_regions}, 4), one for each region; build the data set again."
        ) from error


def _captions_of(folder: Path, split: str) -> list[str]:
    if is_built(folder):
        return [caption["text"] for caption in _read_listing(folder / f"{split}.json")["captions"]]
    return read_captions(folder, split)


def _open_built(folder: Path, split: str) -> PairDataset:
    path, features_path = folder / f"{split}.json", features_file(folder, split)
    name, listing = read_manifest(folder)["name"], _read_listing(path)
    features = ImagesOnDemand.of(CheckedFeatures(features_path))
    images, captions = listing["images"], listing["captions"]
    dataset = PairDataset(
        name=name,
        split=split,
        features=features,
        image_ids=tuple(image["id"] for image in images),
        captions=tuple(caption["text"] for caption in captions),
        caption_ids=tuple(caption["id"] for caption in captions),
        positives=Positives.from_pairs(
            listing["pairs"], n_images=len(images), n_texts=len(captions)
        ),
        pictures=tuple(
            None if image["picture"] is None else folder / image["picture"] for image in images
        ),
        source=region_source(folder),
    )
    problems = without_partner(dataset, place=f"{path}, ")
    if len(features) != len(images):
        problems.append(
            f"{features_path} has {len(features):,} rows and {path} {len(images):,} images; "
            "expected equal numbers; build the data set again."
        )
    raise_problems(problems)
    return dataset


def _read_listing(path: Path) -> dict[str, Any]:
    """Read and validate images, captions and pairs of a built split."""
    listing = _read_json(path)
    parts = ("images", "captions", "pairs")
    wrong = wrong_fields(str(path), listing, **dict.fromkeys(parts, "list"))
    if not wrong:
        for number, image in enumerate(listing["images"]):
            wrong += wrong_fields(f"{path}, images[{number}]", image, id="text", picture="text?")
        for number, caption in enumerate(listing["captions"]):
            wrong += wrong_fields(f"{path}, captions[{number}]", caption, id="text", text="words")
        sizes = len(listing["images"]), len(listing["captions"])
        wrong += [
            no_pair(f"{path}, pairs[{number}]", pair, sizes)
            for number, pair in enumerate(listing["pairs"])
            if not _is_pair(pair, sizes)
        ]
    raise_problems([f"{fault.removesuffix('.')}; build the data set again." for fault in wrong])
    return cast("dict[str, Any]", listing)


def _is_pair(pair: object, sizes: tuple[int, int]) -> bool:
    return (
        isinstance(pair, list)
        and [type(number) for number in pair] == [int, int]
        and all(0 <= number < size for number, size in zip(pair, sizes, strict=True))
    )


def _open_precomp(folder: Path, split: str) -> PairDataset:
    captions, features = _read_parts(folder, split)
    features_path, captions_path = features_file(folder, split), captions_file(folder, split)
    if len(features) == len(captions):
        features = _every_fifth(features, features_path)
    elif CAPTIONS_PER_IMAGE * len(features) != len(captions):
        raise UserError(
            f"{captions_path} has {len(captions):,} captions and {features_path} "
            f"{len(features):,} rows; expected {CAPTIONS_PER_IMAGE * len(features):,} captions, "
            f"five per image, or one row per caption; {_OTHER_NUMBERS}."
        )
    image_ids = read_ids(folder, split, n_images=len(features))
    text_ids = np.arange(len(captions))
    return PairDataset(
        name=folder.resolve().name,
        split=split,
        features=features,
        image_ids=image_ids,
        captions=tuple(captions),
        caption_ids=tuple(
            f"{image_id}#{k}" for image_id in image_ids for k in range(CAPTIONS_PER_IMAGE)
        ),
        positives=Positives.from_pairs(
            np.stack([text_ids // CAPTIONS_PER_IMAGE, text_ids], axis=1),
            n_images=len(features),
            n_texts=len(captions),
        ),
        pictures=(None,) * len(features),
    )


def _every_fifth(features: Array, path: Path) -> Array:
    """Check that rows repeat as in VSE++, which stores a row per caption, and skip repeats."""
    if len(features) % CAPTIONS_PER_IMAGE:
        raise UserError(
            f"{path} has a row per caption, {len(features):,}; expected five per image; "
            f"{_OTHER_NUMBERS}."
        )
    images = features[::CAPTIONS_PER_IMAGE]
    for image in np.unique(np.linspace(0, len(images) - 1, ROWS_SAMPLED).astype(int)):
        start = image * CAPTIONS_PER_IMAGE
        repeats = features[start : start + CAPTIONS_PER_IMAGE]
        if not np.array_equal(
            repeats, np.broadcast_to(images[image], repeats.shape), equal_nan=True
        ):
            raise UserError(
                f"{path}, rows {start} to {start + CAPTIONS_PER_IMAGE - 1}: they differ; expected "
                "five equal rows per image, because there are as many rows as captions."
            )
    return images


def _read_parts(folder: Path, split: str) -> tuple[list[str], Array]:
    """Read captions and features of a split, and report the problems of both together."""
    problems: list[str] = []
    try:
        captions = read_captions(folder, split)
    except UserError as error:
        problems += all_problems(error)
    try:
        features = map_features(features_file(folder, split))
    except UserError as error:
        problems += error.problems
    raise_problems(problems)
    return captions, features


def _read_json(path: Path) -> Any:
    text = read_text(path)
    try:
        return parse_json(text)
    except ValueError as error:
        raise UserError(f"{json_fault(path, error)}; build the data set again.") from error
