"""The weights of Eq. 5, their controls, and the paper's own gradients."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from aoq.config import LossConfig
from aoq.losses import (
    BatchScores,
    OfflineScores,
    adaptive_weights,
    compute_loss,
)
from tests.losses.cases import (
    CONSTANTS,
    SIZE,
    masks,
    random_scores,
)


def one_weight_below_zero():
    """The first image's online hinge is 0.2 - 0.5 + 0.4 = 0.1, its weight 1.5 - (1 - 0.4) / 0.3."""
    matrix = torch.tensor([[0.5, 0.4], [-1.0, 0.9]], dtype=torch.float64, requires_grad=True)
    low = torch.full((2,), -1.0, dtype=torch.float64)
    i2t = torch.tensor([1.0, -1.0], dtype=torch.float64, requires_grad=True)
    return BatchScores(matrix, offline=OfflineScores(i2t, low, low, low))


def test_a_weight_below_zero_is_kept():
    scores, config = one_weight_below_zero(), LossConfig(name="adap_off_quin")
    assert adaptive_weights(scores, config)[0][0].item() == pytest.approx(-0.5)
    term = compute_loss(scores, config).terms["i2t_online"]
    assert term.item() == pytest.approx(-0.5 * 0.1)
    term.backward()
    assert scores.matrix.grad[0, 0].item() == pytest.approx(0.5)


def test_a_clamped_weight_below_zero_takes_its_hinge_out():
    scores, config = one_weight_below_zero(), LossConfig(name="adap_off_quin", clamp_weights=True)
    assert adaptive_weights(scores, config)[0][0].item() == 0
    term = compute_loss(scores, config).terms["i2t_online"]
    assert term.item() == 0
    term.backward()
    assert not scores.matrix.grad.any()
    assert not scores.offline.i2t.grad.any()


def test_clamping_leaves_weights_above_zero_alone():
    config = LossConfig(name="adap_off_quin", **CONSTANTS)
    for free, clamped in zip(
        adaptive_weights(random_scores(), config),
        adaptive_weights(random_scores(), replace(config, clamp_weights=True)),
        strict=True,
    ):
        assert (free > 0).any()
        assert (free < 0).any()
        assert torch.equal(clamped[free > 0], free[free > 0])


def test_gradients_of_the_adaptive_loss_are_the_closed_forms_of_the_paper():
    """The three derivatives given after Eq. 5, for the image anchors.

    With I1, I2, I3 the indicators of the online, offline and derived hinge:
      dL/dS(i, t)     = ((S_off - S_on) / alpha - beta) I1 - I2 - I3
      dL/dS(i, t_off) = ((S - S_on) / alpha - gamma1 / alpha) I1 + I2
      dL/dS(i, t_on)  = ((2 S_on - S - S_off) / alpha + beta + gamma1 / alpha) I1
    Text anchors are kept out by giving them hinges that are never active.
    """
    config = LossConfig(name="adap_off_quin", margin_offline=0.05)
    alpha, beta, gamma1, gamma2 = config.alpha, config.beta, 0.2, 0.05
    random = torch.Generator().manual_seed(3)
    size = 64
    positive = (torch.rand(size, generator=random, dtype=torch.float64)).requires_grad_()
    online = (torch.rand(size, generator=random, dtype=torch.float64)).requires_grad_()
    off = (torch.rand(size, generator=random, dtype=torch.float64)).requires_grad_()
    derived = torch.rand(size, generator=random, dtype=torch.float64)
    # Two columns a pair: the positive on the diagonal, the online negative beside it; a text
    # anchor sees only far-off negatives.
    matrix = torch.full((2 * size, 2 * size), -9.0, dtype=torch.float64)
    rows = torch.arange(size)
    matrix[rows, rows] = positive
    matrix[rows, rows + size] = online
    matrix[rows + size, rows + size] = 9.0
    low = torch.full((2 * size,), -9.0, dtype=torch.float64)
    i2t, derived_all = low.clone(), low.clone()
    i2t[:size], derived_all[:size] = off, derived
    offline = OfflineScores(i2t=i2t, t2i=low, derived=derived_all, partners=low)
    compute_loss(BatchScores(matrix, offline=offline), config).total.backward()

    s, on, o = positive.detach(), online.detach(), off.detach()
    first = (gamma1 - s + on > 0).double()
    second = (gamma2 - s + o > 0).double()
    third = (gamma2 - s + derived > 0).double()
    closed_forms = {
        positive: ((o - on) / alpha - beta) * first - second - third,
        off: ((s - on) / alpha - gamma1 / alpha) * first + second,
        online: ((2 * on - s - o) / alpha + beta + gamma1 / alpha) * first,
    }
    for scores, expected in closed_forms.items():
        torch.testing.assert_close(scores.grad, expected)


@pytest.mark.parametrize("control", ["constant", "detached"])
def test_gradients_do_not_flow_through_the_weights_of_a_control(control):
    """They are those of the hinges, each times its weight."""
    config, scores = LossConfig(name="adap_off_quin", weights=control), random_scores()
    i2t, t2i = adaptive_weights(scores, config)
    assert not i2t.requires_grad
    assert not t2i.requires_grad
    loss = compute_loss(scores, config)
    loss.total.backward()
    again = random_scores()
    plain = compute_loss(again, replace(config, name="off_quin"))
    replace(plain, weights={"i2t_online": i2t, "t2i_online": t2i}).total.backward()
    torch.testing.assert_close(scores.matrix.grad, again.matrix.grad)


def test_constant_weights_have_the_mean_of_the_adaptive_ones_in_each_direction():
    scores = random_scores(negatives=masks()["anchors without negatives"])
    config = LossConfig(name="adap_off_quin", **CONSTANTS)
    constant = adaptive_weights(scores, replace(config, weights="constant"))
    sides = (scores.negative_mask.any(dim=1), scores.negative_mask.any(dim=0))
    for free, same, found in zip(adaptive_weights(scores, config), constant, sides, strict=True):
        torch.testing.assert_close(same, free[found].mean().detach().expand(SIZE))


def test_shuffled_weights_are_those_of_the_pair_before():
    scores = random_scores()
    off = scores.offline
    config = LossConfig(name="adap_off_quin", **CONSTANTS)
    rolled = OfflineScores(off.i2t.roll(1), off.t2i.roll(1))
    expected = adaptive_weights(replace(scores, offline=rolled), config)
    found = adaptive_weights(scores, replace(config, weights="shuffled"))
    assert all(torch.equal(one, two) for one, two in zip(found, expected, strict=True))
