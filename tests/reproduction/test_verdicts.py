"""Whether a claim holds is decided by every seed and by the interval over queries."""

from dataclasses import replace

import numpy as np
import pytest

from aoq.evaluation.bootstrap import Interval
from aoq.evaluation.metrics import PAPER_FIGURES
from aoq.evaluation.protocols import JudgedFold
from aoq.evaluation.ranks import PairRanks
from aoq.experiments.rows import ResultRow, Training
from aoq.types import Positives
from reproduction.claims import Claim
from reproduction.verdicts import Verdict, judge_claims

ABOVE = Claim(says="offline negatives help", row="VSRN + OffTri", above="VSRN")
LIKE = Claim(says="h hardly matters", row="h = 200", like="h = 300", within=5)
NOT_ABOVE = Claim(says="a larger batch gains nothing", row="larger", not_above="VSRN", within=5)
BELOW = Claim(says="it does not train", row="OnlyOffline", below=25)


@pytest.mark.parametrize(
    ("claim", "found", "interval", "verdict"),
    [
        (ABOVE, (1.0, 2.0, 3.0), (0.5, 3.5), "holds"),
        (ABOVE, (1.0, 2.0, 3.0), (-0.5, 4.5), "not decided"),
        (ABOVE, (1.0, 2.0, 3.0), (0.04, 3.5), "not decided"),  # 0.0 as it is printed
        (ABOVE, (5.0, -0.1, 3.0), (0.5, 4.5), "not decided"),
        (ABOVE, (-1.0, -2.0, -3.0), (-3.5, -0.5), "does not hold"),
        (ABOVE, (-1.0, -2.0, 0.1), (-3.5, -0.5), "not decided"),
        (ABOVE, (1.0, 2.0), (0.5, 3.5), "open: 2 of 3 seeds"),
        (ABOVE, (1.0, 2.0, 3.0), None, "open: no ranks (add --data)"),
        (LIKE, (1.0, -2.0, 3.0), (-4.5, 4.5), "holds"),
        (LIKE, (1.0, -2.0, 3.0), (-4.5, 5.5), "not decided"),
        (LIKE, (1.0, -2.0, 6.0), (-4.5, 4.5), "not decided"),
        (LIKE, (6.0, 7.0, 8.0), (5.5, 9.5), "does not hold"),
        (LIKE, (-6.0, -7.0, -8.0), (-9.5, -5.5), "does not hold"),
        (NOT_ABOVE, (-20.0, 2.0, 3.0), (-12.0, 4.5), "holds"),
        (NOT_ABOVE, (6.0, 7.0, 8.0), (5.5, 9.5), "does not hold"),
        (BELOW, (3.0, 4.0, 5.0), (2.0, 6.0), "holds"),
        (BELOW, (200.0, 201.0, 202.0), (190.0, 210.0), "does not hold"),
        (BELOW, (3.0, 4.0, 100.0), (20.0, 50.0), "not decided"),
    ],
)
def test_a_claim_holds_with_every_seed_and_for_other_queries(claim, found, interval, verdict):
    drawn = None if interval is None else Interval(float(np.mean(found)), *interval)
    assert str(Verdict(claim, dict(enumerate(found)), drawn, paper=None)) == verdict


def row(label, *rsums, ranks=None):
    trainings = [
        Training(seed, dict.fromkeys(PAPER_FIGURES, 0.0) | {"rsum": rsum}, ranks=ranks)
        for seed, rsum in enumerate(rsums)
    ]
    return ResultRow(label, "g", tuple(range(len(rsums))), tuple(trainings))


def test_claims_are_judged_on_the_seeds_that_all_rows_have():
    rows = [
        row("VSRN", 240.0, 250.0),
        row("VSRN + OffTri", 241.5),
    ]
    unknown, paper = (
        Claim(says="x", row="VSRN", above="BFAN"),
        {"VSRN": 516.8, "VSRN + OffTri": 518.6},
    )
    (found,) = judge_claims([ABOVE, unknown], rows, paper)
    assert found.by_seed == {0: 1.5}
    assert found.paper == pytest.approx(1.8)
    sentence = "offline negatives help: VSRN + OffTri above VSRN"
    assert found.shown == (sentence, "+1.8", "+1.5", "+1.5", "open: 1 of 3 seeds")
    (open_,) = judge_claims([ABOVE], [rows[0], replace(rows[1], trainings=())], {})
    assert open_.interval is None
    assert str(open_) == "open: 0 of 3 seeds"


def test_a_claim_about_several_rows_is_about_their_mean():
    claim = Claim(says="both", row=("a +", "b +"), above=("a", "b"))
    rows = [row("a", 10.0, 20.0), row("a +", 13.0, 21.0), row("b", 1.0, 2.0), row("b +", 2.0, 9.0)]
    (found,) = judge_claims([claim], rows, {})
    assert found.by_seed == {0: 2.0, 1: 4.0}
    assert found.paper is None


def test_the_interval_is_that_of_the_rows_themselves_where_nothing_is_held_against_them():
    positives = Positives.from_pairs([(n, n) for n in range(8)], n_images=8, n_texts=8)
    first, last = np.zeros(8, dtype=np.int64), np.full(8, 7)
    good, bad = (JudgedFold(positives, PairRanks(ranks, ranks)) for ranks in (first, last))
    rows = [row("good", 600.0, ranks=good), row("bad", 0.0, ranks=bad)]
    claims = [Claim(says="1", row="bad", below=25), Claim(says="2", row="good", above="bad")]
    alone, more = judge_claims(claims, rows, {})
    assert (alone.interval.low, alone.interval.high) == (200.0, 200.0)  # all within the first ten
    assert more.interval.value == 400.0
    assert more.by_seed == {0: 600.0}
