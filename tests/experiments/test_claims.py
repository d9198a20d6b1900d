"""Whether a claim holds is decided by every seed and by the interval over queries."""

from dataclasses import replace

import numpy as np
import pytest

from aoq.evaluation.bootstrap import Interval
from aoq.evaluation.metrics import PAPER_FIGURES
from aoq.evaluation.protocols import JudgedFold
from aoq.evaluation.ranks import PairRanks
from aoq.experiments.definitions import Claim
from aoq.experiments.report.claims import Judged, judge_claims
from aoq.experiments.report.rows import InPaper, ResultRow, Training
from aoq.experiments.report.tables import claims_markdown
from aoq.types import Positives

ABOVE = Claim("offline negatives help", ("VSRN + OffTri",), ("VSRN",), low=0.0)
LIKE = Claim("h hardly matters", ("h = 200",), ("h = 300",), low=-5, high=5)
NOT_ABOVE = Claim("a larger batch gains nothing", ("larger",), ("VSRN",), high=5)
BELOW = Claim("it does not train", ("OnlyOffline",), high=25)


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
    assert Judged(claim, dict(enumerate(found)), drawn, paper=None).verdict == verdict


def row(label, *rsums, ranks=None):
    trainings = [
        Training(seed, dict.fromkeys(PAPER_FIGURES, 0.0) | {"rsum": rsum}, ranks=ranks)
        for seed, rsum in enumerate(rsums)
    ]
    return ResultRow(label, "g", tuple(range(len(rsums))), tuple(trainings))


def test_claims_are_judged_on_the_seeds_that_all_rows_have():
    rows = [
        replace(row("VSRN", 240.0, 250.0), paper=InPaper(516.8, "table 1")),
        replace(row("VSRN + OffTri", 241.5), paper=InPaper(518.6, "table 1")),
    ]
    (found,) = judge_claims([ABOVE, Claim("unknown", ("VSRN",), ("BFAN",), low=0.0)], rows)
    assert found.by_seed == {0: 1.5}
    assert found.paper == pytest.approx(1.8)
    assert claims_markdown([found]).splitlines()[2] == (
        "| offline negatives help: VSRN + OffTri above VSRN | +1.8 | +1.5 | +1.5 "
        "| open: 1 of 3 seeds |"
    )
    (unknown,) = judge_claims([ABOVE], [rows[0], replace(rows[1], trainings=())])
    assert unknown.interval is None
    assert unknown.verdict == "open: 0 of 3 seeds"


def test_a_claim_about_several_rows_is_about_their_mean():
    claim = Claim("both", ("a +", "b +"), ("a", "b"), low=0.0)
    rows = [row("a", 10.0, 20.0), row("a +", 13.0, 21.0), row("b", 1.0, 2.0), row("b +", 2.0, 9.0)]
    (found,) = judge_claims([claim], rows)
    assert found.by_seed == {0: 2.0, 1: 4.0}
    assert found.paper is None


def test_the_interval_is_that_of_the_rows_themselves_where_nothing_is_held_against_them():
    positives = Positives.from_pairs([(n, n) for n in range(8)], n_images=8, n_texts=8)
    first, last = np.zeros(8, dtype=np.int64), np.full(8, 7)
    good, bad = (JudgedFold(positives, PairRanks(ranks, ranks)) for ranks in (first, last))
    rows = [row("good", 600.0, ranks=good), row("bad", 0.0, ranks=bad)]
    claims = [Claim("alone", ("bad",), high=25), Claim("more", ("good",), ("bad",), low=0.0)]
    alone, more = judge_claims(claims, rows)
    assert (alone.interval.low, alone.interval.high) == (200.0, 200.0)  # all within the first ten
    assert more.interval.value == 400.0
    assert more.by_seed == {0: 600.0}
