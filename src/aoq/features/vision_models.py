"""Uses any vision model of Hugging Face's transformers as a backbone, by hub name or folder.

Convolutional networks return a map of cells, transformers a row of patches after a few special
tokens; both are pooled to the grid of the cache. A model's own vector of the whole picture is what
its dual encoder compares with texts, where it has one, else its pooler's output. Weights are read
from safetensors only and no code of a model's repository is ever run. A model's id is a hash of the
weights that make its features and of its preprocessing, so that features of two models never mix.
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
from aoq.features.backbones import GRID, Regions
from aoq.features.outputs import PATCHES, Output
from aoq.features.pictures import Canvas, Pixels
from aoq.features.pretrained import VISION, describe_network, load_half, load_processor, unusable
from aoq.storage import hash_parts

if TYPE_CHECKING:
    from torch import Tensor, nn

DIGITS = 12  # of the hash, in the id
_INPUTS = ("pixel_values", "pixel_attention_mask", "spatial_shapes")


class VisionModel:
    """A vision model, or the vision half of an image-text model."""

    def __init__(self, name: str, output: Output = PATCHES) -> None:
        require_packages("transformers", extra="transformers")
        self._name = name
        self._output = output
        self.network, self.processor, unused = _load(name, output)
        self.canvas = canvas_of(name, self.processor, whole=output.kind == "patches")
        if self.canvas.cells and output.kind != "pooled":
            reason = "its pictures keep their shape, so only its own vector can be used"
            raise unusable(name, reason, VISION)
        self.id = f"{Path(name).name}-{self._digest(unused)}-{_kind(output)}"
        if output.kind == "states":
            from aoq.features.blocks import BeforeBlock, require_blocks

            require_blocks(name, self.network, VISION, at_least=output.block)
            self.network = BeforeBlock(self.network, output.block)
        self.width = self._probe().shape[2]

    def __call__(self, pixels: list[Pixels], /) -> Regions:
        if self._output.kind == "input":
            return np.stack(pixels).transpose(0, 3, 1, 2).reshape(len(pixels), 3, -1)
        import torch

        from aoq.features.blocks import as_half, vector_of

        with torch.inference_mode(), in_precision(self._output):
            if self._output.kind == "patches":
                seen = self.network(**self.prepare(pixels))
                grid = _grid_of(seen.last_hidden_state)
                return as_half(grid, self._name, VISION).numpy()
            # One by one: the last digits of a product depend on how many rows it has.
            each = [self.network(**self.prepare([picture])) for picture in pixels]
            if self._output.kind == "states":
                return as_half(torch.cat(each), self._name, VISION).numpy()  # (B, L, F)
            vectors = [vector_of(seen, self._output).float() for seen in each]
            return torch.cat(vectors)[:, None].numpy()  # (B, 1, F)

    def prepare(self, pixels: list[Pixels]) -> dict[str, Tensor]:
        """Scale and normalise decoded pictures: what the network is called with."""
        steps = ("do_resize", "do_center_crop")  # done when the picture was decoded
        done = {step: False for step in steps if getattr(self.processor, step, None)}
        ready = self.processor(images=pixels, return_tensors="pt", **done)
        return {name: ready[name] for name in _INPUTS if name in ready}

    def _digest(self, unused: set[str]) -> str:
        """Hash network, weights and preprocessing."""
        described = [type(self.network).__name__, self.processor.to_dict()]
        if self._output.kind != "patches":  # whose ids are older
            described = [describe_network(self.network), self.processor.to_dict()]
        return hash_network(described, self.network, without=unused)

    def _probe(self) -> Regions:
        """Compute the features of a black picture, to check the output and find its width."""
        try:
            return self([np.zeros((self.canvas.side, self.canvas.side, 3), np.uint8)])
        except UserError:
            raise
        except Exception as error:  # models raise almost anything
            reason = f"it cannot process a picture: {error}"
            raise unusable(self._name, reason, VISION) from error


def hash_network(described: list[Any], network: nn.Module, *, without: set[str]) -> str:
    """Hash a description of a network and its weights, except those that its files lack."""
    parts: list[bytes | memoryview] = [json.dumps(described, sort_keys=True).encode()]
    for name, weights in sorted(network.state_dict().items()):
        if not any(name.endswith(lacking) for lacking in without):
            parts += [name.encode(), memoryview(weights.contiguous().numpy()).cast("B")]
    return hash_parts(*parts)[:DIGITS]


def in_precision(output: Output) -> AbstractContextManager[Any]:
    """Return the context in which a frozen network computes."""
    import torch

    low = output.precision == "bfloat16"
    return torch.autocast("cpu", torch.bfloat16) if low else nullcontext()


def _kind(output: Output) -> str:
    return str(output).replace("patches", f"{GRID}x{GRID}")


def _grid_of(seen: Tensor) -> Tensor:
    """Pool the last layer's output to the grid of the cache. (B, 36, F)"""
    from torch.nn.functional import adaptive_avg_pool2d

    grid = adaptive_avg_pool2d(as_map(seen), GRID)  # (B, F, 6, 6)
    return grid.flatten(2).mT


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
    model, missing = load_half(name, "vision", projected=output.kind != "patches", role=VISION)
    # Only a vector of the network's own comes from its pooler.
    needed = [key for key in sorted(missing) if output.kind == "pooled" or "pooler" not in key]
    if needed:
        reason = f"its weights are incomplete, {needed[0]} is missing"
        raise unusable(name, reason, VISION)
    return model, processor, missing


def canvas_of(name: str, processor: Any, *, whole: bool) -> Canvas:
    """Return the input size of the model, and how pictures are fitted to it.

    The model's own preprocessing may cut off the ends of a picture. For a grid, whose cells are
    places in the photo, the `whole` picture is squashed instead. SigLIP 2 with NaFlex keeps the
    shape of a picture, in patches.
    """
    cells = getattr(processor, "max_num_patches", None)
    if cells:
        return Canvas(int(processor.patch_size), int(processor.resample), cells=int(cells))
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
