"""A split of a data set, opened in place: features, captions and who belongs to whom.

Two kinds of folders are understood: the ones `aoq.data.build` writes, and the "precomp" folders
that SCAN, VSE++ and their successors publish. Features stay on disk, memory-mapped, because those
of COCO are 33 GB; only ids and captions are held in memory. Opening refuses what does not fit
together, so that whoever holds a `PairDataset` need not look again. `PairDataset.of` makes one of
what a Python program holds, or of pictures that it reads when asked.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, Self, cast, overload

import numpy as np
import numpy.typing as npt

from aoq.data.precomp import CAPTIONS_PER_IMAGE, captions_file, read_captions, read_ids
from aoq.data.readers import json_fault, parse_json, read_text, shown, wrong_fields
from aoq.errors import UserError, all_problems, raise_problems
from aoq.storage import MANIFEST
from aoq.types import SPLITS, Ids, Positives

Array = npt.NDArray[Any]

VERSION = 1
PRECOMP_SPLITS = (*SPLITS, "testall")
PRECOMP_PARTS = ("ims.npy", "caps.txt", "precaps.txt")
ROWS_SAMPLED = 64
_OTHER_NUMBERS = (
    "for other numbers of captions write them as JSON lines of image and caption, and build a data "
    "set with `aoq data build captions.jsonl --features REGIONS`"
)


class ImageReader(Protocol):
    """Anything that reads images when asked: pictures from files, rows of a store.

    One image is always the same array, whenever it is read and with whichever others: a run that
    continues must find the data it began with. What changes pictures at random is the model's.
    """

    def __len__(self) -> int:
        """The number of images."""
        ...

    def __getitem__(self, ids: Ids, /) -> npt.ArrayLike:
        """The images of these numbers (B,), in their order: (B, R, F), pixels (B, 3, H, W), ..."""
        ...


@dataclass(frozen=True, eq=False)
class ImagesOnDemand:
    """An `ImageReader` that passes for a memory map: it has a shape, and a slice reads nothing."""

    reader: ImageReader
    ids: Ids
    image_shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @classmethod
    def of(cls, reader: ImageReader) -> Self:
        """All images of a reader; the first one shows what they are like."""
        first = _read_images(reader, np.zeros(1, np.int64))
        return cls(reader, np.arange(len(reader)), first.shape[1:], first.dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self), *self.image_shape)

    def __len__(self) -> int:
        return len(self.ids)

    @overload
    def __getitem__(self, rows: slice) -> ImagesOnDemand: ...

    @overload
    def __getitem__(self, rows: Ids) -> Array: ...

    def __getitem__(self, rows: slice | Ids) -> ImagesOnDemand | Array:
        if isinstance(rows, slice):
            return replace(self, ids=self.ids[rows])
        return _read_images(self.reader, self.ids[rows])


def _read_images(reader: ImageReader, ids: Ids) -> Array:
    """Some images in an array of their own, whatever the reader keeps."""
    images = np.array(reader[ids], order="C")
    if images.ndim < 2 or len(images) != len(ids):
        raise UserError(
            f"images[ids] has the shape {images.shape} for {len(ids)} ids; expected one row for "
            "each, such as (ids, 3, height, width)."
        )
    return images


Features = Array | ImagesOnDemand


@dataclass(frozen=True, eq=False)
class PairDataset:
    """Images 0..N-1 as region features, captions 0..M-1 as text, and the pairs among them."""

    name: str
    split: str
    features: Features  # (N, R, F), memory-mapped; in Python also pixels (N, 3, H, W) and others
    image_ids: tuple[str, ...]
    captions: tuple[str, ...]
    caption_ids: tuple[str, ...]
    positives: Positives
    pictures: tuple[Path | None, ...]  # where the original picture is, if known

    @classmethod
    def of(
        cls,
        images: npt.ArrayLike | ImageReader,
        captions: Sequence[str],
        pairs: Iterable[tuple[int, int]] | Ids,
        *,
        name: str = "own",
        split: str = "train",
        image_ids: Sequence[str] | None = None,
        caption_ids: Sequence[str] | None = None,
    ) -> Self:
        """One made in Python; `pairs` says which image has which caption, by their numbers.

        >>> pixels = np.zeros((2, 3, 8, 8), np.uint8)
        >>> dataset = PairDataset.of(pixels, ["a cat", "my cat", "a dog"], [(0, 0), (0, 1), (1, 2)])
        >>> len(dataset), dataset.n_texts, dataset.image_ids
        (2, 3, ('train:0', 'train:1'))
        """
        features = _as_features(images)
        n_images, n_texts = len(features), len(captions)
        raise_problems(
            [
                f"captions[{number}]: {shown(caption)} is no caption; expected words."
                for number, caption in enumerate(captions)
                if not isinstance(caption, str) or not caption.strip()
            ]
        )
        dataset = cls(
            name=name,
            split=split,
            features=features,
            image_ids=_as_ids(image_ids, n_images, "image_ids", prefix=f"{split}:"),
            captions=tuple(captions),
            caption_ids=_as_ids(caption_ids, n_texts, "caption_ids", prefix=f"{split}#"),
            positives=Positives.from_pairs(
                _as_pairs(pairs, (n_images, n_texts)), n_images=n_images, n_texts=n_texts
            ),
            pictures=(None,) * n_images,
        )
        raise_problems(_without_partner(dataset))
        return dataset

    def __len__(self) -> int:
        """The number of images."""
        return len(self.features)

    @property
    def n_texts(self) -> int:
        return len(self.captions)

    @cached_property
    def fingerprint(self) -> str:
        """Says "the same data set" cheaply: all texts and ids, and a sample of the features."""
        digest = hashlib.sha256()
        described = [self.image_ids, self.caption_ids, self.captions, self.features.shape]
        digest.update(json.dumps([*described, str(self.features.dtype)]).encode())
        digest.update(self.positives.pairs.tobytes())
        for row in np.unique(np.linspace(0, len(self) - 1, ROWS_SAMPLED).astype(int)):
            digest.update(self.features[np.array([row])].tobytes())
        return digest.hexdigest()


def _as_features(images: npt.ArrayLike | ImageReader) -> Features:
    """Arrays as they are, and what reads images when asked as if it were one."""
    is_reader = hasattr(images, "__getitem__") and not isinstance(images, np.ndarray | list | tuple)
    features: Features
    if is_reader:
        reader = cast("ImageReader", images)
        if not len(reader):
            raise UserError("images is empty; expected one image or more.")
        features = ImagesOnDemand.of(reader)
    else:
        features = np.asarray(images)
    if features.dtype.kind not in "fiu" or len(features.shape) < 2 or 0 in features.shape:
        raise UserError(
            f"images is an array of {features.dtype} of the shape {features.shape}; expected "
            "numbers, [images, regions, width] or pixels [images, 3, height, width], none zero."
        )
    return features


def _as_ids(ids: Sequence[str] | None, count: int, what: str, *, prefix: str) -> tuple[str, ...]:
    if ids is None:
        return tuple(f"{prefix}{number}" for number in range(count))
    if len(ids) != count:
        raise UserError(f"{what} has {len(ids):,} entries; expected {count:,}, one for each.")
    return tuple(map(str, ids))


def _as_pairs(pairs: Iterable[tuple[int, int]] | Ids, sizes: tuple[int, int]) -> Ids:
    """Numbers of images and captions (P, 2), all of them in range."""
    try:
        array = np.asarray(pairs if isinstance(pairs, np.ndarray) else list(pairs))
    except ValueError:  # rows of different lengths
        array = np.empty(0)
    if array.dtype.kind not in "iu" or array.shape[1:] != (2,):
        raise UserError(
            f"pairs is {shown(pairs)}; expected rows of two numbers, an image's and a caption's."
        )
    outside = np.flatnonzero(((array < 0) | (array >= sizes)).any(axis=1))
    raise_problems([_no_pair(f"pairs[{row}]", array[row].tolist(), sizes) for row in outside])
    return array.astype(np.int64)


def open_dataset(folder: Path, split: str) -> PairDataset:
    """One split of a folder, whichever kind it is."""
    present = splits_of(folder)
    if split not in present:
        raise UserError(f"{folder} has no split {split!r}; it holds {', '.join(present)}.")
    return _open_built(folder, split) if is_built(folder) else _open_precomp(folder, split)


def splits_of(folder: Path) -> tuple[str, ...]:
    """The splits a folder holds, train first."""
    if is_built(folder):
        return tuple(read_manifest(folder)["splits"])
    if not folder.is_dir():
        raise UserError(f"{folder} is no folder; name the folder of a data set with --data.")
    present = tuple(
        split
        for split in PRECOMP_SPLITS
        if any((folder / f"{split}_{part}").is_file() for part in PRECOMP_PARTS)
    )
    if not present:
        raise UserError(
            f"{folder} is no data set: it holds neither {MANIFEST} nor files like train_ims.npy "
            "and train_caps.txt; build one with `aoq data`, or name another folder."
        )
    return present


def training_captions(folder: Path) -> tuple[str, ...]:
    """The captions a vocabulary may be made of: train and dev, never test."""
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
    """Whether this folder was written by `aoq.data.build`."""
    return (folder / MANIFEST).is_file()


def read_manifest(folder: Path) -> dict[str, Any]:
    """What a built folder says about itself."""
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


def is_ours(folder: Path) -> bool:
    """Whether `aoq.data.build` wrote this folder, in any version; others say dataset.json too."""
    try:
        manifest = _read_json(folder / MANIFEST)
    except UserError:
        return False
    return isinstance(manifest, dict) and {"version", "splits"} <= manifest.keys()


def features_file(folder: Path, split: str) -> Path:
    """Where the features of a split lie."""
    return folder / (f"{split}.features.npy" if is_built(folder) else f"{split}_ims.npy")


def boxes_file(folder: Path, split: str) -> Path:
    """Where a built split keeps the boxes of its regions, unless these are the cells of a grid."""
    return folder / f"{split}.boxes.npy"


def map_features(path: Path) -> Array:
    """An .npy file as it lies on disk, with a region axis if it has none. (N, R, F)"""
    try:
        features: Array = np.lib.format.open_memmap(path, mode="r")
    except FileNotFoundError as error:
        raise UserError(f"{path} is missing; expected the features of the images.") from error
    except Exception as error:  # damaged headers make NumPy raise almost anything
        reason = " ".join(str(error).split())
        raise UserError(
            f"{path} cannot be read as a NumPy array: it is truncated or damaged at "
            f"{path.stat().st_size:,} bytes ({reason}); copy or build it again."
        ) from error
    if features.dtype not in (np.float16, np.float32):
        raise UserError(f"{path} holds {features.dtype}; expected an array of float32 or float16.")
    if features.ndim == 2:
        features = features[:, None, :]
    if features.ndim != 3 or not features.size:
        raise UserError(
            f"{path} has the shape {features.shape}; expected [images, regions, width], none zero."
        )
    return features


def _captions_of(folder: Path, split: str) -> list[str]:
    if is_built(folder):
        return [caption["text"] for caption in _read_listing(folder / f"{split}.json")["captions"]]
    return read_captions(folder, split)


def _open_built(folder: Path, split: str) -> PairDataset:
    path, features_path = folder / f"{split}.json", features_file(folder, split)
    name, listing = read_manifest(folder)["name"], _read_listing(path)
    features = map_features(features_path)
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
    )
    problems = _without_partner(dataset, place=f"{path}, ")
    if len(features) != len(images):
        problems.append(
            f"{features_path} has {len(features):,} rows and {path} {len(images):,} images; "
            "expected as many; build the data set again."
        )
    raise_problems(problems)
    return dataset


def _without_partner(dataset: PairDataset, *, place: str = "") -> list[str]:
    """A sentence for each image without a caption and each caption without an image."""
    positives = dataset.positives
    images = np.flatnonzero(positives.texts_per_image() == 0)
    texts = np.flatnonzero(positives.swapped.texts_per_image() == 0)
    return [
        f"{place}images[{number}]: {dataset.image_ids[number]} has no caption; expected one."
        for number in images
    ] + [
        f"{place}captions[{number}]: {dataset.caption_ids[number]} has no image; expected one."
        for number in texts
    ]


def _read_listing(path: Path) -> dict[str, Any]:
    """Images, captions and pairs of a built split, each of them what it should be."""
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
            _no_pair(f"{path}, pairs[{number}]", pair, sizes)
            for number, pair in enumerate(listing["pairs"])
            if not _is_pair(pair, sizes)
        ]
    raise_problems([f"{fault.removesuffix('.')}; build the data set again." for fault in wrong])
    return cast("dict[str, Any]", listing)


def _no_pair(place: str, pair: object, sizes: tuple[int, int]) -> str:
    return (
        f"{place}: {shown(pair)} is no pair; expected the number of an image, below {sizes[0]:,}, "
        f"and that of a caption, below {sizes[1]:,}."
    )


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
            f"five an image, or one row a caption; {_OTHER_NUMBERS}."
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
    """VSE++ stores an image once a caption: look whether rows repeat, then skip the repeats."""
    if len(features) % CAPTIONS_PER_IMAGE:
        raise UserError(
            f"{path} has a row a caption, {len(features):,}; expected five an image; "
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
                "five equal rows an image, because there are as many rows as captions."
            )
    return images


def _read_parts(folder: Path, split: str) -> tuple[list[str], Array]:
    """The captions and the features of a split; what is wrong with either is said together."""
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
