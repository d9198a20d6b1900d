"""All settings, as one tree of frozen dataclasses, a module for each group.

Recipes (TOML) and command-line flags both set fields of this tree; the defaults are the paper's.
A run stores the resolved tree, so that it can be repeated from its own folder.
"""

from aoq.config.loss import LEARNED_TEMPERATURES, LossConfig, LossName, Weights
from aoq.config.mining import FastProduct, MiningConfig, Precision, Product, parse_memory
from aoq.config.model import (
    BAGS,
    LATER_SETTINGS,
    TOWER_NAMES,
    Aggregate,
    Direction,
    Focal,
    HeadKind,
    Learning,
    ModelConfig,
    ModelName,
    Pooling,
    RawNorm,
    TowerPrecision,
    WordWeights,
)
from aoq.config.recipe import MIN_WORD_COUNT, Behaviour, Recipe, RoundName, as_published
from aoq.config.round import OptimizerName, RoundConfig, Schedule
from aoq.config.sampling import SamplingConfig

__all__ = [
    "BAGS",
    "LATER_SETTINGS",
    "LEARNED_TEMPERATURES",
    "MIN_WORD_COUNT",
    "TOWER_NAMES",
    "Aggregate",
    "Behaviour",
    "Direction",
    "FastProduct",
    "Focal",
    "HeadKind",
    "Learning",
    "LossConfig",
    "LossName",
    "MiningConfig",
    "ModelConfig",
    "ModelName",
    "OptimizerName",
    "Pooling",
    "Precision",
    "Product",
    "RawNorm",
    "Recipe",
    "RoundConfig",
    "RoundName",
    "SamplingConfig",
    "Schedule",
    "TowerPrecision",
    "Weights",
    "WordWeights",
    "as_published",
    "parse_memory",
]
