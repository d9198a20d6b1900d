"""What a region is: where its features come from, and which part of the picture it covers.

A model learns from the regions of one backbone; pictures that it meets later must be treated
alike, to the last weight. `RegionSource` says how, is kept with every data set that was built from
pictures, and `PictureReader` follows it, for a single picture at a time. Boxes are shares of the
picture's width and height, so that they fit whatever size it is shown in.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Barrier
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from aoq.errors import UserError
from aoq.features.backbones import (
    DEFAULT_BACKBONE,
    DEFAULT_ID,
    GRID,
    Backbone,
    Regions,
    load_backbone,
)
from aoq.features.pictures import Canvas, Picture, Pixels, decode
from aoq.parsing import shown

GRIDS = (1, 2, 3, 6)  # what the kept grid can be pooled to: whole cells only

Boxes = npt.NDArray[np.float32]  # (..., R, 4): left, top, right, bottom, shares of the picture


@dataclass(frozen=True)
class RegionSource:
    """What turned pictures into regions, so that another picture can be treated alike."""

    backbone: str = DEFAULT_BACKBONE
    "`efficientnet-lite0`, or a vision model of transformers: its name on the hub, or its folder."
    id: str = DEFAULT_ID
    "Network, weights and kept grid: what the cache keeps features under."
    grid: int = GRID
    "Cells a side, after pooling."

    def __post_init__(self) -> None:
        if self.grid not in GRIDS:  # its cells would cut those that are kept
            raise UserError(
                f"a grid of {self.grid} x {self.grid} regions cannot be pooled from "
                f"{GRID} x {GRID}; expected 1, 2, 3 or 6."
            )

    @classmethod
    def of_backbone(cls, name: str = DEFAULT_BACKBONE, *, grid: int = GRID) -> Self:
        """The regions that a backbone makes, as it is at this moment."""
        if name == DEFAULT_BACKBONE:
            return cls(name, DEFAULT_ID, grid)
        if Path(name).is_dir():
            name = str(Path(name).resolve())
        return cls(name, load_backbone(name).id, grid)

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Self:
        """What `as_dict` wrote; a `UserError` where something else did."""
        backbone, source_id, grid = (fields.get(name) for name in ("backbone", "id", "grid"))
        named = isinstance(backbone, str) and isinstance(source_id, str)
        if not named or type(grid) is not int:
            raise UserError(
                f"{shown(fields)} is no source of regions; expected the backbone, its id and a "
                "grid; build the data set again."
            )
        return cls(str(backbone), str(source_id), grid)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def load(self) -> Backbone:
        """The very network that made the regions, or a `UserError`."""
        backbone = load_backbone(self.backbone)
        if backbone.id != self.id:
            raise UserError(
                f"{self.backbone} is not the network that made the features: it is {backbone.id}; "
                f"expected {self.id}; bring back its weights, or build the data set again."
            )
        return backbone


DEFAULT_SOURCE = RegionSource()


class PictureReader:
    """Regions of single pictures, with the network held in memory; any thread may call it.

    The network computes on threads of its own, one core each, as `aoq.features.extract` does: sums
    that are shared among cores are rounded differently. There are `threads` of them, or as many as
    torch may use here.
    """

    def __init__(self, source: RegionSource, *, threads: int | None = None) -> None:
        self._backbone = source.load()
        self._grid = source.grid
        self._cores = one_core_each(threads)

    @property
    def canvas(self) -> Canvas:
        """What pictures are decoded to where somebody else does it."""
        return self._backbone.canvas

    def regions(self, picture: Picture | Pixels, /) -> Regions:
        """The regions of a file, of the content of one, or of what `decode` makes of it. (R, F)

        All are what a build makes of the file.
        """
        return self._cores.submit(self._read, picture).result()

    def _read(self, picture: Picture | Pixels) -> Regions:
        if not isinstance(picture, np.ndarray):
            picture = decode(picture, self.canvas)
        return pool_regions(self._backbone([picture])[0], self._grid)


def one_core_each(threads: int | None = None) -> ThreadPoolExecutor:
    """So many threads, or as many as torch may use, each on one core: none waits for another.

    All begin here, because torch gives every thread that begins later the number set last.
    """
    import torch

    def stay_on_one_core() -> None:
        torch.get_num_threads()  # or the first operation sets that number over ours
        torch.set_num_threads(1)

    cores = torch.get_num_threads()
    threads = threads or cores
    pool = ThreadPoolExecutor(threads, initializer=stay_on_one_core)
    together = Barrier(threads)
    list(pool.map(lambda _: together.wait(), range(threads)))
    torch.set_num_threads(cores)
    return pool


def pool_regions(regions: Regions, grid: int) -> Regions:
    """The means of neighbouring cells, in single precision. (36, F) -> (grid * grid, F)

    >>> cells = np.arange(36, dtype=np.float16)[:, None]
    >>> pool_regions(cells, 2)[:, 0].tolist()
    [7.0, 10.0, 25.0, 28.0]
    """
    side = GRID // grid
    cells = regions.reshape(grid, side, grid, side, -1)
    means = cells.mean(axis=(1, 3), dtype=np.float32)  # (grid, grid, F)
    rows: Regions = means.reshape(grid * grid, -1).astype(np.float16)
    return rows


def grid_boxes(grid: int) -> Boxes:
    """The cells of a grid, row by row. (grid * grid, 4)

    >>> grid_boxes(2)[1].tolist()
    [0.5, 0.0, 1.0, 0.5]
    """
    top, left = np.divmod(np.arange(grid * grid), grid)
    return (np.stack([left, top, left + 1, top + 1], axis=1) / grid).astype(np.float32)
