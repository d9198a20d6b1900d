"""Random views of photos in training: crops of random size and shape, and mirror images."""

from __future__ import annotations

import math
import re

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

from aoq.data.dataset import PairDataset
from aoq.randomness import image_generator
from aoq.types import Bools, Floats, Ids

_SMALLEST_AREA = 0.6  # of a crop, as a share of the photo
_LARGEST_RATIO = 4 / 3  # of width to height, or of height to width
_SIDES = re.compile(r"\b(left|right)", re.IGNORECASE)


def mirrorable(dataset: PairDataset) -> Bools:
    """Return which images none of whose captions speaks of left or right. (N,)"""
    speaks = np.array([bool(_SIDES.search(caption)) for caption in dataset.captions], dtype=bool)
    images, texts = dataset.positives.pairs.T
    found = np.ones(len(dataset), dtype=bool)
    np.logical_and.at(found, images, ~speaks[texts])
    return found


def draw_views(image_ids: Ids, may_mirror: Bools, *, seed: int, epoch: int, step: int) -> Floats:
    """Draw a view of each image, as the affine map from its places to the photo's. (B, 2, 3)

    A crop has 60 to 100 % of the area, a shape of 3:4 to 4:3, and lies anywhere inside; half of the
    images that may be mirrored are. A view depends on nothing but the image and the step, so that
    processes that share a step see the same.
    """
    views = np.zeros((len(image_ids), 2, 3), np.float32)
    for view, image, mirrors in zip(views, image_ids.tolist(), may_mirror, strict=True):
        random = image_generator(seed, epoch=epoch, step=step, image=image)
        area = random.uniform(_SMALLEST_AREA, 1.0)
        ratio = math.exp(random.uniform(-1.0, 1.0) * math.log(_LARGEST_RATIO))
        size = np.minimum(np.sqrt([area * ratio, area / ratio]), 1.0)  # width, height
        view[:, 2] = random.uniform(-1.0, 1.0, 2) * (1.0 - size)
        is_mirrored = random.random() < 0.5 and mirrors
        view[0, 0], view[1, 1] = -size[0] if is_mirrored else size[0], size[1]
    return views


def apply_views(pixels: Tensor, views: Floats) -> Tensor:
    """Cut the views out of pictures, scaled to the pictures' size. (B, 3, S, S)"""
    maps = torch.from_numpy(views).to(pixels.device)
    places = affine_grid(maps, list(pixels.shape), align_corners=False)
    seen = grid_sample(pixels.float(), places, padding_mode="border", align_corners=False)
    return seen.round().to(pixels.dtype)
