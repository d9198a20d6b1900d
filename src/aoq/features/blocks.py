"""Splits a transformer between two of its blocks.

What comes before a block that learns is frozen: it is computed once for every picture and kept.
What comes after goes on from these states, and is part of a model. Networks are split where they
hold their blocks, a list of equal modules, so any network of transformers with one such list works.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn

_STATES: ContextVar[Tensor] = ContextVar("states that a network goes on from")


class _ReachedError(Exception):
    """Carries the states that reach a block, past everything that would follow."""

    def __init__(self, states: Tensor) -> None:
        self.states = states


class _Exit(nn.Module):
    def forward(self, hidden_states: Tensor, *_: Any, **__: Any) -> Tensor:
        raise _ReachedError(hidden_states)


class _Entry(nn.Module):
    def forward(self, *_: Any, **__: Any) -> Tensor:
        return _STATES.get()


def find_blocks(network: nn.Module) -> nn.ModuleList | None:
    """Find the blocks of a transformer: its one longest list of equal modules."""
    lists = [
        module
        for module in network.modules()
        if isinstance(module, nn.ModuleList) and len({type(block) for block in module}) == 1
    ]
    longest = max(map(len, lists), default=0)
    found = [blocks for blocks in lists if len(blocks) == longest]
    return found[0] if len(found) == 1 else None


class BeforeBlock(nn.Module):
    """The part of a network before one of its blocks; returns the states that reach it."""

    def __init__(self, network: nn.Module, block: int) -> None:
        super().__init__()
        blocks = find_blocks(network)
        assert blocks is not None
        del blocks[block:]
        blocks.append(_Exit())
        self.network = network

    def forward(self, **inputs: Any) -> Tensor:
        try:
            self.network(**inputs)
        except _ReachedError as reached:
            return reached.states
        raise RuntimeError("the network did not reach its last block")


class FromBlock(nn.Module):
    """The rest of a network, from one of its blocks on; takes the states that reach it.

    What the network computes before its blocks is computed for one blank input and not used.
    """

    def __init__(self, network: nn.Module, block: int, *, blank: dict[str, Tensor]) -> None:
        super().__init__()
        blocks = find_blocks(network)
        assert blocks is not None
        del blocks[:block]
        blocks.insert(0, _Entry())
        self.network = network
        self._blank = blank

    def forward(self, states: Tensor) -> Any:
        token = _STATES.set(states)
        try:
            blank = {name: value.to(states.device) for name, value in self._blank.items()}
            return self.network(**blank)
        finally:
            _STATES.reset(token)


def blank_picture(side: int) -> dict[str, Tensor]:
    """Return the input of a vision model for one black picture."""
    return {"pixel_values": torch.zeros(1, 3, side, side)}
