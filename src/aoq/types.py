"""The types that all stages share, and the one legend of tensor shapes.

    B  pairs in a batch          R  regions of an image     D  width of the joint space
    N  images                    T  words of a text         F  width of the region features
    M  texts                     V  words in the vocabulary  h  depth of a candidate list

Images and texts are numbered 0..N-1 and 0..M-1 inside a data set (`_ids`) and 0..B-1 inside a
batch (`_idx`). A higher score always means that image and text are closer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import index
from typing import TYPE_CHECKING, Literal, SupportsIndex

import numpy as np
import numpy.typing as npt

from aoq.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor, device

Split = Literal["train", "dev", "test"]
SPLITS: tuple[Split, ...] = ("train", "dev", "test")
EntryKind = Literal["image", "text"]

Ids = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]


def require_tensor(
    name: str, value: object, *shapes: tuple[int | str, ...], of: Literal["fraction", "int", "bool"]
) -> None:
    """Raise a `UserError` unless `value` is a tensor of one of these shapes.

    A letter stands for any size, the same throughout. Broadcasting would turn a wrong shape into a
    wrong result without an error. Only shape and dtype are checked, so that nothing waits for a
    GPU.
    """
    import torch

    if isinstance(value, torch.Tensor):
        whole = "bool" if value.dtype == torch.bool else "int"
        kind = "fraction" if value.is_floating_point() else whole
        if kind == of and any(_has_shape(value.shape, shape) for shape in shapes):
            return
        found = f"has the shape {tuple(value.shape)} and the dtype {value.dtype}"
    else:
        found = f"is a {type(value).__name__}"
    wanted = " or ".join(str(shape).replace("'", "") for shape in shapes)
    kinds = {"fraction": "fractions, such as float32", "int": "whole numbers", "bool": "bool"}
    raise UserError(f"{name} {found}; expected a tensor of shape {wanted} of {kinds[of]}.")


def require_count(name: str, value: object, *, least: int = 1) -> None:
    """Raise a `UserError` unless `value` is an integer of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, SupportsIndex) or index(value) < least:
        raise UserError(f"{name} is {value!r}; expected a whole number, at least {least}.")


def _has_shape(found: Sequence[int], wanted: tuple[int | str, ...]) -> bool:
    sizes: dict[int | str, int] = {}
    return len(found) == len(wanted) and all(
        size == (sizes.setdefault(name, size) if isinstance(name, str) else name)
        for size, name in zip(found, wanted, strict=True)
    )


