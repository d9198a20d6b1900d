"""Translates a checkpoint of a published program into one of our models.

Widths and parts follow from the weights, and the scoring follows from the program's options. The
weights must be exactly those of the model; any missing or unexpected ones are named.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

from aoq.config import Direction, Focal, ModelConfig, ModelName, RawNorm
from aoq.errors import UserError
from aoq.models import build_model
from aoq.published.pickles import Checkpoint
from aoq.published.weights import from_published

# For each model: our setting, the program's option, and our names of its values.
_CHOICES: dict[ModelName, list[tuple[str, str, dict[str, str]]]] = {
    "scan": [
        ("direction", "cross_attn", {name: name for name in get_args(Direction)}),
        ("raw_norm", "raw_feature_norm", {name: name for name in get_args(RawNorm)}),
        (
            "aggregate",
            "agg_func",
            {"LogSumExp": "logsumexp", "Mean": "mean", "Max": "max", "Sum": "sum"},
        ),
    ],
    "bfan": [("focal", "focal_type", {name: name for name in get_args(Focal)})],
}
_NUMBERS: dict[ModelName, list[tuple[str, str]]] = {
    "scan": [("temperature", "lambda_softmax"), ("aggregate_temperature", "lambda_lse")],
    "bfan": [("temperature", "lambda_softmax")],
}
_CAPTION_NUMBERS = [("caption_max_words", "max_len"), ("caption_dropout", "input_dropout_p")]
# Options that change scores in ways that no model here supports, and the only accepted value.
_UNSUPPORTED = {"use_abs": False, "no_imgnorm": False, "no_txtnorm": False, "measure": "cosine"}
_COUNTER = ".num_batches_tracked"  # of batch norms; torch before 0.4.1 did not store it
_NAMES_SHOWN = 6


@dataclass(frozen=True, eq=False)
class PublishedModel:
    """A published model as one of ours: its configuration and its weights."""

    config: ModelConfig
    weights: dict[str, Tensor]
    feature_width: int
    vocabulary_size: int
    assumed: Sequence[str]
    "Options that the checkpoint does not state; the defaults are used for them."


def translate(
    checkpoint: Checkpoint, *, source: Path, name: ModelName | None = None
) -> PublishedModel:
    """Translate a checkpoint into one of our models; `name` decides if its options do not."""
    state, options = checkpoint.state, checkpoint.options
    name = name or _recognise(state, options, source=source)
    for option, taken in _UNSUPPORTED.items():
        if options.get(option, taken) != taken:
            raise UserError(
                f"{source} was trained with {option} {options[option]!r}, which changes its "
                f"scores; only {option} {taken!r} can be imported."
            )
    projection = "img_enc.fc.weight_v" if "img_enc.fc.weight_v" in state else "img_enc.fc.weight"
    joint_width, feature_width = _matrix_shape(state, projection, source=source)
    vocabulary_size, word_width = _matrix_shape(state, "txt_enc.embed.weight", source=source)
    config = ModelConfig(name=name, joint_width=joint_width, word_width=word_width)
    config = replace(config, **_structure(state, name=name, source=source))
    settings, assumed = _settings(options, config, source=source)
    config = replace(config, **settings)
    with torch.device("meta"):
        model = build_model(config, feature_width=feature_width, vocabulary_size=vocabulary_size)
    return PublishedModel(
        config=config,
        weights=_fitting(state, model.state_dict(), name=name, source=source),
        feature_width=feature_width,
        vocabulary_size=vocabulary_size,
        assumed=assumed,
    )


def _recognise(
    state: Mapping[str, Tensor], options: Mapping[str, Any], *, source: Path
) -> ModelName:
    """Recognise the model; SCAN and BFAN share the names of their weights, so options decide."""
    if any(key.startswith("img_enc.Rs_GCN_") for key in state):
        return "vsrn"
    is_scan, is_bfan = "cross_attn" in options, "focal_type" in options
    if is_scan != is_bfan:
        return "scan" if is_scan else "bfan"
    both_ways = any(key.endswith("_reverse") for key in state)
    if not is_scan and not both_ways and "measure" in options:
        return "vse"
    named = "cross_attn and focal_type" if is_scan else "neither cross_attn nor focal_type"
    raise UserError(
        f"{source}: its options name {named}, so it fits several models; "
        "add --model scan, --model bfan or --model vse."
    )


def _matrix_shape(state: Mapping[str, Tensor], key: str, *, source: Path) -> tuple[int, int]:
    if key not in state or state[key].ndim != 2 or not state[key].numel():
        found = tuple(state[key].shape) if key in state else "missing"
        raise UserError(
            f"{source}: the parameter {key} is {found}; expected a matrix, as in checkpoints of "
            "SCAN, BFAN, VSRN and VSE++ on precomputed features."
        )
    rows, columns = state[key].shape
    return rows, columns


def _structure(state: Mapping[str, Tensor], *, name: ModelName, source: Path) -> dict[str, Any]:
    """Return the settings that follow from the names and shapes of the weights."""
    if name == "scan":
        return {
            "bidirectional": any(key.endswith("_reverse") for key in state),
            "weight_norm": "img_enc.fc.weight_v" in state,
        }
    if name != "vsrn":
        return {}
    settings: dict[str, Any] = {"variant": "f30k" if "img_enc.bn.weight" in state else "coco"}
    if not any(key.startswith("caption_model.") for key in state):
        return settings | {"caption_weight": 0.0}
    width, _ = _matrix_shape(state, "caption_model.encoder.vid2hid.weight", source=source)
    return settings | {"caption_width": width}


def _settings(
    options: Mapping[str, Any], config: ModelConfig, *, source: Path
) -> tuple[dict[str, Any], list[str]]:
    """Return the settings that the program's options state, and the missing options."""
    choices, numbers = _CHOICES.get(config.name, []), _NUMBERS.get(config.name, [])
    if config.name == "vsrn" and config.caption_weight:
        numbers = _CAPTION_NUMBERS
    settings: dict[str, Any] = {}
    for ours, option, values in choices:
        if option in options:
            value = options[option]
            if not isinstance(value, str) or value not in values:
                known = ", ".join(values)
                raise UserError(
                    f"{source}: the option {option} is {value!r}; expected one of: {known}."
                )
            settings[ours] = values[value]
    for ours, option in numbers:
        if option in options:
            value = options[option]
            if not isinstance(value, (int, float)):
                raise UserError(f"{source}: the option {option} is {value!r}; expected a number.")
            settings[ours] = type(getattr(config, ours) or 0.0)(value)
    wanted = [option for _, option, _ in choices] + [option for _, option in numbers]
    return settings, [option for option in wanted if option not in options]


