"""Splits a transformer between two of its blocks, and reads what it returns.

What comes before a block that learns is frozen: it is computed once for every photo or text, and
kept. What comes after goes on from these states, and is part of a model. Networks are split where
they hold their blocks, a list of equal modules, so any network of transformers with one such list
works.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn

from aoq.features.outputs import Output
from aoq.features.pretrained import Role, unusable

_STATES: ContextVar[Tensor | None] = ContextVar("states that a network goes on from")


class _ReachedError(Exception):
    """Carries the states that reach a block, past everything that would follow."""

    def __init__(self, states: Tensor) -> None:
        self.states = states


class _Exit(nn.Module):
    """Ends a network before what it replaces, or after its last block."""

    def __init__(self, last: nn.Module | None) -> None:
        super().__init__()
        self.last = last

    def forward(self, hidden_states: Tensor, *others: Any, **named: Any) -> Tensor:
        if self.last is not None:
            seen = self.last(hidden_states, *others, **named)
            hidden_states = seen[0] if isinstance(seen, tuple) else seen
        raise _ReachedError(hidden_states)


class _Entry(nn.Module):
    def forward(self, hidden_states: Tensor, *_: Any, **__: Any) -> Tensor:
        states = _STATES.get()
        return hidden_states.detach() if states is None else states


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


def require_blocks(name: str, network: nn.Module, role: Role, *, at_least: int) -> int:
    """Return how many blocks a network has; raise a `UserError` if there are too few to split."""
    blocks = find_blocks(network)
    if blocks is None:
        raise unusable(name, "it has no list of equal blocks at which it could be split", role)
    if len(blocks) < at_least:
        raise unusable(name, f"it has {len(blocks)} blocks, not {at_least}", role)
    return len(blocks)


class BeforeBlock(nn.Module):
    """The part of a network before one of its blocks; returns the states that reach it."""

    def __init__(self, network: nn.Module, block: int) -> None:
        super().__init__()
        blocks = find_blocks(network)
        assert blocks is not None
        is_whole = block == len(blocks)  # some networks count their blocks: none is added
        last = blocks[-1] if is_whole else None
        del blocks[block - is_whole :]
        blocks.append(_Exit(last))
        self.network = network

    def forward(self, **inputs: Any) -> Tensor:
        try:
            self.network(**inputs)
        except _ReachedError as reached:
            return reached.states
        raise RuntimeError("the network did not reach its last block")


class FromBlock(nn.Module):
    """The rest of a network, from one of its blocks on; takes the states that reach it.

    `inputs` are those of the whole network: masks and shapes follow from them. What the network
    computes of them before its blocks is only used if no states are given, as an example.
    """

    def __init__(self, network: nn.Module, block: int) -> None:
        super().__init__()
        blocks = find_blocks(network)
        assert blocks is not None
        del blocks[:block]
        blocks.insert(0, _Entry())
        self.network = network
        self._missing = block

    @property
    def blocks(self) -> Iterator[nn.Module]:
        """Yield the blocks that are left."""
        for part in self.network.modules():
            if isinstance(part, nn.ModuleList) and len(part) and isinstance(part[0], _Entry):
                yield from part[1:]

    def whole_name(self, name: str) -> str:
        """Return the name that a weight of `network` has in the whole network."""
        for path, part in self.network.named_modules():
            if isinstance(part, nn.ModuleList) and len(part) and isinstance(part[0], _Entry):
                place, _, rest = name.removeprefix(f"{path}.").partition(".")
                if name.startswith(f"{path}.") and place.isdecimal():
                    return f"{path}.{int(place) - 1 + self._missing}.{rest}"
        return name

    def forward(self, states: Tensor | None = None, **inputs: Any) -> Any:
        token = _STATES.set(states)
        try:
            return self.network(**inputs)
        finally:
            _STATES.reset(token)


def vector_of(seen: Any, output: Output, mask: Tensor | None = None) -> Tensor:
    """Read one vector of the whole from what a network returns. (B, F)

    Its own vector is its projection to the joint space, if it has one, else its pooler's output,
    else the state of its first token. `mask` (B, L) is true where there is a token.
    """
    if output.kind == "cls":
        return first_state(seen.last_hidden_state)
    if output.kind == "mean":
        return mean_state(seen.last_hidden_state, mask)
    if isinstance(seen, Tensor):
        return seen
    for name in ("image_embeds", "text_embeds", "pooler_output"):
        vector: Tensor | None = getattr(seen, name, None)
        if vector is not None:
            return vector.flatten(1)
    return first_state(seen.last_hidden_state)


def first_state(states: Tensor) -> Tensor:
    """Return the state of the first token, which stands for the whole. (B, L, F) -> (B, F)"""
    _require_row(states)
    return states[:, 0]


def mean_state(states: Tensor, mask: Tensor | None) -> Tensor:
    """Return the mean of all states that are not padding. (B, L, F) -> (B, F)"""
    _require_row(states)
    if mask is None:
        return states.mean(dim=1)
    weights = mask[..., None].to(states.dtype)
    return (states * weights).sum(dim=1) / weights.sum(dim=1)


def as_half(states: Tensor, name: str, role: Role) -> Tensor:
    """Round states to float16, in which they are kept; raise a `UserError` if they do not fit."""
    half = states.to(torch.float16)
    if not half.isfinite().all():
        largest = states.abs().max().item()
        reason = f"it returns states of up to {largest:.3g}, which float16 cannot keep"
        raise unusable(name, reason, role)
    return half


def _require_row(states: Tensor) -> None:
    if states.ndim != 3:
        raise ValueError(f"it returns states of the shape {tuple(states.shape)}, not a row of them")