@dataclass(frozen=True, eq=False)
class Positives:
    """Which image belongs to which text, as a relation with any number of texts per image.

    `pairs` (P, 2) holds image and text ids, sorted by image, then text, without repeats.

    >>> positives = Positives.from_pairs([(1, 0), (0, 2), (0, 1)], n_images=2, n_texts=3)
    >>> positives.texts_of(0).tolist(), positives.images_of(0).tolist()
    ([1, 2], [1])
    >>> positives.contains([0, 1], [1, 1]).tolist()
    [True, False]
    """

    pairs: Ids
    n_images: int
    n_texts: int

    def __post_init__(self) -> None:
        _require_pairs(self.pairs)

    @classmethod
    def from_pairs(
        cls, pairs: Iterable[tuple[int, int]] | Ids, *, n_images: int, n_texts: int
    ) -> Positives:
        """Sort and deduplicate `pairs`; reject other shapes, and ids outside the data set."""
        array = np.asarray(list(pairs) if not isinstance(pairs, np.ndarray) else pairs)
        if not array.size:
            array = np.empty((0, 2), np.int64)
        _require_pairs(array)
        array = array.astype(np.int64)
        if len(array) and (array.min() < 0 or (array.max(axis=0) >= (n_images, n_texts)).any()):
            raise UserError(
                f"a pair lies outside {n_images:,} images x {n_texts:,} texts; ids count from 0."
            )
        keys = np.sort(array[:, 0] * n_texts + array[:, 1])
        keys = keys[np.diff(keys, prepend=-1) > 0]
        array = np.stack([keys // max(n_texts, 1), keys % max(n_texts, 1)], axis=1)
        return cls(pairs=array, n_images=n_images, n_texts=n_texts)

    @cached_property
    def _keys(self) -> Ids:
        return self.pairs[:, 0] * self.n_texts + self.pairs[:, 1]

    @cached_property
    def starts(self) -> Ids:
        """Where the pairs of each image begin in `pairs`. (N + 1,)"""
        return np.searchsorted(self.pairs[:, 0], np.arange(self.n_images + 1))

    @cached_property
    def swapped(self) -> Positives:
        """The relation with images and texts exchanged."""
        return Positives.from_pairs(
            self.pairs[:, ::-1], n_images=self.n_texts, n_texts=self.n_images
        )

    def texts_of(self, image_id: int) -> Ids:
        """Return the texts that belong to one image, in ascending order."""
        start, stop = self.starts[image_id : image_id + 2]
        return self.pairs[start:stop, 1]

    def images_of(self, text_id: int) -> Ids:
        """Return the images that belong to one text, in ascending order."""
        return self.swapped.texts_of(text_id)

    def texts_per_image(self) -> Ids:
        """Return the number of texts of each image. (N,)"""
        return np.diff(self.starts)

    def contains(self, image_ids: npt.ArrayLike, text_ids: npt.ArrayLike) -> Bools:
        """Return whether images and texts belong together; the arguments are broadcast."""
        keys = np.asarray(image_ids, np.int64) * self.n_texts + np.asarray(text_ids, np.int64)
        if not len(self._keys):
            return np.zeros(keys.shape, dtype=bool)
        found = np.searchsorted(self._keys, keys).clip(max=len(self._keys) - 1)
        return np.asarray(self._keys[found] == keys)

    def among(self, image_ids: Ids, text_ids: Ids) -> Bools:
        """Return which of some images and some texts belong together. (images, texts)

        The few images of these texts are looked up, not every combination: a batch does this at
        each step.

        >>> positives = Positives.from_pairs([(0, 0), (1, 1), (1, 2)], n_images=2, n_texts=3)
        >>> positives.among(np.array([1]), np.array([2, 0, 2])).tolist()
        [[True, False, True]]
        """
        columns, images = self.swapped.of_images(text_ids).pairs.T
        distinct, rows = np.unique(image_ids, return_inverse=True)
        places = np.searchsorted(distinct, images).clip(max=len(distinct) - 1)
        hit = distinct[places] == images
        found = np.zeros((len(distinct), len(text_ids)), dtype=bool)
        found[places[hit], columns[hit]] = True
        return found[rows]

    def of_images(self, image_ids: Ids) -> Positives:
        """Return the relation of some images only, numbered in this order."""
        starts = self.starts[image_ids]
        counts = self.starts[image_ids + 1] - starts
        first = np.cumsum(counts) - counts
        places = np.arange(counts.sum()) + np.repeat(starts - first, counts)
        images = np.repeat(np.arange(len(image_ids)), counts)
        pairs = np.stack([images, self.pairs[places, 1]], axis=1)
        return Positives(pairs, n_images=len(image_ids), n_texts=self.n_texts)

    def within(self, images: slice, texts: slice) -> tuple[Ids, Ids]:
        """Return the pairs inside a block of the score matrix, as its rows and columns."""
        start, stop = self.starts[[images.start, images.stop]]
        rows, columns = self.pairs[start:stop].T
        inside = (columns >= texts.start) & (columns < texts.stop)
        return rows[inside] - images.start, columns[inside] - texts.start


def _require_pairs(pairs: npt.NDArray[np.generic]) -> None:
    if pairs.dtype.kind not in "iu" or pairs.shape[1:] != (2,):
        raise UserError(
            f"pairs has the shape {pairs.shape} and the dtype {pairs.dtype}; expected (P, 2) whole "
            "numbers, an image's and a text's a row."
        )


@dataclass(frozen=True)
class Texts:
    """Word ids of some texts, padded at the end: `<start> w1 ... wn <end> <pad> ...`.

    `vectors` is what a frozen text tower makes of them: one vector each, or a state of each word.
    """

    tokens: Tensor  # (B, T)
    lengths: Tensor  # (B,)
    vectors: Tensor | None = None  # (B, F) or (B, T, F)

    def __post_init__(self) -> None:
        require_tensor("tokens", self.tokens, ("B", "T"), of="int")
        require_tensor("lengths", self.lengths, (len(self.tokens),), of="int")
        if self.vectors is not None:
            size, longest = self.tokens.shape
            shapes = (size, "F"), (size, longest, "F")
            require_tensor("vectors", self.vectors, *shapes, of="fraction")

    @property
    def mask(self) -> Tensor:
        """True where there is a word. (B, T)"""
        import torch

        positions = torch.arange(self.tokens.shape[1], device=self.tokens.device)
        return positions < self.lengths[:, None]

    def __getitem__(self, rows: Tensor) -> Texts:
        vectors = None if self.vectors is None else self.vectors[rows]
        return Texts(self.tokens[rows], self.lengths[rows], vectors)

    def to(self, device: str | device) -> Texts:
        vectors = None if self.vectors is None else self.vectors.to(device)
        return Texts(self.tokens.to(device), self.lengths.to(device), vectors)


@dataclass(frozen=True)
class Encoding:
    """The output of an encoder for images or texts: one vector each, or one per region or word.

    `context` carries the region states that an auxiliary loss reads; scoring ignores it.
    """

    vectors: Tensor  # (N, D) or (N, L, D)
    mask: Tensor | None = None  # (N, L), true where there is a region or word; padding is last
    context: Tensor | None = None  # (N, R, D)

    def __post_init__(self) -> None:
        require_tensor("vectors", self.vectors, ("N", "D"), ("N", "L", "D"), of="fraction")
        if self.mask is not None:
            require_tensor("vectors", self.vectors, ("N", "L", "D"), of="fraction")
            require_tensor("mask", self.mask, tuple(self.vectors.shape[:2]), of="bool")
        if self.context is not None:
            require_tensor("context", self.context, (len(self), "R", "D"), of="fraction")

    def __len__(self) -> int:
        return len(self.vectors)

    def __getitem__(self, rows: slice | Tensor) -> Encoding:
        mask, context = self.mask, self.context
        return Encoding(
            self.vectors[rows],
            None if mask is None else mask[rows],
            None if context is None else context[rows],
        )

    def without_context(self) -> Encoding:
        return Encoding(self.vectors, self.mask)

    @property
    def nbytes(self) -> int:
        return self.vectors.nbytes

    @property
    def row_nbytes(self) -> int:
        return self.vectors[0].nbytes


@dataclass(frozen=True)
class AlignedIdx:
    """Aligned images and texts: entry b of one goes with entry b of the other."""

    images: Tensor  # (b,)
    texts: Tensor  # (b,)


@dataclass(frozen=True)
class StepBatch:
    """What one process reads of a batch: its positive pairs, and in round two their negatives.

    Every image and text is present once, however many roles it has; the roles index into them.
    Where several processes share a batch of B pairs, each reads b of them.

    pairs     (i, t): the positive pairs
    offline   (i_off, t_off): the offline hard negatives of the pair
    partners  (i~_off, t~_off): the image of t_off and a text of i_off
    """

    regions: Tensor  # (images, R, F)
    texts: Texts
    pairs: AlignedIdx
    negatives: Tensor  # (B, B), true where an image and a text do not belong together
    offline: AlignedIdx | None = None
    partners: AlignedIdx | None = None
    derived_mask: Tensor | None = None  # (B,), true where both derived pairs are negatives
    likeness: Tensor | None = None  # (B, B), of a text and the captions of an image, 0 to 1
    i2t_matches: Tensor | None = None  # (B,), probability that t_off belongs to i all the same
    t2i_matches: Tensor | None = None  # (B,), that i_off belongs to t
    share: float = 1.0  # b divided by the pairs of the whole step
