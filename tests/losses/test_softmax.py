"""The losses of a softmax or sigmoid: limits, temperature and bias."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from aoq.config import LossConfig
from aoq.losses import (
    BatchScores,
    OfflineScores,
    compute_loss,
)
from tests.losses.cases import (
    LOG_LOSSES,
    masks,
    random_scores,
)


def test_a_learned_bias_takes_the_place_of_the_config_s():
    scores, config = random_scores(), LossConfig(name="siglip")
    bias = torch.tensor(-4.0, dtype=torch.float64, requires_grad=True)

    def loss(bias):
        return compute_loss(replace(scores, bias=bias), config).total

    assert loss(bias).item() == compute_loss(scores, replace(config, bias=-4.0)).total.item()
    assert torch.autograd.gradcheck(loss, (bias,))


@pytest.mark.parametrize("name", ["infonce", "softmax_offline"])
def test_a_softmax_falls_to_zero_as_scores_part_and_never_reaches_it(name):
    matrix, low = torch.eye(5, dtype=torch.float64), torch.zeros(5, dtype=torch.float64)
    losses = [
        compute_loss(
            BatchScores(gap * matrix, offline=OfflineScores(low, low)), LossConfig(name=name)
        ).total.item()
        for gap in (0.0, 0.5, 1.0, 1.5)
    ]
    assert losses == sorted(losses, reverse=True)
    assert 0 < losses[-1] < 1e-7


@pytest.mark.parametrize("name", ["infonce", "softmax_offline"])
def test_a_softmax_of_equal_scores_is_the_log_of_their_number(name):
    scores = BatchScores(torch.full((4, 4), 0.3), offline=OfflineScores(*torch.full((2, 4), 0.3)))
    loss = compute_loss(scores, LossConfig(name=name, offline_weight=2.5)).total
    n_counted = 4 + (2.5 if name == "softmax_offline" else 0)
    assert loss.item() == pytest.approx(2 * 4 * math.log(n_counted))


@pytest.mark.parametrize("name", sorted(LOG_LOSSES))
def test_a_learned_scale_takes_the_place_of_the_temperature_and_gets_its_gradient(name):
    scores, config = random_scores(negatives=masks()["other positives"]), LossConfig(name=name)
    scale = torch.tensor(1 / 0.2, dtype=torch.float64, requires_grad=True)

    def loss(scale):
        return compute_loss(replace(scores, scale=scale), config).total

    fixed = compute_loss(scores, replace(config, temperature=0.2)).total
    assert loss(scale).item() == pytest.approx(fixed.item())
    assert torch.autograd.gradcheck(loss, (scale,))
