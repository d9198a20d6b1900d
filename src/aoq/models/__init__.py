"""Models: encoders and their scorer, one file each, in one explicit registry."""

from __future__ import annotations

from torch import nn

from aoq.config import ModelConfig
from aoq.models.vsrn import VSRN

MODELS: dict[str, type[VSRN]] = {"vsrn": VSRN}


def build_model(config: ModelConfig, *, feature_width: int, vocabulary_size: int) -> VSRN:
    """The model that `config` names, with fresh weights from torch's random state."""
    return MODELS[config.name](config, feature_width=feature_width, vocabulary_size=vocabulary_size)


def count_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
