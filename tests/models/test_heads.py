"""Heads and generalised pooling, against plain loops."""

from __future__ import annotations

import pytest
import torch

from aoq.config import ModelConfig
from aoq.models.heads import GeneralisedPooling, Head

LENGTHS = torch.tensor([5, 2, 1, 5])


def states_and_mask() -> tuple[torch.Tensor, torch.Tensor]:
    states = torch.randn(4, 5, 7, generator=torch.Generator().manual_seed(0))
    return states, torch.arange(5) < LENGTHS[:, None]


def test_pooling_weighs_the_sorted_values_of_each_feature() -> None:
    torch.manual_seed(0)
    pooling = GeneralisedPooling()
    states, mask = states_and_mask()
    found = pooling(states, mask)
    weights = pooling._weights(mask)
    for row, length in enumerate(LENGTHS.tolist()):
        for feature in range(7):
            values = sorted(states[row, :length, feature].tolist(), reverse=True)
            ranked = zip(values, weights[row].tolist(), strict=False)
            assert found[row, feature].item() == pytest.approx(
                sum(value * weight for value, weight in ranked), abs=1e-5
            )
    torch.testing.assert_close(weights.sum(dim=1), torch.ones(4))


def test_pooling_does_not_depend_on_order_or_padding() -> None:
    torch.manual_seed(0)
    pooling = GeneralisedPooling()
    states, mask = states_and_mask()
    found = pooling(states, mask)
    turned = states.clone()
    turned[0] = states[0].flip(0)
    turned[~mask] = 1e6
    torch.testing.assert_close(pooling(turned, mask), found)
    wider = torch.cat([turned, turned.new_zeros(4, 3, 7)], dim=1)
    wide_mask = torch.cat([mask, mask.new_zeros(4, 3)], dim=1)
    torch.testing.assert_close(pooling(wider, wide_mask), found, rtol=1e-5, atol=1e-5)


def test_one_state_is_pooled_to_itself() -> None:
    states, mask = states_and_mask()
    torch.testing.assert_close(GeneralisedPooling()(states, mask)[2], states[2, 0])


def test_a_residual_head_adds_two_layers_to_a_linear_one() -> None:
    config = ModelConfig(joint_width=3, head="residual", head_width=5, head_dropout=0.5)
    head = Head(config, 7).eval()
    vectors = torch.randn(11, 7) * 4 + 2
    head.standardise(vectors)
    scaled = (vectors - vectors.mean(dim=0)) / vectors.std(dim=0)
    assert head.residual is not None
    first, last = head.residual[0], head.residual[3]
    hidden = torch.nn.functional.gelu(scaled @ first.weight.T + first.bias)
    expected = scaled @ head.linear.weight.T + head.linear.bias
    expected = expected + hidden @ last.weight.T + last.bias
    torch.testing.assert_close(head(vectors), expected, rtol=1e-4, atol=1e-5)
    assert Head(ModelConfig(head="linear"), 7).residual is None


def test_a_feature_that_never_changes_does_not_explode() -> None:
    head = Head(ModelConfig(joint_width=3, head="linear"), 2)
    head.standardise(torch.tensor([[1.0, 5.0], [2.0, 5.0]]))
    assert torch.isfinite(head(torch.tensor([[1.5, 5.0]]))).all()


def test_dropout_takes_features_of_the_input_away_in_training_only() -> None:
    torch.manual_seed(0)
    config = ModelConfig(joint_width=3, head="linear")
    head, usual = Head(config, 400, dropout=0.25), Head(config, 400)
    usual.load_state_dict(head.state_dict())
    vectors = torch.randn(1, 400)
    torch.testing.assert_close(head.eval()(vectors), usual(vectors), rtol=0, atol=0)
    seen: list[torch.Tensor] = []
    head.linear.register_forward_hook(lambda _, inputs, __: seen.append(inputs[0]))
    head.train()(vectors)
    (read,) = seen
    is_kept = read != 0
    assert 0.65 < is_kept.float().mean() < 0.85
    torch.testing.assert_close(read[is_kept], vectors[is_kept] / 0.75)
