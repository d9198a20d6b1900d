"""Every loss against a plain loop over pairs, and Eq. 5 against the paper's own gradients."""

from __future__ import annotations

import pytest
import torch

from aoq.config import LossConfig
from aoq.errors import UserError
from aoq.losses import LOSSES, BatchScores, OfflineScores, compute_loss

DTYPES = [torch.float32, torch.float64]


def random_scores(size=7, *, dtype=torch.float64, seed=0, negatives=None):
    random = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return (torch.rand(*shape, generator=random, dtype=dtype) * 0.6).requires_grad_()

    offline = OfflineScores(draw(size), draw(size), draw(size), draw(size))
    return BatchScores(draw(size, size), negatives=negatives, offline=offline)


def hinge(value):
    return max(value, 0.0)


def plain_loop(scores, config):
    """Equations 1 to 5, one pair at a time, in Python's floats."""
    matrix, mask = scores.matrix.tolist(), scores.negative_mask.tolist()
    off = scores.offline
    size, total = len(matrix), 0.0
    for b in range(size):
        positive = matrix[b][b]
        texts = [matrix[b][c] for c in range(size) if mask[b][c]]
        images = [matrix[c][b] for c in range(size) if mask[c][b]]
        if config.name == "standard":
            total += sum(hinge(config.margin_online - positive + s) for s in texts + images)
            continue
        for negatives, off_score in ((texts, off.i2t[b].item()), (images, off.t2i[b].item())):
            if negatives:
                on_score = max(negatives)
                weight = 1.0
                if config.name == "adap_off_quin":
                    weight = config.beta - (off_score - on_score) / config.alpha
                total += weight * hinge(config.margin_online - positive + on_score)
            if config.name != "online":
                total += hinge(config.margin_offline - positive + off_score)
        if config.name in ("off_quin", "adap_off_quin"):
            for derived in (off.derived[b].item(), off.partners[b].item()):
                total += hinge(config.margin_offline - positive + derived)
    return total


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", LOSSES)
def test_each_loss_is_its_equation_summed_pair_by_pair(name, dtype):
    config = LossConfig(name=name, margin_online=0.25, margin_offline=0.05, alpha=0.4, beta=1.2)
    scores = random_scores(dtype=dtype)
    assert compute_loss(scores, config).total.item() == pytest.approx(
        plain_loop(scores, config), rel=1e-5
    )


@pytest.mark.parametrize("name", LOSSES)
def test_other_positives_in_the_batch_are_no_negatives(name):
    negatives = ~torch.eye(7, dtype=torch.bool)
    negatives[0, 1] = negatives[1, 0] = negatives[4, 2] = False
    config = LossConfig(name=name)
    scores = random_scores(negatives=negatives)
    assert compute_loss(scores, config).total.item() == pytest.approx(plain_loop(scores, config))


@pytest.mark.parametrize("name", LOSSES)
def test_an_anchor_without_negatives_adds_nothing_and_stays_finite(name):
    scores = random_scores(negatives=torch.zeros(7, 7, dtype=torch.bool))
    loss = compute_loss(scores, LossConfig(name=name)).total
    loss.backward()
    assert loss.item() == pytest.approx(plain_loop(scores, LossConfig(name=name)))
    assert torch.isfinite(scores.matrix.grad).all()


@pytest.mark.parametrize("name", LOSSES)
def test_there_is_nothing_to_learn_when_every_margin_is_met(name):
    matrix = (torch.eye(5, dtype=torch.float64) * 2 - 1).requires_grad_()
    low = torch.full((5,), -1.0, dtype=torch.float64)
    scores = BatchScores(matrix, offline=OfflineScores(low, low, low, low))
    loss = compute_loss(scores, LossConfig(name=name)).total
    loss.backward()
    assert loss.item() == 0
    assert not matrix.grad.any()


def test_masked_derived_pairs_add_nothing():
    scores = random_scores()
    mask = torch.tensor([True, False] * 3 + [True])
    off = scores.offline
    masked = OfflineScores(off.i2t, off.t2i, off.derived, off.partners, derived_mask=mask)
    config = LossConfig(name="off_quin")
    terms = compute_loss(BatchScores(scores.matrix, offline=masked), config).terms
    expected = torch.relu(off.derived - scores.positive)[mask].sum()
    assert terms["i2t_derived"].item() == pytest.approx(expected.item())


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


@pytest.mark.parametrize("name", LOSSES)
def test_swapping_modalities_swaps_the_directions(name):
    scores, config = random_scores(), LossConfig(name=name)
    off = scores.offline
    swapped = BatchScores(
        scores.matrix.T, offline=OfflineScores(off.t2i, off.i2t, off.derived, off.partners)
    )
    forward, backward = compute_loss(scores, config).terms, compute_loss(swapped, config).terms
    assert forward.keys() == backward.keys()
    for term in forward:
        if "derived" not in term:
            side = "t2i" if term.startswith("i2t") else "i2t"
            other = side + term[3:]
            assert forward[term].item() == pytest.approx(backward[other].item())


def test_an_offline_loss_without_offline_scores_says_what_to_do():
    with pytest.raises(UserError, match="mine"):
        compute_loss(BatchScores(torch.eye(3)), LossConfig(name="off_tri"))
