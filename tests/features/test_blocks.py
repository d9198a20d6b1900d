"""A network that is split between two blocks computes what the whole one does."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from aoq.errors import UserError
from aoq.features.blocks import BeforeBlock, FromBlock, find_blocks, require_blocks, vector_of
from aoq.features.outputs import Output
from aoq.features.pretrained import TEXT, VISION, Half, load_half
from tests.towers import SIDE, TinyModels

PIXELS = torch.randn(3, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
TOKENS = torch.tensor([[1, 20, 30, 40, 3], [1, 25, 3, 0, 0]])
MASK = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
INPUTS: dict[Half, dict[str, torch.Tensor]] = {
    "vision": {"pixel_values": PIXELS},
    "text": {"input_ids": TOKENS, "attention_mask": MASK},
}
ROLES = {"vision": VISION, "text": TEXT}
CASES = [
    ("clip", "vision"),
    ("clip", "text"),
    ("siglip", "vision"),
    ("siglip", "text"),
    ("bert", "text"),
    ("vit", "vision"),
]


def load(towers: TinyModels, name: str, half: Half) -> nn.Module:
    return load_half(str(getattr(towers, name)), half, projected=True, role=ROLES[half])[0]


@pytest.mark.parametrize(("name", "half"), CASES)
@pytest.mark.parametrize("block", [1, 2, 3])
def test_both_parts_together_are_the_whole(
    towers: TinyModels, name: str, half: Half, block: int
) -> None:
    inputs = INPUTS[half]
    if name == "siglip" and half == "text":
        inputs = {"input_ids": TOKENS, "attention_mask": torch.ones_like(MASK)}
    with torch.no_grad():
        expected = load(towers, name, half)(**inputs)
        before = BeforeBlock(load(towers, name, half), block)
        states = before(**inputs)
        found = FromBlock(load(towers, name, half), block)(states, **inputs)
    for output in (Output("pooled"), Output("cls"), Output("mean")):
        torch.testing.assert_close(vector_of(found, output), vector_of(expected, output))


def test_an_image_network_takes_one_blank_input_for_many_states(towers: TinyModels) -> None:
    with torch.no_grad():
        expected = load(towers, "clip", "vision")(pixel_values=PIXELS)
        states = BeforeBlock(load(towers, "clip", "vision"), 2)(pixel_values=PIXELS)
        rest = FromBlock(load(towers, "clip", "vision"), 2)
        found = rest(states, pixel_values=torch.zeros(1, 3, SIDE, SIDE))
    pooled = Output("pooled")
    torch.testing.assert_close(vector_of(found, pooled), vector_of(expected, pooled))


def test_what_comes_before_gets_no_gradient(towers: TinyModels) -> None:
    rest = FromBlock(load(towers, "vit", "vision"), 2)
    rest(pixel_values=PIXELS).last_hidden_state.sum().backward()
    learning = {name for name, weight in rest.named_parameters() if weight.grad is not None}
    assert learning
    assert not any("embeddings" in name for name in learning)


def test_a_network_without_blocks_cannot_be_split(towers: TinyModels) -> None:
    assert find_blocks(nn.Sequential(nn.Linear(2, 2))) is None
    with pytest.raises(UserError, match="no list of equal blocks"):
        require_blocks("flat", nn.Sequential(nn.Linear(2, 2)), VISION, at_least=1)
    with pytest.raises(UserError, match="3 blocks, not 4"):
        require_blocks("vit", load(towers, "vit", "vision"), VISION, at_least=4)
