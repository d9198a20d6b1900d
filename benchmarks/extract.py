"""Pictures to regions, against a plain loop: open, resize, compute, one picture after the other.

The loop is what people write first: Pillow at full size, the network as it is packaged, on all
cores. Photos are those of Flickr8k, in the folder that AOQ_FLICKR8K names; where they are not,
nothing is measured.
"""

from __future__ import annotations

import os
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from aoq.features.backbones import GRID
from aoq.features.efficientnet import EfficientNetLite, load_network
from aoq.features.extract import extract_pictures
from aoq.features.regions import DEFAULT_SOURCE
from benchmarks.harness import Comparison, Task

BESIDE = Path(__file__).resolve().parents[2] / "shared" / "flickr8k"
PHOTOS = Path(os.environ.get("AOQ_FLICKR8K", BESIDE)) / "images"
COUNT = 200


def extraction_tasks(workers: int) -> tuple[Task, Task]:
    pictures = sorted(PHOTOS.glob("*.jpg"))[:COUNT]
    side = EfficientNetLite.canvas.side
    network = load_network()

    def ours() -> object:
        """With an empty cache every time, and all regions stored in it."""
        with tempfile.TemporaryDirectory() as cache:
            os.environ["AOQ_CACHE"] = cache
            return extract_pictures(pictures, DEFAULT_SOURCE, workers=workers)

    @torch.inference_mode()
    def plain() -> list[Tensor]:
        regions = []
        for picture in pictures:
            with Image.open(picture) as image:
                pixels = np.array(image.convert("RGB").resize((side, side)))
            batch = torch.from_numpy(pixels).permute(2, 0, 1)[None]
            cells = network.extract_features((batch.float() - 127) / 128)
            regions.append(adaptive_avg_pool2d(cells, GRID).half())
        return regions

    return ours, plain


COMPARISONS = [
    Comparison(
        name=f"extract, {decoding}",
        what=f"{COUNT} photos of Flickr8k to {GRID} x {GRID} regions, {decoding}, stored",
        baseline="one photo after the other, the packaged network on all cores, nothing stored",
        setup=partial(extraction_tasks, workers),
        repeats=5,
        facts={"pictures": COUNT, "workers": workers},
    )
    for decoding, workers in (("decoded where computed", 0), ("decoded by 2 workers", 2))
    if PHOTOS.is_dir()
]
