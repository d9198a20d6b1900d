"""A split of a data set: features, captions, and which image belongs to which caption.

Features stay on disk, memory-mapped, because those of COCO take 33 GB; only ids and captions are in
memory. `PairDataset.of` creates a data set from arrays, or from pictures that it reads on demand;
`aoq.data.splits` opens folders. Both reject inconsistent input, so that users of a `PairDataset`
need no further checks.
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

from aoq.errors import UserError, raise_problems
from aoq.features.arrays import Array
from aoq.features.regions import RegionSource
from aoq.parsing import shown
from aoq.types import Ids, Positives

ROWS_SAMPLED = 64
_IMAGES_READ_TWICE = 3


class ImageReader(Protocol):
    """Anything that reads images on demand: pictures from files, rows of a store.

    An image has to be the same array whenever it is read and whichever others are read with it: a
    run that continues must find the same data. Random augmentation belongs in the model.
    """

    def __len__(self) -> int:
        """Return the number of images."""
        ...

    def __getitem__(self, ids: Ids, /) -> npt.ArrayLike:
        """Return the images of these numbers (B,), in order: (B, R, F), pixels (B, 3, H, W), ..."""
        ...


@dataclass(frozen=True, eq=False)
class ImagesOnDemand:
    """Wraps an `ImageReader` like a memory map: it has a shape, and slicing reads nothing."""

    reader: ImageReader
    ids: Ids
    image_shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @classmethod
    def of(cls, reader: ImageReader) -> Self:
        """Wrap all images of a reader; the first one determines shape and dtype."""
        first = _read_images(reader, np.zeros(1, np.int64))
        _require_repeatable(reader)
        return cls(reader, np.arange(len(reader)), first.shape[1:], first.dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self), *self.image_shape)

    def __len__(self) -> int:
        return len(self.ids)

    @overload
    def __getitem__(self, rows: slice) -> ImagesOnDemand: ...

    @overload
    def __getitem__(self, rows: Ids | int) -> Array: ...

    def __getitem__(self, rows: slice | Ids | int) -> ImagesOnDemand | Array:
        if isinstance(rows, slice):
            return replace(self, ids=self.ids[rows])
        if isinstance(rows, int | np.integer):
            image: Array = self[np.array([rows])][0]
            return image
        return _read_images(self.reader, self.ids[rows])

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> Array:
        """Read all images, for NumPy's functions."""
        return self[np.arange(len(self))].astype(dtype or self.dtype, copy=False)


def _read_images(reader: ImageReader, ids: Ids) -> Array:
    """Read some images into a new array, independent of the reader's own buffers."""
    try:
        images = np.array(reader[ids], order="C")
    except ValueError as error:
        raise UserError(
            f"images[ids] is not an array ({error}); expected images of one shape and dtype."
        ) from error
    if images.ndim < 2 or len(images) != len(ids):
        raise UserError(
            f"images[ids] has the shape {images.shape} for {len(ids)} ids; expected one row for "
            "each, such as (ids, 3, height, width)."
        )
    return images


def _require_repeatable(reader: ImageReader) -> None:
    """Reject a reader whose images change between reads, or with the others of a read."""
    ids = np.unique(np.linspace(0, len(reader) - 1, _IMAGES_READ_TWICE).astype(np.int64))[::-1]
    together = _read_images(reader, ids)
    for image, found in zip(ids, together, strict=True):
        alone = _read_images(reader, np.array([image]))[0]
        if (alone.shape, alone.dtype) != (found.shape, found.dtype) or (
            alone.tobytes() != found.tobytes()
        ):
            raise UserError(
                f"images[[{image}]] is not the same when it is read again, alone and with others; "
                "an image has to be the same array whenever it is read: move random crops and the "
                "like into the model, where self.training is true, and do not scale an image by "
                "the others of its batch."
            )


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
    pictures: tuple[Path | None, ...]  # path of the original picture, if known
    source: RegionSource | None = None
    "What made the features, if pictures can be turned into equal ones."
    original: PairDataset | None = None
    "The data set itself, if these features are another network's view of its pictures."

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
        """Create a data set in Python; `pairs` lists (image, caption) by their numbers.

        >>> pixels = np.zeros((2, 3, 8, 8), np.uint8)
        >>> dataset = PairDataset.of(pixels, ["a cat", "my cat", "a dog"], [(0, 0), (0, 1), (1, 2)])
        >>> len(dataset), dataset.n_texts, dataset.image_ids
        (2, 3, ('train:0', 'train:1'))
        """
        features = _as_features(images)
        n_images, n_texts = len(features), len(captions)
        raise_problems(
            [
                f"captions[{number}]: {shown(caption)} is not a caption; expected words."
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
        raise_problems(without_partner(dataset))
        return dataset

    def with_features(self, features: Features, source: RegionSource) -> Self:
        """Return the same data set as another network sees it; lists and results stay valid."""
        return replace(self, features=features, source=source, original=self.original or self)

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.features)

    @property
    def n_texts(self) -> int:
        return len(self.captions)

    @cached_property
    def contents(self) -> str:
        """Identify the images, texts and feature shape, equally on any machine.

        Features from another processor differ in their last digits, so they are not included.
        """
        if self.original is not None:
            return self.original.contents
        return self._described().hexdigest()

    @cached_property
    def fingerprint(self) -> str:
        """Identify the data set cheaply: its contents, and a sample of the features."""
        if self.original is not None:
            return self.original.fingerprint
        digest = self._described()
        for row in np.unique(np.linspace(0, len(self) - 1, ROWS_SAMPLED).astype(int)):
            digest.update(self.features[np.array([row])].tobytes())
        return digest.hexdigest()

    def _described(self) -> hashlib._Hash:
        described = [self.image_ids, self.caption_ids, self.captions, self.features.shape]
        digest = hashlib.sha256(json.dumps([*described, str(self.features.dtype)]).encode())
        digest.update(self.positives.pairs.tobytes())
        return digest


def _as_features(images: npt.ArrayLike | ImageReader) -> Features:
    """Return arrays unchanged, and wrap readers of images."""
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
    """Return numbers of images and captions (P, 2), all of them in range."""
    try:
        array = np.asarray(pairs if isinstance(pairs, np.ndarray) else list(pairs))
    except ValueError:  # rows of different lengths
        array = np.empty(0)
    if array.dtype.kind not in "iu" or array.shape[1:] != (2,):
        raise UserError(
            f"pairs is {shown(pairs)}; expected rows of two numbers, an image's and a caption's."
        )
    outside = np.flatnonzero(((array < 0) | (array >= sizes)).any(axis=1))
    raise_problems([no_pair(f"pairs[{row}]", array[row].tolist(), sizes) for row in outside])
    return array.astype(np.int64)


def without_partner(dataset: PairDataset, *, place: str = "") -> list[str]:
    """Return a sentence for each image without a caption and each caption without an image."""
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


def no_pair(place: str, pair: object, sizes: tuple[int, int]) -> str:
    return (
        f"{place}: {shown(pair)} is not a pair; expected the number of an image, below "
        f"{sizes[0]:,}, and that of a caption, below {sizes[1]:,}."
    )
