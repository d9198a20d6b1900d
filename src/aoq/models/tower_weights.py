"""Whole pretrained towers with what a run has learned of them.

A run keeps only the weights that learned, of a network that is split before its first block that
learns. Here these go back to their places in the network as transformers knows it, and adapters are
added to the weights that they adapt.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from aoq.features.blocks import FromBlock
from aoq.features.outputs import Output
from aoq.features.pretrained import Half, is_dual_encoder, load_whole
from aoq.models.towers import ROLES, TowerPlan, Towers, Trunk


@dataclass(frozen=True)
class WholeTower:
    """A network of transformers, as its files hold it, with the trained weights."""

    half: Half
    name: str
    network: Any
    reading: Output
    "How the vector of the whole is read."

    @property
    def is_dual(self) -> bool:
        """Whether the network holds the other half too."""
        return is_dual_encoder(self.network)

    @property
    def projection(self) -> nn.Linear | None:
        """The projection of a single tower to the space of the dual encoder that it is from."""
        name = {"vision": "visual_projection", "text": "text_projection"}[self.half]
        is_read = self.reading.kind == "pooled" and not self.is_dual
        return getattr(self.network, name, None) if is_read else None


def whole_towers(model: Towers, plans: tuple[TowerPlan, TowerPlan]) -> tuple[WholeTower, ...]:
    """Return the image and the text tower of a trained model; of a dual encoder, one network."""
    networks = {plan.name: load_whole(plan.name, ROLES[plan.half]) for plan in plans}
    for plan, trunk in zip(plans, (model.image_trunk, model.text_trunk), strict=True):
        if trunk is not None:
            _replace_weights(networks[plan.name], learned_weights(trunk), plan.half)
    return tuple(
        WholeTower(plan.half, plan.name, networks[plan.name], plan.reading) for plan in plans
    )


def learned_weights(trunk: Trunk) -> dict[str, Tensor]:
    """Return the weights of a tower that learned, by their names in it; adapters are merged."""
    split = trunk.network if isinstance(trunk.network, FromBlock) else None
    network: Any = trunk.network if split is None else split.network
    merged = {
        f"{name}.weight": part.base_layer.weight + part.get_delta_weight("default")
        for name, part in network.named_modules()
        if hasattr(part, "get_delta_weight")
    }
    adapters = tuple(name.removesuffix("weight") for name in merged)
    learned = {
        name: weight
        for name, weight in network.named_parameters()
        if weight.requires_grad and not name.startswith(adapters)
    }
    return {
        name if split is None else split.whole_name(name): weight.detach()
        for name, weight in (learned | merged).items()
    }


def _replace_weights(network: nn.Module, weights: dict[str, Tensor], half: Half) -> None:
    """Replace weights of a whole network by those of its half."""
    known = dict(network.named_parameters())
    inner = {"vision": "vision_model", "text": "text_model"}[half]
    for name, weight in weights.items():
        names = (name, name.removeprefix("model."), f"{inner}.{name}")
        with torch.no_grad():
            known[next(each for each in names if each in known)].copy_(weight)
