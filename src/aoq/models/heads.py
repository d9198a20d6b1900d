"""What joins vectors to the joint space: scaled inputs, pooling of states, and heads."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from aoq.config import ModelConfig

_POSITION_WIDTH = 32
_TEMPERATURE = 0.1
_SMALLEST_SCALE = 1e-6


class GeneralisedPooling(nn.Module):
    """The generalised pooling of VSE-infinity (Chen et al., CVPR 2021).

    Each feature is sorted over the states, and the k-th largest value has a learned weight that
    depends on k and on the number of states: mean and maximum are special cases.
    """

    def __init__(self) -> None:
        super().__init__()
        self.reader = nn.GRU(_POSITION_WIDTH, _POSITION_WIDTH, batch_first=True, bidirectional=True)
        self.score = nn.Linear(_POSITION_WIDTH, 1, bias=False)

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        weights = self._weights(mask).to(states.dtype)  # (B, L)
        lowest = torch.finfo(states.dtype).min
        ordered = states.masked_fill(~mask[..., None], lowest).sort(dim=1, descending=True).values
        ordered = ordered.masked_fill(~mask[..., None], 0.0)  # padding is last in either order
        pooled: Tensor = (ordered * weights[..., None]).sum(dim=1)
        return pooled

    def _weights(self, mask: Tensor) -> Tensor:
        """Return the weight of every rank, by the number of states. (B, L)"""
        lengths, rows = mask.sum(dim=1).unique(return_inverse=True)
        positions = _sinusoids(mask.shape[1], device=mask.device)
        weights = mask.new_zeros(len(lengths), mask.shape[1], dtype=torch.float32)
        for row, length in enumerate(lengths.tolist()):
            read = self.reader(positions[None, :length])[0]  # (1, L, 2 W)
            both = read.unflatten(2, (2, _POSITION_WIDTH)).mean(dim=2)
            scores = self.score(both)[0, :, 0] / _TEMPERATURE
            weights[row, :length] = scores.softmax(dim=0)
        return weights[rows]


def _sinusoids(count: int, *, device: torch.device) -> Tensor:
    """Return the sinusoidal encoding of positions 0 to count - 1. (count, W)"""
    half = _POSITION_WIDTH // 2
    rates = torch.exp(torch.arange(half, device=device) * (-math.log(10_000.0) / half))
    angles = torch.arange(count, device=device)[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], dim=1)


class Standardised(nn.Module):
    """Scales vectors; the statistics of the training data are stored with the weights."""

    mean: Tensor
    scale: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("scale", torch.ones(width))

    def forward(self, vectors: Tensor) -> Tensor:
        scaled: Tensor = (vectors - self.mean) * self.scale
        return scaled

    def standardise(self, vectors: Tensor) -> None:
        """Give each feature zero mean and unit variance on some vectors. (B, F)"""
        deviation, mean = torch.std_mean(vectors, dim=0)
        self.mean.copy_(mean)
        self.scale.copy_(1 / deviation.clamp(min=_SMALLEST_SCALE))


class Head(Standardised):
    """Maps the vectors of a tower to the joint space; its inputs are standardised.

    linear: W x. residual: W x + U gelu(V x), with dropout before U. In training, `dropout` takes
    features of x away: heads that read all of a frozen vector learn a small set by heart.
    """

    def __init__(self, config: ModelConfig, width: int, *, dropout: float = 0.0) -> None:
        super().__init__(width)
        self.dropout = nn.Dropout(dropout)
        self.linear = nn.Linear(width, config.joint_width)
        self.residual = None
        if config.head == "residual":
            self.residual = nn.Sequential(
                nn.Linear(width, config.head_width),
                nn.GELU(),
                nn.Dropout(config.head_dropout),
                nn.Linear(config.head_width, config.joint_width),
            )

    def forward(self, vectors: Tensor) -> Tensor:
        vectors = self.dropout(super().forward(vectors))
        joint: Tensor = self.linear(vectors)
        return joint if self.residual is None else joint + self.residual(vectors)
