"""Models: encoders and their scorer, one file each, in one explicit registry."""

from __future__ import annotations

from aoq.config import ModelConfig
from aoq.models.vsrn import VSRN
from aoq.scoring.protocol import TrainableModel

MODELS: dict[str, type[VSRN]] = {"vsrn": VSRN}


def build_model(config: ModelConfig, *, feature_width: int, vocabulary_size: int) -> TrainableModel:
    """The model that `config` names, with fresh weights from torch's random state."""
    return MODELS[config.name](config, feature_width=feature_width, vocabulary_size=vocabulary_size)


def count_parameters(model: TrainableModel) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
