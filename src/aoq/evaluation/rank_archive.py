"""One file for the ranks of many trainings, beside their results.

Intervals and tests need the rank of every pair by every training, which is much for a repository as
hundreds of files, and little as one (compressed, 8 KB for a training on 5,000 pairs). The file also
holds the positive pairs of each split, so that all figures follow from it without the data set.

A finished training adds its ranks to what is there: the file is read and replaced as a whole, under
a lock that other trainings wait for.
"""

from __future__ import annotations

import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from aoq.evaluation.protocols import JudgedFold
from aoq.evaluation.ranks import PairRanks
from aoq.manifest import check_file, damaged_file, opened_alone
from aoq.storage import atomic_file
from aoq.types import Positives

_PAIRS = "pairs"
Arrays = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class RankArchive:
    """The ranks beside a file of results: `results.jsonl` has `results.ranks.npz`.

    A part is a split of a data set, such as `test-38ee540d5f2a85c9`; names are those of trainings.
    """

    path: Path

    @classmethod
    def beside(cls, results: Path) -> RankArchive:
        return cls(results.with_suffix(".ranks.npz"))

    def read(self, part: str, name: str) -> JudgedFold | None:
        """Return the ranks of a training; none if they are not there."""
        found = self._read(f"{part}/{name}", f"{part}/{_PAIRS}")
        if len(found) < 2:
            return None
        (images, texts), pairs = (array.astype(np.int64) for array in found.values())
        n_images, n_texts = map(int, pairs[-1])
        positives = Positives.from_pairs(pairs[:-1], n_images=n_images, n_texts=n_texts)
        return JudgedFold(positives, PairRanks(images=images, texts=texts), data=part)

    def keep(self, part: str, name: str, fold: JudgedFold) -> None:
        """Add the ranks of a training, or replace them."""
        positives = fold.positives
        sizes = [[positives.n_images, positives.n_texts]]
        added = {
            f"{part}/{name}": np.stack([fold.pair_ranks.images, fold.pair_ranks.texts]),
            f"{part}/{_PAIRS}": np.concatenate([positives.pairs, sizes]),
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with opened_alone(self.path):
            arrays = self._read()
            if all(np.array_equal(arrays.get(key, ()), array) for key, array in added.items()):
                return
            arrays |= {key: _smallest(array) for key, array in added.items()}
            ordered: dict[str, Any] = dict(sorted(arrays.items()))
            with atomic_file(self.path) as temporary, temporary.open("wb") as file:
                np.savez_compressed(file, **ordered)

    def names(self, part: str) -> list[str]:
        """List the trainings whose ranks are kept."""
        keys = (key.split("/") for key in self._read())
        return [name for of, name in keys if of == part and name != _PAIRS]

    def _read(self, *keys: str) -> Arrays:
        """Read some arrays, or all; those that are missing are left out."""
        if not self._is_there():
            return {}
        try:
            check_file(self.path)
            with self.path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                return {key: arrays[key] for key in keys or arrays.files if key in arrays.files}
        except (zipfile.BadZipFile, zlib.error, ValueError, EOFError) as error:
            raise damaged_file(self.path, str(error)) from None

    def _is_there(self) -> bool:
        """An empty file is one that a first training is about to write."""
        return self.path.is_file() and self.path.stat().st_size > 0


def _smallest(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return an array in the smallest integer type that holds it."""
    return array.astype(np.min_scalar_type(array.max()))
