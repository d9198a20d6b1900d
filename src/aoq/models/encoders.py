"""The parts that the published models share: projections, word embeddings, recurrent readers."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from aoq.types import Texts


def region_projection(in_width: int, out_width: int) -> nn.Linear:
    """The `fc` of all three models: Xavier-uniform weight, zero bias."""
    linear = nn.Linear(in_width, out_width)
    bound = math.sqrt(6 / (in_width + out_width))
    nn.init.uniform_(linear.weight, -bound, bound)
    nn.init.zeros_(linear.bias)
    return linear


def word_embedding(vocabulary_size: int, width: int) -> nn.Embedding:
    """Word vectors, uniform in (-0.1, 0.1) at the start."""
    embedding = nn.Embedding(vocabulary_size, width)
    nn.init.uniform_(embedding.weight, -0.1, 0.1)
    return embedding


class LastStateTextEncoder(nn.Module):
    """A GRU over the words; its state at the last word, with unit length, is the text."""

    def __init__(self, *, vocabulary_size: int, word_width: int, joint_width: int) -> None:
        super().__init__()
        self.embedding = word_embedding(vocabulary_size, word_width)
        self.gru = nn.GRU(word_width, joint_width, batch_first=True)

    def forward(self, texts: Texts) -> Tensor:
        # A one-way GRU never sees what follows a word, so padding needs no packing.
        states, _ = self.gru(self.embedding(texts.tokens))  # (B, T, D)
        rows = torch.arange(len(states), device=states.device)
        return normalize(states[rows, texts.lengths - 1], dim=-1)  # (B, D)
