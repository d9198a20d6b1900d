"""Features of many images on disk: .npy files, memory-mapped and checked block by block."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from aoq.errors import UserError
from aoq.manifest import BlockCheck
from aoq.types import Ids

Array = npt.NDArray[Any]


def map_features(path: Path) -> Array:
    """Map an .npy file into memory, with a region axis added if it has none. (N, R, F)"""
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


class CheckedFeatures:
    """Features of a built split; each block of the file is checked when it is first read."""

    def __init__(self, path: Path) -> None:
        self._features = map_features(path)
        self._content = np.memmap(path, mode="r").data
        self._blocks = BlockCheck(path)
        self._row_bytes = self._features.itemsize * math.prod(self._features.shape[1:])
        self._start = len(self._content) - self._row_bytes * len(self)
        self._blocks.check(self._content, 0, self._start)

    def __len__(self) -> int:
        return len(self._features)

    def __getitem__(self, ids: Ids) -> Array:
        for row in np.unique(ids).tolist():
            start = self._start + row * self._row_bytes
            self._blocks.check(self._content, start, start + self._row_bytes)
        rows: Array = self._features[ids]
        return rows
