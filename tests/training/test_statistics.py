"""Windows of steps worked out by hand, and collapses that are seen once."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import torch

from aoq.config import LossConfig, RoundConfig
from aoq.losses import LOSSES, BatchScores, OfflineScores, compute_loss
from aoq.training.statistics import COLLAPSED, CollapseWatch, StepStatistics
from aoq.training.step import Outcome

# Positives 0.75, 1, 0.5; hardest texts 0.75, 0.5, 0.25; hardest images 0.5, 0.75, 0.25.
MATRIX = torch.tensor([[0.75, 0.75, 0.25], [0.5, 1.0, 0.125], [0.125, 0.25, 0.5]])
OFFLINE = OfflineScores(
    i2t=torch.tensor([0.5, 0.25, 0.75]),
    t2i=torch.tensor([0.5, 1.0, 0.0]),
    derived=torch.tensor([1.0, 2.0, 0.0]),
    partners=torch.tensor([0.0, 2.0, 1.0]),
    derived_mask=torch.tensor([True, False, True]),
)
LOSS = {"margin_online": 0.25, "margin_offline": 0.0, "alpha": 0.25, "beta": 1.0}


def outcome_of(name="online", matrix=MATRIX, *, negatives=None, offline=OFFLINE, **changes):
    if offline is OFFLINE and len(matrix) != len(OFFLINE.i2t):
        offline = None
    scores = BatchScores(matrix, negatives, offline)
    return Outcome(scores, compute_loss(scores, LossConfig(name=name, **(LOSS | changes))))


def window(*outcomes):
    """A window with one step for each outcome."""
    statistics = StepStatistics()
    for outcome in outcomes:
        terms = {name: value.item() for name, value in outcome.loss.terms.items()}
        statistics.add(terms, [outcome])
    return statistics


def mask(*rows):
    return torch.tensor(rows, dtype=torch.bool)


def test_a_window_without_steps_is_empty():
    assert StepStatistics().summary() == {"steps": 0}
    assert StepStatistics().values() == {}


def test_scores_are_described_by_kind_both_directions_together():
    scores = window(outcome_of("off_tri")).summary()["scores"]
    assert scores == {
        # 0.5 0.75 1
        "positive": {
            "p5": 0.525, "p25": 0.625, "p50": 0.75, "p75": 0.875, "p95": 0.975, "mean": 0.75
        },
        # 0.25 0.25 0.5 0.5 0.75 0.75
        "online": {
            "p5": 0.25, "p25": 0.3125, "p50": 0.5, "p75": 0.6875, "p95": 0.75, "mean": 0.5
        },
        # 0 0.25 0.5 0.5 0.75 1
        "offline": {
            "p5": 0.0625, "p25": 0.3125, "p50": 0.5, "p75": 0.6875, "p95": 0.9375, "mean": 0.5
        },
    }  # fmt: skip


def test_a_loss_without_offline_negatives_has_no_scores_of_them():
    summary = window(outcome_of("online", offline=None)).summary()
    assert summary["scores"].keys() == {"positive", "online"}
    assert "weights" not in summary


def test_a_hinge_is_active_above_zero_and_not_at_zero():
    active = window(outcome_of("off_quin")).summary()["active"]
    assert active == {
        "i2t_online": 0.3333,  # 0.25, -0.25, 0
        "t2i_online": 0.0,  # 0, 0, 0
        "i2t_offline": 0.3333,  # -0.25, -0.75, 0.25
        "t2i_offline": 0.0,  # -0.25, 0, -0.5
        "i2t_derived": 0.5,  # 0.25, no negative, -0.5
        "t2i_derived": 0.5,  # -0.75, no negative, 0.5
    }


def test_adaptive_weights_are_described_with_their_share_below_zero():
    # 1 - (S_off - S_on) / 0.25 = 2, 2, -1 and 1, 0, 2: zero itself is not below zero
    weights = window(outcome_of("adap_off_quin")).summary()["weights"]
    assert weights == {
        "p5": -0.75, "p25": 0.25, "p50": 1.5, "p75": 2.0, "p95": 2.0, "mean": 1.0,
        "below_zero": 0.1667,
    }  # fmt: skip


def test_anchors_without_negatives_are_left_out():
    negatives = mask([0, 0, 0], [1, 0, 1], [1, 1, 0])  # the first image has none
    outcome = outcome_of("adap_off_quin", negatives=negatives, margin_online=0.5)
    statistics = window(outcome)
    assert sorted(statistics.values()["online"]) == [0.125, 0.25, 0.25, 0.5, 0.5]
    # 1 - 4 * (0.25 - 0.5), (0.75 - 0.25); (0.5 - 0.5), (1 - 0.25), (0 - 0.125)
    assert statistics.values()["weights"].tolist() == [2.0, -1.0, 1.0, -2.0, 1.5]
    active = statistics.summary()["active"]
    assert active["i2t_online"] == 0.5  # -, 0, 0.25
    assert active["t2i_online"] == 0.6667  # 0.25, -0.25, 0.125


def test_a_batch_without_any_negative_has_no_online_scores_weights_or_shares():
    outcome = outcome_of("adap_off_quin", negatives=torch.zeros(3, 3, dtype=torch.bool))
    summary = window(outcome).summary()
    assert summary["scores"].keys() == {"positive", "offline"}
    assert "weights" not in summary
    assert not summary["active"].keys() & {"i2t_online", "t2i_online"}


def test_equation_one_counts_its_negatives_and_not_its_anchors():
    every = window(outcome_of("standard", offline=None)).summary()
    assert every["active"] == {"i2t_all": 0.1667, "t2i_all": 0.0}  # (0, 1) of six
    negatives = mask([0, 1, 1], [1, 0, 0], [1, 1, 0])
    fewer = window(outcome_of("standard", offline=None, negatives=negatives)).summary()
    assert fewer["active"] == {"i2t_all": 0.2, "t2i_all": 0.0}
    assert every["scores"]["online"]["p50"] == 0.5


def test_only_offline_has_the_shares_of_its_own_hinges():
    summary = window(outcome_of("only_offline")).summary()
    kinds = {name.partition("_")[2] for name in summary["active"]}
    assert kinds == {"offline", "derived"}
    assert "weights" not in summary


def test_derived_pairs_of_online_negatives_count_where_both_are_negatives():
    """t_on = 1, 0, 1 and i_on = 1, 0, 0: only the last has (i_on, t_on) = (0, 1) off the diagonal.

    Its two pairs score 0.75 and 0.5 against 0.5; the partner's margin is not broken.
    """
    offline = OfflineScores(i2t=OFFLINE.i2t, t2i=OFFLINE.t2i)
    masked = outcome_of("online_quin", offline=offline, redraw_online=False)
    active = window(masked).summary()["active"]
    assert (active["i2t_derived"], active["t2i_derived"]) == (1.0, 0.0)


def test_softmax_losses_have_terms_and_scores_and_no_hinges():
    summary = window(outcome_of("softmax_offline", temperature=0.5)).summary()
    assert set(summary["loss"]) == {"i2t_softmax", "t2i_softmax"}
    assert summary["active"] == {}
    assert summary["scores"].keys() == {"positive", "online", "offline"}
    assert not CollapseWatch(0.2, patience=1).sees([outcome_of("infonce", torch.zeros(3, 3))])


def test_terms_are_means_over_the_steps_that_have_them():
    statistics = StepStatistics()
    statistics.add({"i2t_online": 1.0, "captions": 3.0}, [outcome_of()])
    statistics.add({"i2t_online": 2.0, "captions": 4.0}, [outcome_of()])
    statistics.add({"i2t_all": 5.0}, [outcome_of("standard")])
    summary = statistics.summary()
    assert summary["steps"] == 3
    assert summary["loss"] == {"i2t_online": 1.5, "captions": 3.5, "i2t_all": 5.0}


def test_the_parts_of_a_step_are_one_step():
    statistics = StepStatistics()
    flat = outcome_of(matrix=torch.zeros(2, 2), offline=None)
    statistics.add({}, [outcome_of(offline=None), flat])
    summary = statistics.summary()
    assert summary["steps"] == 1
    assert summary["active"] == {"i2t_online": 0.6, "t2i_online": 0.4}  # 1 + 2 and 0 + 2 of five
    assert statistics.values()["positive"].tolist() == [0.75, 1.0, 0.5, 0.0, 0.0]


def test_the_clock_runs_from_the_beginning_of_the_window(monkeypatch):
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    statistics = window(outcome_of(), outcome_of())
    now = 108.0
    summary = statistics.summary()
    assert (summary["seconds"], summary["steps_per_second"]) == (8.0, 0.25)


@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_gives_plain_json_and_keeps_no_graph(name):
    matrix = MATRIX.clone().requires_grad_()
    outcome = outcome_of(name, matrix)
    outcome.loss.total.backward()
    statistics = window(outcome)
    assert json.loads(json.dumps(statistics.summary(), allow_nan=False))["steps"] == 1
    assert all(values.dtype == np.float32 for values in statistics.values().values())
    with torch.no_grad():
        matrix.zero_()
    assert statistics.values()["positive"].tolist() == [0.75, 1.0, 0.5]


FLAT = torch.full((4, 4), 0.3)
HEALTHY = 0.2 + 0.5 * torch.eye(4)


def seen(watch, *matrices, name="online", **options):
    """What the watch says to one step after the other."""
    options = {"offline": None, "margin_online": 0.2} | options
    return [watch.sees([outcome_of(name, matrix, **options)]) for matrix in matrices]


def test_the_plateau_is_two_margins_a_pair_and_times_beta_under_equation_five():
    offline = OfflineScores(*[FLAT[0]] * 4)
    online = outcome_of("online", FLAT, margin_online=0.2).loss.total
    assert float(online) == pytest.approx(2 * 4 * 0.2)
    adaptive = outcome_of("adap_off_quin", FLAT, offline=offline, margin_online=0.2, beta=1.5)
    weighted = adaptive.loss.terms["i2t_online"] + adaptive.loss.terms["t2i_online"]
    assert float(weighted) == pytest.approx(2 * 4 * 0.2 * 1.5)


def test_a_collapse_is_seen_once_and_again_after_a_recovery():
    watch = CollapseWatch(margin=0.2, patience=3)
    assert seen(watch, *[FLAT] * 6) == [False, False, True, False, False, False]
    assert seen(watch, HEALTHY, *[FLAT] * 4) == [False, False, False, True, False]


@pytest.mark.parametrize(("n_steps", "patience"), [(1, 30), (40, 40), (470, 200)])
def test_an_epoch_of_a_small_data_set_is_patience_enough(n_steps, patience):
    watch = CollapseWatch.for_epochs_of(n_steps, margin=0.2)
    told = seen(watch, *[FLAT] * patience)
    assert told == [False] * (patience - 1) + [True]
    assert watch.is_stuck
    seen(watch, HEALTHY)
    assert not watch.is_stuck


def test_a_healthy_round_of_forty_steps_an_epoch_may_touch_the_plateau():
    watch = CollapseWatch.for_epochs_of(40, margin=0.2)
    assert not any(seen(watch, *([FLAT] * 15 + [HEALTHY]) * 13))


def test_steps_on_the_plateau_count_in_a_row_only():
    watch = CollapseWatch(margin=0.2, patience=3)
    assert not any(seen(watch, *[FLAT, FLAT, HEALTHY] * 5))


def test_scores_are_alike_below_a_tenth_of_the_margin():
    def apart(gap):
        return FLAT + gap * torch.eye(4)

    assert seen(CollapseWatch(margin=0.2, patience=1), apart(0.019), apart(-0.019)) == [True, False]
    assert seen(CollapseWatch(margin=0.2, patience=1), apart(0.021), apart(-0.021)) == [False] * 2


def test_a_healthy_batch_at_the_value_of_the_plateau_is_not_a_collapse():
    matrix = torch.tensor([[0.5, 0.7], [0.1, 0.5]])  # hinges 0.4, 0 and 0, 0.4
    assert float(outcome_of(matrix=matrix, margin_online=0.2).loss.total) == pytest.approx(0.8)
    assert not any(seen(CollapseWatch(margin=0.2, patience=1), matrix, HEALTHY))


@pytest.mark.parametrize("name", ["standard", "only_offline"])
def test_a_loss_without_online_hinges_begins_the_count_anew(name):
    watch = CollapseWatch(margin=0.2, patience=2)
    offline = OfflineScores(*[FLAT[0]] * 4)
    assert seen(watch, FLAT) == [False]
    assert seen(watch, *[FLAT] * 4, name=name, offline=offline) == [False] * 4
    assert seen(watch, FLAT, FLAT) == [False, True]


def test_anchors_without_negatives_neither_hide_a_collapse_nor_make_one():
    negatives = ~torch.eye(4, dtype=torch.bool)
    negatives[0] = False
    assert seen(CollapseWatch(margin=0.2, patience=1), FLAT, negatives=negatives) == [True]
    none = torch.zeros(4, 4, dtype=torch.bool)
    assert seen(CollapseWatch(margin=0.2, patience=1), FLAT, negatives=none) == [False]


def test_the_parts_of_a_step_are_judged_together():
    def step(gap):
        return [outcome_of(matrix=m, offline=None) for m in (FLAT, FLAT + gap * torch.eye(4))]

    assert CollapseWatch(margin=0.2, patience=1).sees(step(0.03))
    assert not CollapseWatch(margin=0.2, patience=1).sees(step(0.05))


def test_the_sentence_for_people_names_settings_that_exist():
    named = re.findall(r"--round-one\.([a-z-]+)", COLLAPSED)
    assert "warmup-epochs" in named
    assert {name.replace("-", "_") for name in named} <= RoundConfig.__dataclass_fields__.keys()
