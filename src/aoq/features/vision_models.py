"""Uses any vision model of Hugging Face's transformers as a backbone, by hub name or folder.

Convolutional networks return a map of cells, transformers a row of patches after a few special
tokens; both are pooled to the grid of the cache. Weights are read from safetensors only and no code
of a model's repository is ever run. A model's id is a hash of the weights that make its regions and
of its preprocessing, so that features of two models never mix.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from math import isqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from aoq.errors import UserError, require_packages
from aoq.features.backbones import DEFAULT_BACKBONE, GRID, Regions
from aoq.features.pictures import Canvas, Pixels
from aoq.storage import hash_parts

if TYPE_CHECKING:
    from torch import Tensor

DIGITS = 12  # of the hash, in the id


class VisionModel:
    """A vision model, or the vision half of an image-text model."""

    def __init__(self, name: str) -> None:
        require_packages("transformers", extra="transformers")
        self._name = name
        with _quiet_transformers():
            self._model, self._processor, unused = _load(name)
        self.canvas = _canvas(name, self._processor)
        digest = _hash_model(self._model, self._processor, without=unused)
        self.id = f"{Path(name).name}-{digest[:DIGITS]}-{GRID}x{GRID}"
        self.width = self._look_at_nothing().shape[2]

    def __call__(self, pixels: list[Pixels], /) -> Regions:
        import torch
        from torch.nn.functional import adaptive_avg_pool2d

        ready = self._processor(images=pixels, return_tensors="pt", **self._without_resizing)
        with torch.inference_mode():
            seen = self._model(pixel_values=ready["pixel_values"]).last_hidden_state
            grid = adaptive_avg_pool2d(as_map(seen), GRID)  # (B, F, 6, 6)
        rows: Regions = grid.flatten(2).mT.to(torch.float16).numpy()  # (B, R, F)
        return rows

    @property
    def _without_resizing(self) -> dict[str, bool]:
        """Return processor arguments that keep pictures whole and in size, so that boxes fit."""
        steps = ("do_resize", "do_center_crop")
        return {step: False for step in steps if getattr(self._processor, step, None)}

    def _look_at_nothing(self) -> Regions:
        """Compute the regions of a black picture, to check for a grid and find the width."""
        try:
            return self([np.zeros((self.canvas.side, self.canvas.side, 3), np.uint8)])
        except UserError:
            raise
        except Exception as error:  # models raise almost anything
            raise _unusable(self._name, f"it cannot process a picture: {error}") from error


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


def _load(name: str) -> tuple[Any, Any, set[str]]:
    """Load model, image processor, and the names of weights that are missing in the file."""
    try:
        return _read(name, local_files_only=True)
    except OSError as error:
        if Path(name).is_dir():
            raise _unusable(name, error) from error
    except Exception as error:  # as above
        raise _unusable(name, error) from error
    _require_on_hub(name)
    try:
        return _read(name, local_files_only=False)
    except Exception as error:
        raise _unusable(name, error) from error


def _read(name: str, *, local_files_only: bool) -> tuple[Any, Any, set[str]]:
    import torch

    transformers: Any = import_module("transformers")
    where: dict[str, Any] = {"local_files_only": local_files_only, "trust_remote_code": False}
    processor = transformers.AutoImageProcessor.from_pretrained(name, **where)
    model, report = transformers.AutoModel.from_pretrained(
        name, use_safetensors=True, dtype=torch.float32, output_loading_info=True, **where
    )
    missing = set(report["missing_keys"])
    if hasattr(model, "vision_model"):
        model = model.vision_model
        missing = {key.removeprefix("vision_model.") for key in missing}
    missing &= model.state_dict().keys()
    needed = sorted(key for key in missing if "pooler" not in key)  # regions are not pooled
    if needed:
        raise ValueError(f"its weights are incomplete, {needed[0]} is missing")
    return model.eval(), processor, missing


def _require_on_hub(name: str) -> None:
    """Raise a `UserError` if the hub does not know a name, or cannot be reached."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError

    try:
        HfApi().model_info(name, timeout=10)
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise UserError(
            f"{name} is neither a folder nor a model on the hub of Hugging Face; expected "
            f"{DEFAULT_BACKBONE}, the name of a vision model or its folder."
        ) from error
    except Exception as error:
        raise UserError(
            f"{name} is not a folder and not in the cache of Hugging Face, and the hub cannot be "
            f"reached; download the model on a connected machine and name its folder, or use "
            f"{DEFAULT_BACKBONE}, which needs no connection."
        ) from error


def _unusable(name: str, reason: object) -> UserError:
    in_short = " ".join(str(reason).split()).partition(". ")[0][:200].removesuffix(".")
    return UserError(
        f"{name} cannot be used as a backbone ({in_short}); expected a vision model of "
        "transformers with its preprocessor_config.json and safetensors weights."
    )


def _canvas(name: str, processor: Any) -> Canvas:
    """Return the input size of the model, and how pictures are resized to it."""
    size = processor.crop_size if getattr(processor, "do_center_crop", False) else processor.size
    height = size["height"] or size["shortest_edge"]
    width = size["width"] or size["shortest_edge"]
    if not height or height != width:
        raise _unusable(name, f"its input is {height} x {width} pixels, not square")
    resample = getattr(processor, "resample", None)
    return Canvas(int(height)) if resample is None else Canvas(int(height), int(resample))


def _hash_model(model: Any, processor: Any, *, without: set[str]) -> str:
    description = [type(model).__name__, processor.to_dict()]
    parts: list[bytes | memoryview] = [json.dumps(description, sort_keys=True).encode()]
    for name, weights in sorted(model.state_dict().items()):
        if name not in without:
            parts += [name.encode(), memoryview(weights.contiguous().numpy()).cast("B")]
    return hash_parts(*parts)


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    """Suppress transformers' progress bars and warnings while a model is loaded."""
    logging: Any = import_module("transformers.utils.logging")
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
