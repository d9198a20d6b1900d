"""Callbacks: functions of yours that a round calls while it trains.

The log and TensorBoard are written without any. A callback sends the same figures elsewhere. Only
the first of several processes calls it. An exception in it ends the round, which continues from
its last saved state; steps after that state are then reported again, with the same numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from aoq.config import RoundConfig, RoundName
from aoq.evaluation.metrics import Metrics


@dataclass(frozen=True)
class RoundStart:
    """A round that starts, or continues."""

    round: RoundName
    path: Path
    "Folder of the round."
    settings: RoundConfig
    steps_per_epoch: int
    steps_done: int
    "Steps of the round that were taken before; 0 unless it continues."


@dataclass(frozen=True)
class StepEnd:
    """A step after its update."""

    round: RoundName
    epoch: int
    "From 1."
    step: int
    "Steps of the whole round so far, from 1."
    learning_rate: float
    "That of the first group of parameters."
    terms: Mapping[str, float]
    "Terms of the loss, which is their sum."


@dataclass(frozen=True)
class Validation:
    """The figures on dev, after an epoch or within one."""

    round: RoundName
    epoch: int
    step: int
    "Steps of the whole round before."
    metrics: Metrics
    is_best: bool
    "Whether the weights are kept as the best so far."


@dataclass(frozen=True)
class RoundEnd:
    """A round that is finished; one that is interrupted does not end."""

    round: RoundName
    path: Path
    epochs: int
    "Epochs finished."
    best_epoch: int
    best: float
    "The figure that `select_by` names, at the best epoch."


@dataclass(frozen=True)
class Mining:
    """Lists that a round has mined with its own weights."""

    round: RoundName
    epoch: int
    "The first epoch that draws from them, from 1."
    seconds: float
    in_old_lists: Mapping[str, float]
    "By direction, the share of the candidates that the lists before held too."


class Callback:
    """Does nothing; override the methods that you need."""

    def on_round_start(self, start: RoundStart) -> None:
        """Take note of a round before its first step."""

    def on_mining(self, mining: Mining) -> None:
        """Take note of lists that the round has mined anew."""

    def on_step(self, step: StepEnd) -> None:
        """Take note of a step."""

    def on_validation(self, validation: Validation) -> None:
        """Take note of a validation."""

    def on_round_end(self, end: RoundEnd) -> None:
        """Take note of the end of a round."""
