"""Regions: where their features come from, and which part of the picture they cover.

A model learns from the regions of one backbone, and later pictures must be processed identically,
to the last weight. `RegionSource` states how, is saved with every data set that was built from
pictures, and `PictureReader` applies it to a single picture at a time. A network's own vector of
the whole picture counts as one region, and so does each state of a transformer. Boxes are shares of
the picture's width and height, so that they are valid at any display size.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from math import isqrt
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
from aoq.features.outputs import PATCHES, Output
from aoq.features.pictures import Canvas, Picture, Pixels, decode
from aoq.parsing import shown

GRIDS = (1, 2, 3, 6)  # grids of whole cells that the cached grid can be pooled to

Boxes = npt.NDArray[np.float32]  # (..., R, 4): left, top, right, bottom, shares of the picture


@dataclass(frozen=True)
class RegionSource:
    """How pictures were turned into regions, so that other pictures get the same treatment."""

    backbone: str = field(default=DEFAULT_BACKBONE, compare=False)
    """`efficientnet-lite0`, or a vision model of transformers: its name on the hub, or its folder,
    which may have another place on another machine."""
    id: str = DEFAULT_ID
    "Network, weights and cached grid: the key of features in the cache."
    grid: int = GRID
    "Cells per side, after pooling."
    output: str = "patches"
    "Cells of a grid, one vector, states that reach a block, or pixels: the name of an `Output`."

    def __post_init__(self) -> None:
        if self.grid not in GRIDS:  # its cells would cut those in the cache
            raise UserError(
                f"a grid of {self.grid} x {self.grid} regions cannot be pooled from "
                f"{GRID} x {GRID}; expected 1, 2, 3 or 6."
            )

    @classmethod
    def of_backbone(
        cls, name: str = DEFAULT_BACKBONE, *, grid: int = GRID, output: Output = PATCHES
    ) -> Self:
        """Describe the regions that a backbone makes with its current weights."""
        if name == DEFAULT_BACKBONE and output == PATCHES:
            return cls(name, DEFAULT_ID, grid)
        if Path(name).is_dir():
            name = str(Path(name).resolve())
        grid = grid if output.kind == "patches" else 1
        return cls(name, load_backbone(name, output).id, grid, str(output))

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Self:
        """Read what `as_dict` wrote; raise a `UserError` for anything else."""
        backbone, source_id, grid = (fields.get(name) for name in ("backbone", "id", "grid"))
        named = isinstance(backbone, str) and isinstance(source_id, str)
        output = Output.parse(fields.get("output", "patches"))
        if not named or type(grid) is not int:
            raise UserError(
                f"{shown(fields)} is not a source of regions; expected the backbone, its id and a "
                "grid; build the data set again."
            )
        return cls(str(backbone), str(source_id), grid, str(output))

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def load(self) -> Backbone:
        """Load the network that made the regions; raise a `UserError` if it has changed."""
        backbone = load_backbone(self.backbone, Output.parse(self.output))
        if backbone.id != self.id:
            raise UserError(
                f"{self.backbone} is not the network that made the features: it is {backbone.id}; "
                f"expected {self.id}; restore its weights, or build the data set again."
            )
        return backbone

    def differs_in_precision(self, other: RegionSource) -> bool:
        """Return whether two sources are the same, except for the precision of the network."""
        precision = Output.parse(other.output).precision
        output = str(replace(Output.parse(self.output), precision=precision))
        other_id = self.id.removesuffix(self.output) + output
        return self != other and replace(self, id=other_id, output=output) == other

    @property
    def is_grid(self) -> bool:
        """Whether the regions are cells, places in the picture that can be shown."""
        return Output.parse(self.output).kind == "patches"

    def fits(self, computed: Regions) -> bool:
        """Return whether an array can be what the network computes of one picture."""
        output = Output.parse(self.output)
        rows = {"patches": GRID * GRID, "input": 3}.get(output.kind, 1)
        is_open = output.kind == "states"
        return computed.ndim == 2 and (is_open or len(computed) == rows)

    def finish(self, computed: Regions) -> Regions:
        """Make the features of a picture from what the network computes. (R, F), (3, S, S)"""
        kind = Output.parse(self.output).kind
        if kind == "input":
            side = isqrt(computed.shape[1])
            return computed.reshape(3, side, side)
        return pool_regions(computed, self.grid) if kind == "patches" else computed


DEFAULT_SOURCE = RegionSource()


class PictureReader:
    """Reads the regions of single pictures with a network in memory; safe for several threads.

    The network computes on threads of its own, one core each, as in `aoq.features.extract`: sums
    that are split among cores are rounded differently. The number of threads is `threads`, or as
    many as torch may use.
    """

    def __init__(self, source: RegionSource, *, threads: int | None = None) -> None:
        self._backbone = source.load()
        self._source = source
        self._cores = one_core_each(threads)

    @property
    def canvas(self) -> Canvas:
        """The size for decoding pictures outside of this reader."""
        return self._backbone.canvas

    def regions(self, picture: Picture | Pixels, /) -> Regions:
        """Return the regions of a file, of a file's content, or of decoded pixels. (R, F)

        The result equals that of a build from the file.
        """
        return self._cores.submit(self._read, picture).result()

    def _read(self, picture: Picture | Pixels) -> Regions:
        if not isinstance(picture, np.ndarray):
            picture = decode(picture, self.canvas)
        return self._source.finish(self._backbone([picture])[0])


def one_core_each(threads: int | None = None) -> ThreadPoolExecutor:
    """Start `threads` threads, or as many as torch may use, each on one core.

    All start here, because torch gives every thread that starts later the number set last.
    """
    import torch

    def stay_on_one_core() -> None:
        torch.get_num_threads()  # otherwise the first operation overrides our number
        torch.set_num_threads(1)

    cores = torch.get_num_threads()
    threads = threads or cores
    pool = ThreadPoolExecutor(threads, initializer=stay_on_one_core)
    started = Barrier(threads)
    list(pool.map(lambda _: started.wait(), range(threads)))
    torch.set_num_threads(cores)
    return pool


def pool_regions(regions: Regions, grid: int) -> Regions:
    """Average neighbouring cells, in single precision. (36, F) -> (grid * grid, F)

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
    """Return the cells of a grid, row by row. (grid * grid, 4)

    >>> grid_boxes(2)[1].tolist()
    [0.5, 0.0, 1.0, 0.5]
    """
    top, left = np.divmod(np.arange(grid * grid), grid)
    return (np.stack([left, top, left + 1, top + 1], axis=1) / grid).astype(np.float32)
