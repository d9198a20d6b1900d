"""The moving average of a model's weights: steadier than the weights of any one step.

    average <- d average + (1 - d) weights,  d = min(decay, (1 + t) / (10 + t)) after step t

d grows with the steps, so that the initial weights are soon forgotten. Only what learns is held a
second time. The rest, such as frozen towers and the statistics of batch norms, is the model's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from aoq.scoring.protocol import TrainableModel
from aoq.training.optimizers import learned_parameters


class WeightAverage:
    """Follows the weights of a model, and takes their place where it is asked to."""

    def __init__(self, model: TrainableModel, *, decay: float) -> None:
        self.decay = decay
        self.steps = 0
        self._weights = learned_parameters(model)
        self._averages = [weight.detach().clone() for weight in self._weights]

    def add(self) -> None:
        """Add the weights after a step."""
        self.steps += 1
        decay = min(self.decay, (1 + self.steps) / (10 + self.steps))
        for average, weight in zip(self._averages, self._weights, strict=True):
            average.lerp_(weight.detach(), 1 - decay)

    @contextmanager
    def in_model(self) -> Iterator[None]:
        """Put the average into the model inside, and the weights back afterwards."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def _swap(self) -> None:
        with torch.no_grad():
            for average, weight in zip(self._averages, self._weights, strict=True):
                held = weight.clone()
                weight.copy_(average)
                average.copy_(held)

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` needs to continue."""
        return {"steps": self.steps, "averages": self._averages}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from a stored state."""
        self.steps = state_dict["steps"]
        for average, stored in zip(self._averages, state_dict["averages"], strict=True):
            average.copy_(stored)
