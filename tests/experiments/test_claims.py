"""Whether a claim holds is decided by every seed and by the interval over queries."""

from dataclasses import replace

import pytest

from aoq.evaluation.bootstrap import Difference
from aoq.evaluation.metrics import PAPER_FIGURES
from aoq.evaluation.seeds import Spread
from aoq.experiments.definitions import Claim
from aoq.experiments.report.claims import Judged, judge_claims
from aoq.experiments.report.rows import Gain, InPaper, ResultRow, Training
from aoq.experiments.report.tables import claims_markdown

CLAIM = Claim("offline negatives help", better="VSRN + OffTri", than="VSRN")


def judged(differences, interval):
    mean = sum(differences) / max(len(differences), 1)
    drawn = None if interval is None else Difference(mean, *interval, below_zero=0.0)
    spread = Spread(mean, None, len(differences))
    return Judged(CLAIM, Gain(spread, drawn), dict(enumerate(differences)), paper=1.8)


@pytest.mark.parametrize(
    ("differences", "interval", "verdict"),
    [
        ((1.0, 2.0, 3.0), (0.5, 3.5), "holds"),
        ((1.0, 2.0, 3.0), (-0.5, 4.5), "not decided"),
        ((5.0, -0.1, 3.0), (0.5, 4.5), "not decided"),
        ((-1.0, -2.0, -3.0), (-3.5, -0.5), "does not hold"),
        ((-1.0, -2.0, 0.1), (-3.5, -0.5), "not decided"),
        ((1.0, 2.0), (0.5, 3.5), "open: 2 of 3 seeds"),
        ((1.0, 2.0, 3.0), None, "open: the runs are not there"),
    ],
)
def test_a_claim_holds_with_every_seed_and_for_other_queries(differences, interval, verdict):
    assert judged(differences, interval).verdict == verdict


def row(label, *rsums):
    trainings = [
        Training(seed, dict.fromkeys(PAPER_FIGURES, 0.0) | {"rsum": rsum})
        for seed, rsum in enumerate(rsums)
    ]
    return ResultRow(label, "g", tuple(range(len(rsums))), tuple(trainings))


def test_claims_are_judged_on_the_seeds_that_both_rows_have():
    rows = [
        replace(row("VSRN", 240.0, 250.0), paper=InPaper(516.8, "table 1")),
        replace(row("VSRN + OffTri", 241.5), paper=InPaper(518.6, "table 1")),
    ]
    (found,) = judge_claims([CLAIM, Claim("unknown", "VSRN", "BFAN")], rows)
    assert found.by_seed == {0: 1.5}
    assert found.paper == pytest.approx(1.8)
    assert claims_markdown([found]).splitlines()[2] == (
        "| offline negatives help: VSRN + OffTri above VSRN | +1.8 | +1.5 | +1.5 "
        "| open: 1 of 3 seeds |"
    )
    (unknown,) = judge_claims([CLAIM], [rows[0], replace(rows[1], trainings=())])
    assert unknown.gain is None
    assert unknown.verdict == "open: 0 of 3 seeds"
