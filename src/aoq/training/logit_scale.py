"""What a loss itself learns: the temperature of a softmax, a sigmoid's temperature and bias.

It belongs to the round, not to the model, which scores the same without it. It takes the steps of
the optimizer with the learning rate of the round and without weight decay, is saved with the
trainer's state, and its values are in the log and in the metadata of the weights. The temperature
is learned as log(1 / temperature), kept within CLIP's bounds after each step.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import nn

from aoq.config import LEARNED_TEMPERATURES, LossConfig
from aoq.losses import BatchScores


class LogitScale(nn.Module):
    """Holds what the loss of a round learns; nothing, for most losses.

    >>> LogitScale(LossConfig(name="infonce", temperature=0.05, learn_temperature=True)).values()
    {'temperature': 0.05}
    >>> LogitScale(LossConfig(name="online")).values()
    {}
    """

    def __init__(self, config: LossConfig) -> None:
        super().__init__()
        self.log_scale: nn.Parameter | None = None
        self.bias: nn.Parameter | None = None
        if config.learns_temperature and config.name == "siglip":
            self.bias = nn.Parameter(torch.tensor(config.bias))
        if config.learns_temperature:
            self.log_scale = nn.Parameter(torch.tensor(-math.log(config.initial_temperature)))

    def add_to(self, scores: BatchScores) -> BatchScores:
        """Give scores what is learned about them."""
        scale = None if self.log_scale is None else self.log_scale.exp()
        return replace(scores, scale=scale, bias=self.bias)

    def clamp(self) -> None:
        """Bring the temperature back within its bounds."""
        if self.log_scale is not None:
            lowest, highest = LEARNED_TEMPERATURES
            self.log_scale.data.clamp_(-math.log(highest), -math.log(lowest))

    def values(self) -> dict[str, float]:
        """Return what is learned, by name, for people to read."""
        found = {}
        if self.log_scale is not None:
            found["temperature"] = round(math.exp(-self.log_scale.item()), 6)
        if self.bias is not None:
            found["bias"] = round(self.bias.item(), 6)
        return found
