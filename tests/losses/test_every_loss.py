"""Every loss with every option against a plain loop, and what all losses have in common."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest
import torch

from aoq.config import LossConfig, LossName
from aoq.errors import UserError
from aoq.losses import (
    LOSSES,
    BatchScores,
    LossTerms,
    OfflineScores,
    compute_loss,
)
from tests.losses.cases import (
    BELONGS_TO,
    CASES,
    CONSTANTS,
    HINGE_LOSSES,
    KINDS,
    OPTIONS,
    SIZE,
    assert_equal_to_the_loop,
    assert_sums_pair_by_pair,
    masks,
    passes_gradients,
    random_scores,
)


def test_every_loss_that_can_be_named_is_tested():
    assert set(KINDS) == set(LOSSES) == set(get_args(LossName))


@pytest.mark.parametrize(("name", "option"), CASES)
def test_each_loss_is_its_equation_summed_pair_by_pair(name, option):
    for mask in masks():
        assert_sums_pair_by_pair(name, option, mask, dtype=torch.float64)


@pytest.mark.parametrize("name", LOSSES)
def test_each_loss_is_computed_in_single_precision_too(name):
    assert_sums_pair_by_pair(name, "all at once", "other positives", dtype=torch.float32)


@pytest.mark.parametrize("name", LOSSES)
def test_without_a_mask_everything_off_the_diagonal_is_negative(name):
    config = LossConfig(name=name, **CONSTANTS)
    assert_equal_to_the_loop(random_scores(), config)
    masked = random_scores(negatives=masks()["only the diagonal"])
    assert compute_loss(random_scores(), config).total == compute_loss(masked, config).total


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("name", LOSSES)
def test_batches_of_one_and_two_pairs_follow_the_equations(name, size):
    assert_equal_to_the_loop(random_scores(size), LossConfig(name=name, **CONSTANTS))


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("name", LOSSES)
def test_an_option_changes_the_losses_it_belongs_to_and_no_other(name, option):
    """The random scores above would not tell a missing option otherwise."""
    plain = LossConfig(name=name, **CONSTANTS)
    changed = replace(plain, **OPTIONS[option])

    def loss_and_slopes(config):
        found = []
        for seed in range(3):
            scores = random_scores(seed=seed)
            loss = compute_loss(scores, config).total
            loss.backward()
            found += [loss.detach()[None], scores.matrix.grad.flatten()]
        return torch.cat(found)

    before, after = loss_and_slopes(plain), loss_and_slopes(changed)
    assert (not torch.equal(before, after)) == (name in BELONGS_TO[option])


@pytest.mark.parametrize(("name", "option"), [case for case in CASES if passes_gradients(*case)])
def test_gradients_are_the_slopes_of_the_loss(name, option):
    """By finite differences, so that weights have to pass gradients on as well."""
    config, negatives = LossConfig(name=name, **CONSTANTS, **OPTIONS[option]), masks()["mixed"]
    scores = random_scores()
    off = scores.offline

    def loss(matrix, *offline):
        drawn = OfflineScores(*offline, i2t_matches=off.i2t_matches, t2i_matches=off.t2i_matches)
        batch = BatchScores(matrix, negatives, drawn, likeness=scores.likeness)
        return compute_loss(batch, config).total

    inputs = (scores.matrix, off.i2t, off.t2i, off.derived, off.partners)
    assert torch.autograd.gradcheck(loss, inputs)


@pytest.mark.parametrize(("name", "option"), CASES)
def test_anchors_without_negatives_have_finite_gradients(name, option):
    scores = random_scores(negatives=masks()["no negatives at all"])
    compute_loss(scores, LossConfig(name=name, **OPTIONS[option])).total.backward()
    assert torch.isfinite(scores.matrix.grad).all()


@pytest.mark.parametrize(("name", "option"), [case for case in CASES if case[0] in HINGE_LOSSES])
def test_there_is_nothing_to_learn_when_every_margin_is_met(name, option):
    matrix = (torch.eye(5, dtype=torch.float64) * 2 - 1).requires_grad_()
    low = torch.full((5,), -1.0, dtype=torch.float64)
    likeness = torch.zeros(5, 5, dtype=torch.float64)
    offline = OfflineScores(low, low, low, low, i2t_matches=low + 1, t2i_matches=low + 1.5)
    scores = BatchScores(matrix, offline=offline, likeness=likeness)
    loss = compute_loss(scores, LossConfig(name=name, **OPTIONS[option])).total
    loss.backward()
    assert loss.item() == 0
    assert not matrix.grad.any()


@pytest.mark.parametrize("name", LOSSES)
def test_scores_may_be_as_low_as_a_model_likes(name):
    """Distances, say: the diagonal of a batch must not pass for its hardest negative."""
    scores = random_scores()
    offline = {name: part - 1e6 for name, part in vars(scores.offline).items() if part is not None}
    low = BatchScores(scores.matrix - 1e6, offline=OfflineScores(**offline))
    config = LossConfig(name=name, **CONSTANTS)
    if name == "siglip":  # it tells right from wrong by the scores themselves
        assert compute_loss(low, config).total.item() == pytest.approx(SIZE * 1e7, rel=1e-3)
        return
    assert_equal_to_the_loop(low, config, rel=1e-6)
    expected = compute_loss(scores, config).total.item()
    assert compute_loss(low, config).total.item() == pytest.approx(expected, rel=1e-6)


def test_the_total_is_made_of_hinges_weights_and_what_is_added():
    loss = LossTerms(
        {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([3.0, 4.0])},
        weights={"a": torch.tensor([10.0, -1.0])},
        auxiliary={"caption": torch.tensor(0.5)},
    )
    assert {name: value.item() for name, value in loss.terms.items()} == {
        "a": 8.0,
        "b": 7.0,
        "caption": 0.5,
    }
    assert loss.total.item() == 15.5


@pytest.mark.parametrize("name", LOSSES)
def test_swapping_modalities_swaps_the_directions(name):
    """A derived pair is one of an image and a text, whichever comes first: it stays."""
    negatives, config = masks()["mixed"], LossConfig(name=name, **CONSTANTS)
    scores = random_scores(negatives=negatives)
    off = scores.offline
    swapped = BatchScores(
        scores.matrix.T,
        negatives.T,
        OfflineScores(off.t2i, off.i2t, off.derived, off.partners),
    )
    forward, backward = compute_loss(scores, config).terms, compute_loss(swapped, config).terms
    other_side = {"i2t": "t2i", "t2i": "i2t"}
    for term, value in forward.items():
        side, _, kind = term.partition("_")
        same = term if kind in ("derived", "sigmoid") else f"{other_side[side]}_{kind}"
        assert value.item() == pytest.approx(backward[same].item())


@pytest.mark.parametrize(("name", "option"), [case for case in CASES if "shuffled" not in case[1]])
def test_the_order_of_the_pairs_in_a_batch_does_not_matter(name, option):
    config = LossConfig(name=name, **CONSTANTS, **OPTIONS[option])
    scores = random_scores(negatives=masks()["mixed"], derived_mask=torch.arange(SIZE) % 3 > 0)
    order = torch.randperm(SIZE, generator=torch.Generator().manual_seed(2))
    offline = {name: part[order] for name, part in vars(scores.offline).items()}
    moved = BatchScores(
        scores.matrix[order][:, order],
        scores.negatives[order][:, order],
        OfflineScores(**offline),
        likeness=scores.likeness[order][:, order],
    )
    expected = {name: value.item() for name, value in compute_loss(scores, config).terms.items()}
    found = {name: value.item() for name, value in compute_loss(moved, config).terms.items()}
    assert found == pytest.approx(expected)


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_asks_for_the_scores_that_its_config_says_it_needs(name):
    config, scores = LossConfig(name=name), random_scores()
    without = replace(scores, offline=None)
    if config.needs_candidates:
        with pytest.raises(UserError, match="needs the scores of offline negatives; mine"):
            compute_loss(without, config)
    else:
        compute_loss(without, config)
    without = replace(scores, offline=OfflineScores(scores.offline.i2t, scores.offline.t2i))
    if config.needs_derived_pairs:
        with pytest.raises(UserError, match="needs the scores of the derived pairs"):
            compute_loss(without, config)
    else:
        compute_loss(without, config)
