"""Optimizers: which parameters of a model learn, at which rate, and which of them decay.

Weight decay pulls the factors of products to zero. Biases and the gains of norms are no factors of
that kind, so parameters with fewer than two dimensions are left out. What was pretrained may learn
at a lower rate than what begins at random.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from aoq.config import RoundConfig
from aoq.errors import UserError
from aoq.scoring.protocol import HasPretrained, TrainableModel

MakeOptimizer = Callable[[TrainableModel, RoundConfig], torch.optim.Optimizer]


def make_optimizer(model: TrainableModel, settings: RoundConfig) -> torch.optim.Optimizer:
    """Make the optimizer of a round."""
    kind = torch.optim.AdamW if settings.optimizer == "adamw" else torch.optim.Adam
    return kind(parameter_groups(model, settings), fused=True)


class LearningRates:
    """The learning rates of a round: the schedule scales the rate that each group starts with.

    Make it before a saved state is loaded, which holds the rates of its own step.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, settings: RoundConfig, *, n_steps: int
    ) -> None:
        self._optimizer = optimizer
        self._settings = settings
        self._n_steps = n_steps
        self._initial = [float(group["lr"]) for group in optimizer.param_groups]

    def at(self, step: int, *, group: int = 0) -> float:
        """Return the rate of a group at a step of the round, counted from 0."""
        initial = self._initial[group]
        return self._settings.learning_rate_at(step, n_steps=self._n_steps, initial=initial)

    def set(self, step: int) -> None:
        """Set the rates of all groups for a step of the round."""
        for number, group in enumerate(self._optimizer.param_groups):
            group["lr"] = self.at(step, group=number)


def parameter_groups(model: TrainableModel, settings: RoundConfig) -> list[dict[str, Any]]:
    """Group the parameters that learn by their learning rate and weight decay."""
    towers = set()
    if isinstance(model, HasPretrained) and settings.tower_learning_rate is not None:
        towers = {id(parameter) for parameter in model.pretrained_parameters()}
    groups: defaultdict[tuple[bool, bool], list[nn.Parameter]] = defaultdict(list)
    for parameter in learned_parameters(model):
        decays = settings.weight_decay > 0 and parameter.ndim >= 2
        groups[id(parameter) in towers, decays].append(parameter)
    return [
        {
            "params": groups[of_tower, decays],
            "lr": settings.tower_learning_rate if of_tower else settings.learning_rate,
            "weight_decay": settings.weight_decay if decays else 0.0,
        }
        for of_tower, decays in sorted(groups)
    ]


def add_undecayed(
    optimizer: torch.optim.Optimizer, module: nn.Module, settings: RoundConfig
) -> None:
    """Let an optimizer learn the parameters of another module too, without weight decay."""
    if parameters := list(module.parameters()):
        group = {"params": parameters, "lr": settings.learning_rate, "weight_decay": 0.0}
        optimizer.add_param_group(group)


def learned_parameters(model: TrainableModel) -> list[nn.Parameter]:
    """Return the parameters that learn, each once; refuse a model without any."""
    learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not learned:
        raise UserError(
            f"the model ({type(model).__name__}) has no parameter that learns; give it a head, or "
            "let some of its parameters require gradients."
        )
    return learned
