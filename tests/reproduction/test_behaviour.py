"""When a row passes the first of its group, and how many of its pairs are first both ways."""

from __future__ import annotations

import numpy as np
import pytest

from aoq.evaluation.metrics import PAPER_FIGURES
from aoq.evaluation.protocols import JudgedFold
from aoq.evaluation.ranks import PairRanks
from aoq.experiments.rows import ResultRow, Training
from aoq.types import Positives
from reproduction.behaviour import behaviour_section, behaviours


def trained(seed, *r1, first=None):
    """A training by its R@1 on dev after each epoch; of 400 pairs, so many are first both ways."""
    curve = [{"epoch": n, "i2t_r1": r, "t2i_r1": r / 2} for n, r in enumerate(r1, start=1)]
    ranks = None
    if first is not None:
        pairs = Positives.from_pairs([(n, n) for n in range(400)], n_images=400, n_texts=400)
        found = np.where(np.arange(400) < first, 0, 300)
        ranks = JudgedFold(pairs, PairRanks(found, found))
    figures = dict.fromkeys(PAPER_FIGURES, 0.0)
    return Training(seed, figures, ranks=ranks, line={"curve": curve})


ROWS = [
    ResultRow("online", "g", (0, 1), (trained(0, 10, 20, 18, first=40), trained(1, 9, 30))),
    ResultRow("Adap", "g", (0, 1), (trained(0, 12, 20, 21, first=100), trained(1, 20, 29))),
    ResultRow("later", "g", (0, 1), ()),
]


def test_a_row_passes_the_best_that_the_first_one_ever_has_with_the_same_seed():
    online, adaptive = behaviours(ROWS[:2])
    assert online.passes == {}
    assert adaptive.passes == {"i2t_r1": (3, None), "t2i_r1": (3, None)}


def test_ensembles_have_no_curve_to_pass_or_be_passed():
    made = [ResultRow(label, "g", (0,), (trained(0, first=40),)) for label in ("2 x a", "2 x b")]
    assert [found.passes for found in behaviours(made)] == [{}, {}]


def test_pairs_that_are_first_both_ways_and_far_behind_are_counted():
    online, adaptive = behaviours(ROWS[:2])
    assert (online.first.mean, online.far.mean) == pytest.approx((10.0, 90.0))
    assert (adaptive.first.mean, adaptive.far.mean) == pytest.approx((25.0, 75.0))


def test_the_first_of_a_group_is_the_first_also_where_it_is_not_trained_yet():
    found = behaviours([ROWS[2], *ROWS[:2]])
    assert [(row.label, row.passes) for row in found] == [("online", {}), ("Adap", {})]


def test_rows_that_are_not_trained_yet_are_left_out():
    rows = behaviour_section(ROWS).table.rows
    assert rows == [("online", "", "", "10.0", "90.0"), ("Adap", "3, -", "3, -", "25.0", "75.0")]
