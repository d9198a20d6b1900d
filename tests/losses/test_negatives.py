"""Which negatives the hinges take: derived pairs, the next hardest, softened and estimated ones."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from aoq.config import LossConfig
from aoq.errors import UserError
from aoq.losses import (
    BatchScores,
    OfflineScores,
    compute_loss,
)
from tests.losses.cases import (
    CONSTANTS,
    ONLINE_LOSSES,
    SIZE,
    random_scores,
)


def test_derived_pairs_of_online_negatives_are_found_by_their_places():
    """The third text is the first image's hardest, the second image the first text's hardest."""
    matrix = torch.tensor(
        [[0.5, 0.1, 0.4, 0.0], [0.3, 0.9, 0.7, 0.0], [0.2, 0.6, 0.9, 0.0], [0.0, 0.0, 0.0, 0.9]]
    )
    derived, partners, mask = BatchScores(matrix).derived_online()
    assert (derived[0].item(), partners[0].item()) == pytest.approx((0.7, 0.6))
    assert mask[0]


def test_online_negatives_that_belong_together_derive_no_pair():
    scores = random_scores(2)  # the other pair is all there is to choose from
    terms = compute_loss(scores, LossConfig(name="online_quin", margin_offline=9.0)).terms
    assert terms["i2t_derived"] == terms["t2i_derived"] == 0


def test_masked_derived_pairs_add_nothing():
    scores = random_scores()
    mask = torch.tensor([True, False] * 3 + [True])
    off = scores.offline
    masked = OfflineScores(off.i2t, off.t2i, off.derived, off.partners, derived_mask=mask)
    config = LossConfig(name="off_quin")
    terms = compute_loss(BatchScores(scores.matrix, offline=masked), config).terms
    expected = torch.relu(off.derived - scores.positive)[mask].sum()
    assert terms["i2t_derived"].item() == pytest.approx(expected.item())


def test_the_next_hardest_takes_the_place_of_one_that_belongs_to_the_other():
    """The first pair's hardest, t_on = 1 and i_on = 1, are a pair; with (2, 1) the least is lost.

    Image 2 scores 0.5 with the first text, and text 2 only 0.1 with the first image.
    """
    matrix = torch.tensor([[0.9, 0.8, 0.1], [0.7, 0.9, 0.2], [0.5, 0.3, 0.9]])
    scores = BatchScores(matrix)
    derived, partners, mask = scores.derived_online()
    assert (derived[0].item(), partners[0].item()) == pytest.approx((0.3, 0.2))
    assert mask.all()
    assert not scores.derived_online(redraw=False)[2][0]


def test_a_likeness_of_one_takes_the_semantic_margin_off_and_of_zero_nothing():
    matrix = torch.tensor([[0.9, 0.8], [0.2, 0.7]])
    likeness = torch.tensor([[0.0, 1.0], [0.0, 0.0]])
    config = LossConfig(name="online", margin_online=0.2, semantic_margin=0.05)
    terms = compute_loss(BatchScores(matrix, likeness=likeness), config).terms
    assert terms["i2t_online"].item() == pytest.approx(0.05)  # 0.15 - 0.9 + 0.8
    assert terms["t2i_online"].item() == pytest.approx(0.25)  # 0.15 - 0.7 + 0.8


def test_semantic_margins_ask_for_the_likeness():
    scores = replace(random_scores(), likeness=None)
    with pytest.raises(UserError, match="need the likeness of images and texts"):
        compute_loss(scores, LossConfig(semantic_margin=0.1))


def test_selective_negatives_leave_the_plateau_and_are_the_hardest_elsewhere():
    """Where all scores are equal, the hinge falls on all negatives instead of on one."""
    matrix = torch.full((4, 4), 0.3, requires_grad=True)
    loss = compute_loss(BatchScores(matrix), LossConfig(name="online", selective=0.01))
    loss.total.backward()
    assert loss.total.item() == pytest.approx(2 * 4 * 0.2)
    others = ~torch.eye(4, dtype=torch.bool)
    torch.testing.assert_close(matrix.grad[others], torch.full((12,), 2 / 3))
    scores = random_scores()
    gap = (scores.positive - scores.i2t_online).abs().min().item()
    for name in ONLINE_LOSSES:
        plain = LossConfig(name=name, **CONSTANTS)
        total = compute_loss(scores, replace(plain, selective=gap / 100)).total
        assert total == compute_loss(scores, plain).total


@pytest.mark.parametrize("name", ["off_tri", "softmax_offline"])
def test_a_match_for_sure_teaches_nothing_as_an_offline_negative(name):
    """The random draws of one kind become matches, then the loss no longer sees their scores."""
    scores = random_scores()
    sure = torch.ones(SIZE, dtype=torch.float64)
    drawn = replace(scores.offline, i2t_matches=sure, t2i_matches=sure)
    config = LossConfig(name=name, weigh_matches=True)
    compute_loss(replace(scores, offline=drawn), config).total.backward()
    assert not drawn.i2t.grad.any()
    assert not drawn.t2i.grad.any()
    assert scores.matrix.grad.isfinite().all()


def test_matches_that_nobody_estimated_are_not_weighed():
    scores = random_scores()
    drawn = replace(scores.offline, i2t_matches=None)
    with pytest.raises(UserError, match="weigh_matches needs the probabilities"):
        compute_loss(replace(scores, offline=drawn), LossConfig(name="off_tri", weigh_matches=True))