def _fitting(
    state: Mapping[str, Tensor], expected: Mapping[str, Tensor], *, name: ModelName, source: Path
) -> dict[str, Tensor]:
    """Return the weights under our names, if they are exactly those that the model expects."""
    weights: dict[str, Tensor] = {}
    unknown: list[str] = []
    for key, value in state.items():
        try:
            ((ours, tensor),) = from_published(name, {key: value}).items()
        except KeyError:
            ours, tensor = "", value
        if ours in expected:
            weights[ours] = _as_scalar(tensor) if expected[ours].ndim == 0 else tensor
        else:
            unknown.append(key)
    for ours in expected:
        if ours.endswith(_COUNTER):
            weights.setdefault(ours, torch.zeros((), dtype=torch.int64))
    problems = {
        "missing": [ours for ours in expected if ours not in weights],
        "left over": unknown,
        "of another shape": [
            f"{ours} {tuple(value.shape)} instead of {tuple(expected[ours].shape)}"
            for ours, value in weights.items()
            if value.shape != expected[ours].shape
        ],
        "not finite": [
            ours
            for ours, value in weights.items()
            if value.shape == expected[ours].shape and not value.isfinite().all()
        ],
    }
    problem = "; ".join(f"{what}: {_listed(names)}" for what, names in problems.items() if names)
    if problem:
        raise UserError(f"{source} does not hold the parameters of {name} ({problem}).")
    return {ours: _copied(value, expected[ours]) for ours, value in weights.items()}


def _as_scalar(value: Tensor) -> Tensor:
    """Drop the axis of a single number: torch before 0.4 had no tensors without axes."""
    return value.reshape(()) if value.numel() == 1 else value


def _copied(value: Tensor, expected: Tensor) -> Tensor:
    """Copy a tensor: cuDNN keeps the weights of a GRU as views of one storage."""
    copied = value.detach().clone(memory_format=torch.contiguous_format)
    return copied.to(expected.dtype)


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _NAMES_SHOWN
    return ", ".join(names[:_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
