"""Uses any vision model of Hugging Face's transformers as a backbone, by hub name or folder.

Convolutional networks return a map of cells, transformers a row of patches after a few special
tokens; both are pooled to the grid of the cache. A model's own vector of the whole picture is what
its dual encoder compares with texts, where it has one, else its pooler's output. Weights are read
from safetensors only and no code of a model's repository is ever run. A model's id is a hash of the
weights that make its regions and of its preprocessing, so that features of two models never mix.
"""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from math import isqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from aoq.errors import UserError, require_packages
from aoq.features.backbones import GRID, PATCHES, Output, Regions
from aoq.features.blocks import BeforeBlock, find_blocks
from aoq.features.pictures import Canvas, Pixels
from aoq.features.pretrained import VISION, Role, load_half, load_processor, unusable
from aoq.storage import hash_parts

if TYPE_CHECKING:
    from torch import Tensor, nn

DIGITS = 12  # of the hash, in the id


class VisionModel:
    """A vision model, or the vision half of an image-text model."""

    def __init__(self, name: str, output: Output = PATCHES) -> None:
        require_packages("transformers", extra="transformers")
        self._name = name
        self._output = output
        self.network, self.processor, unused = _load(name, output)
        self.canvas = canvas_of(name, self.processor, whole=output.kind == "patches")
        kind = f"{GRID}x{GRID}" if output.kind == "patches" else str(output)
        digest = _hash_model(self.network, self.processor, without=unused)
        self.id = f"{Path(name).name}-{digest[:DIGITS]}-{kind}"
        self.width = self._look_at_nothing().shape[2]

    def __call__(self, pixels: list[Pixels], /) -> Regions:
        import torch

        if self._output.kind == "pixels":
            flat = np.stack(pixels).transpose(0, 3, 1, 2)
            return flat.reshape(len(pixels), 3, -1)
        with torch.inference_mode(), self._precision():
            seen = self.network(pixel_values=self.prepare(pixels))
        rows: Regions
        if self._output.kind == "pooled":
            rows = pooled_vector(seen)[:, None].float().numpy()  # (B, 1, F)
        elif self._output.kind == "states":
            rows = seen.to(torch.float16).numpy()  # (B, L, F)
        else:
            rows = _grid_of(seen.last_hidden_state)
        return rows

    def _precision(self) -> AbstractContextManager[Any]:
        import torch

        low = self._output.precision == "bfloat16"
        return torch.autocast("cpu", torch.bfloat16) if low else nullcontext()

    def prepare(self, pixels: list[Pixels]) -> Tensor:
        """Scale and normalise decoded pictures as the model expects. (B, 3, side, side)"""
        steps = ("do_resize", "do_center_crop")  # done when the picture was decoded
        done = {step: False for step in steps if getattr(self.processor, step, None)}
        ready: Tensor = self.processor(images=pixels, return_tensors="pt", **done)["pixel_values"]
        return ready

    def _look_at_nothing(self) -> Regions:
        """Compute the regions of a black picture, to check the output and find its width."""
        try:
            return self([np.zeros((self.canvas.side, self.canvas.side, 3), np.uint8)])
        except UserError:
            raise
        except Exception as error:  # models raise almost anything
            reason = f"it cannot process a picture: {error}"
            raise unusable(self._name, reason, VISION) from error


def pooled_vector(seen: Any) -> Tensor:
    """Return a model's vector of the whole picture, or its first token if it has no pooler. (B, F)

    Models with a projection to the joint space return it as `image_embeds`.
    """
    vector = getattr(seen, "image_embeds", None)
    if vector is None:
        vector = getattr(seen, "pooler_output", None)
    if vector is None:
        vector = seen.last_hidden_state[:, 0]
    pooled: Tensor = vector.flatten(1)
    return pooled


def _grid_of(seen: Tensor) -> Regions:
    """Pool the last layer's output to the grid of the cache. (B, 36, F)"""
    import torch
    from torch.nn.functional import adaptive_avg_pool2d

    grid = adaptive_avg_pool2d(as_map(seen), GRID)  # (B, F, 6, 6)
    rows: Regions = grid.flatten(2).mT.to(torch.float16).numpy()
    return rows


def as_map(seen: Tensor) -> Tensor:
    """Arrange the last layer's output as a map. (B, F, h, w), or (B, tokens, F) -> (B, F, h, w)

    Patches come last and form a square; what precedes them are class, distillation or register
    tokens, always fewer than would make the square larger.
    """
    if seen.ndim == 3:
        side = isqrt(seen.shape[1])
        seen = seen[:, -side * side :].mT.unflatten(2, (side, side))
    height, width = seen.shape[2:]
    if min(height, width) < GRID:
        raise UserError(
            f"the model returns {height} x {width} cells; expected {GRID} x {GRID} or "
            "more; choose one with smaller patches or a larger input."
        )
    return seen


def _load(name: str, output: Output) -> tuple[Any, Any, set[str]]:
    """Load network, image processor, and the names of weights that are missing in the file."""
    processor = load_processor(name)
    if output.kind == "pixels":
        return None, processor, set()
    model, missing = load_half(name, "vision", projected=output.kind != "patches", role=VISION)
    # Regions are not pooled, so a pooler without weights does no harm.
    needed = [key for key in sorted(missing) if output.kind == "pooled" or "pooler" not in key]
    if needed:
        reason = f"its weights are incomplete, {needed[0]} is missing"
        raise unusable(name, reason, VISION)
    if output.kind == "states":
        model = BeforeBlock(model, require_blocks(name, model, VISION, at_least=output.block))
    return model, processor, missing


def require_blocks(name: str, network: nn.Module, role: Role, *, at_least: int) -> int:
    """Return `at_least`, if a network has so many blocks at which it can be split."""
    blocks = find_blocks(network)
    if blocks is None:
        raise unusable(name, "it has no list of equal blocks at which it could be split", role)
    if len(blocks) < at_least:
        raise unusable(name, f"it has {len(blocks)} blocks, not {at_least}", role)
    return at_least


def canvas_of(name: str, processor: Any, *, whole: bool) -> Canvas:
    """Return the input size of the model, and how pictures are fitted to it.

    The model's own preprocessing may cut off the ends of a picture. For a grid, whose cells are
    places in the photo, the `whole` picture is squashed instead.
    """
    cut = getattr(processor, "do_center_crop", False)
    size = processor.crop_size if cut else processor.size
    height = size["height"] or size["shortest_edge"]
    width = size["width"] or size["shortest_edge"]
    if not height or height != width:
        reason = f"its input is {height} x {width} pixels, not square"
        raise unusable(name, reason, VISION)
    resample = getattr(processor, "resample", None)
    shortest = None if whole or not cut else processor.size["shortest_edge"]
    canvas = Canvas(int(height), shortest=shortest and int(shortest))
    return canvas if resample is None else replace(canvas, resample=int(resample))


def _hash_model(model: Any, processor: Any, *, without: set[str]) -> str:
    description = ["" if model is None else type(model).__name__, processor.to_dict()]
    parts: list[bytes | memoryview] = [json.dumps(description, sort_keys=True).encode()]
    weights_of = {} if model is None else model.state_dict()
    for name, weights in sorted(weights_of.items()):
        if name not in without:
            parts += [name.encode(), memoryview(weights.contiguous().numpy()).cast("B")]
    return hash_parts(*parts)
