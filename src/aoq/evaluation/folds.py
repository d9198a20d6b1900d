"""Folds: consecutive parts of the images, each with the texts that belong to them.

COCO's test set of 5,000 images is evaluated whole ("5K") and in five folds of 1,000, whose figures
are averaged ("1K", "5-fold"). A fold is a small test set: its queries are answered by its own
images and texts only. Everything is encoded once; a fold selects what it needs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from aoq.errors import UserError
from aoq.scoring.encoded import EncodedDataset, Rows
from aoq.types import Ids, Positives, require_count

E = TypeVar("E")


@dataclass(frozen=True, eq=False)
class SomeRows(Generic[E]):
    """Some of the encoded images or texts, numbered in the order of `ids`."""

    rows: Rows[E]
    ids: Tensor

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, rows: slice | Tensor) -> E:
        ids = self.ids[rows]
        if isinstance(rows, slice) and rows.step is None and self._is_consecutive and len(ids):
            return self.rows[int(ids[0]) : int(ids[-1]) + 1]  # no copy needed
        return self.rows[ids]

    @cached_property
    def _is_consecutive(self) -> bool:
        return bool((self.ids.diff() == 1).all())

    @property
    def nbytes(self) -> int:
        return self.rows.nbytes

    @property
    def row_nbytes(self) -> int:
        return self.rows.row_nbytes


@dataclass(frozen=True, eq=False)
class Fold:
    """Images and texts of a data set and their positive pairs, numbered from 0 within the fold."""

    images: Ids
    texts: Ids
    positives: Positives

    def of(self, encoded: EncodedDataset[E]) -> EncodedDataset[E]:
        """Return the fold's part of an encoded data set."""
        return EncodedDataset(
            images=SomeRows(encoded.images, torch.from_numpy(self.images)),
            texts=SomeRows(encoded.texts, torch.from_numpy(self.texts)),
            device=encoded.device,
        )


def split_into_folds(positives: Positives, count: int) -> list[Fold]:
    """Split the images into consecutive parts; the first parts take one of the remainder each.

    A text that belongs to images of several folds is in each of them.

    >>> pairs = [(0, 0), (1, 1), (1, 2), (2, 3), (2, 0)]
    >>> positives = Positives.from_pairs(pairs, n_images=3, n_texts=4)
    >>> [(fold.images.tolist(), fold.texts.tolist()) for fold in split_into_folds(positives, 2)]
    [([0, 1], [0, 1, 2]), ([2], [0, 3])]
    """
    require_count("folds", count)
    if count > positives.n_images:
        raise UserError(
            f"{count:,} folds of {positives.n_images:,} images are not possible; "
            "expected at least 1, and no more than there are images."
        )
    parts = np.array_split(np.arange(positives.n_images), count)
    return [_fold_of(positives.of_images(images), images) for images in parts]


def _fold_of(positives: Positives, images: Ids) -> Fold:
    """Return the fold of these images; its texts are still numbered as in the whole."""
    texts, columns = np.unique(positives.pairs[:, 1], return_inverse=True)
    pairs = np.stack([positives.pairs[:, 0], columns], axis=1)
    return Fold(
        images, texts, Positives.from_pairs(pairs, n_images=len(images), n_texts=len(texts))
    )
