"""Weights people keep, and the state that lets a round go on where it stopped.

Weights are safetensors; the trainer's state is read with torch's `weights_only`, which builds
tensors and plain containers and cannot run code.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_model, save_model
from torch import nn

from aoq.config import Recipe
from aoq.data.vocabulary import Vocabulary
from aoq.errors import UserError
from aoq.models import build_model
from aoq.recipes import load_recipe
from aoq.scoring.protocol import TrainableModel
from aoq.storage import RunDirectory, atomic_file, hash_file, hash_parts


@dataclass(frozen=True)
class TrainerState:
    """How far a round has come."""

    epoch: int = 0
    "Epochs finished."
    step: int = 0
    "Steps finished in the epoch under way."
    best: float = float("-inf")
    "Best validation figure so far."
    best_epoch: int = -1
    waited: int = 0
    "Validations since the best one."
    validated: int = 0
    "Steps of the whole round before the last validation within an epoch."


MakeModel = Callable[[], TrainableModel]


def save_weights(path: Path, model: TrainableModel, *, feature_width: int | None) -> None:
    """The weights, shared ones once, and the width of the features that they were trained on."""
    with atomic_file(path) as temporary:
        metadata = {} if feature_width is None else {"feature_width": str(feature_width)}
        save_model(cast("nn.Module", model), str(temporary), metadata=metadata)


def load_weights(path: Path, model: TrainableModel) -> None:
    """Put the weights of a file into a model that they fit."""
    try:
        load_model(cast("nn.Module", model), path)
    except (SafetensorError, RuntimeError) as error:
        raise UserError(f"{path} does not hold the weights of this model: {error}.") from None


def save_trainer(
    path: Path, model: TrainableModel, optimizer: torch.optim.Optimizer, state: TrainerState
) -> None:
    content = {
        "state": asdict(state),
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
    }
    with atomic_file(path) as temporary:
        torch.save(content, temporary)


def load_trainer(
    path: Path, model: TrainableModel, optimizer: torch.optim.Optimizer
) -> TrainerState:
    """Put a saved state back; a fresh state where nothing has been saved."""
    if not path.is_file():
        return TrainerState()
    try:
        content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        model.load_state_dict(content["model"])
        optimizer.load_state_dict(content["optimizer"])
        return TrainerState(**content["state"])
    except (
        pickle.UnpicklingError,
        RuntimeError,
        ValueError,
        KeyError,
        TypeError,
        EOFError,
    ) as error:
        raise UserError(
            f"{path} is no trainer state of this run ({error}); remove it to start the round anew."
        ) from None


@dataclass(frozen=True)
class TrainedRun:
    """A trained model of the library's, with what it needs to read data."""

    recipe: Recipe
    model: TrainableModel
    vocabulary: Vocabulary
    feature_width: int
    model_hash: str

    def require_width(self, width: int, *, source: str) -> None:
        if width != self.feature_width:
            raise UserError(
                f"{source} has features of width {width}; the model was trained on width "
                f"{self.feature_width}: extract features with the extractor of the training data."
            )


def load_run(path: Path | str, *, device: str | torch.device = "cpu") -> TrainedRun:
    """The best model of a run, in evaluation mode."""
    run = RunDirectory(Path(path)).require_trained()
    recipe = load_recipe(run.config)
    if recipe.model.name == "own":
        raise UserError(
            f"{path} holds a model of its own, which only the program that brought it can build; "
            "open it there with aoq.load_own_model(run, make_model)."
        )
    vocabulary = Vocabulary.load(run.vocabulary)
    before = run.model.stat()
    try:
        with safe_open(run.model, framework="pt") as file:
            feature_width = int(file.metadata()["feature_width"])
    except (SafetensorError, KeyError, TypeError) as error:
        raise UserError(f"{run.model} is no model of a run: {error}.") from None
    model = build_model(recipe.model, feature_width=feature_width, vocabulary_size=len(vocabulary))
    load_weights(run.model, model)
    model_hash = hash_model(path)
    after = run.model.stat()
    if (after.st_ino, after.st_mtime_ns) != (before.st_ino, before.st_mtime_ns):
        return load_run(path, device=device)  # its round is under way, and has better weights
    return TrainedRun(recipe, model.to(device).eval(), vocabulary, feature_width, model_hash)


def hash_model(path: Path | str) -> str:
    """Names all that a model's scores depend on: weights, words where it has some, settings."""
    run = RunDirectory(Path(path)).require_trained()
    files = [hash_file(file) for file in (run.model, run.vocabulary) if file.is_file()]
    return hash_parts(json.dumps([files, asdict(load_recipe(run.config).model)]).encode())


def hash_models(runs: Sequence[Path]) -> str:
    """The same of a run; of an ensemble those of all, in order, joined by a plus."""
    return "+".join(map(hash_model, runs))


def load_own_model(
    path: Path | str, make_model: MakeModel, *, device: str | torch.device = "cpu"
) -> TrainableModel:
    """The best model of a run, in evaluation mode, where `make_model` builds it."""
    model = make_model()
    load_weights(RunDirectory(Path(path)).require_trained().model, model)
    return model.to(device).eval()
