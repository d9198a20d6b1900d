"""Whether a claim holds is decided by tests that are corrected for all claims of a table."""

from dataclasses import replace
from math import inf

import numpy as np
import pytest

from aoq.evaluation.effects import Effect, Variance, holm
from aoq.evaluation.metrics import PAPER_FIGURES
from aoq.evaluation.protocols import JudgedFold
from aoq.evaluation.ranks import PairRanks
from aoq.experiments.comparisons import Comparison, Comparisons
from aoq.experiments.rows import ResultRow, Training
from aoq.types import Positives
from reproduction.claims import Claim
from reproduction.verdicts import Verdict, claims_section, judge_claims

ABOVE = Claim(says="offline negatives help", row="VSRN + OffTri", above="VSRN")
LIKE = Claim(says="h hardly matters", row="h = 200", like="h = 300", within=5, power=0.8)
NOT_ABOVE = Claim(
    says="a larger batch gains nothing", row="larger", not_above="VSRN", within=5, power=0.8
)
BELOW = Claim(says="it does not train", row="OnlyOffline", below=25)


def found(value, *, error=1.0, seeds=3, ranks=True):
    effect = Effect(value, Variance(error**2, 40), Variance(0.0) if ranks else None)
    return Comparison(effect, dict.fromkeys(range(seeds), value), {"dev": value, "test": value})


@pytest.mark.parametrize(
    ("claim", "comparison", "verdict"),
    [
        (ABOVE, found(2.1), "holds"),
        (ABOVE, found(1.9), "not decided"),
        (ABOVE, found(-2.1), "does not hold"),
        (ABOVE, found(9.0, seeds=2), "open: 2 of 3 seeds"),
        (ABOVE, found(9.0, ranks=False), "open: no ranks"),
        (ABOVE, None, "open: 0 of 3 seeds"),
        (LIKE, found(2.9), "holds"),
        (LIKE, found(-2.9), "holds"),
        (LIKE, found(3.1), "not decided"),
        (LIKE, found(0.0, error=3.0), "not decided"),
        (LIKE, found(7.1), "does not hold"),
        (LIKE, found(-7.1), "does not hold"),
        (NOT_ABOVE, found(-20.0), "holds"),
        (NOT_ABOVE, found(3.1), "not decided"),
        (NOT_ABOVE, found(7.1), "does not hold"),
        (BELOW, found(6.0), "holds"),
        (BELOW, found(200.0), "does not hold"),
        (BELOW, found(90.0, error=33.0), "not decided"),
    ],
)
def test_a_claim_is_decided_where_its_interval_is_on_one_side_of_the_bounds(
    claim, comparison, verdict
):
    """With 40 degrees of freedom the interval is 2.02 errors wide to either side."""
    alone = Verdict(claim, comparison)
    assert str(replace(alone, corrected=alone.p)) == verdict
    if comparison is not None and not verdict.startswith("open"):
        interval = comparison.effect.interval()
        decided = {
            "holds": claim.low < interval.low and interval.high < claim.high,
            "does not hold": interval.high < claim.low or claim.high < interval.low,
        }
        assert [name for name, is_so in decided.items() if is_so] == (
            [] if verdict == "not decided" else [verdict]
        )


def test_a_claim_with_a_bound_states_the_power_for_it():
    with pytest.raises(ValueError, match="state the power"):
        Claim(says="h hardly matters", row="h = 200", like="h = 300", within=5)


def row(label, *rsums):
    trainings = [
        Training(seed, dict.fromkeys(PAPER_FIGURES, 0.0) | {"rsum": rsum})
        for seed, rsum in enumerate(rsums)
    ]
    return ResultRow(label, "g", tuple(range(len(rsums))), tuple(trainings))


def ranked(label, *hits):
    """A row with ranks of a hundred pairs, of which the first are found at once, others never."""
    positives = Positives.from_pairs([(n, n) for n in range(100)], n_images=100, n_texts=100)
    trainings = []
    for seed, found_first in enumerate(hits):
        ranks = np.where(np.arange(100) < found_first, 0, 99)
        fold = JudgedFold(positives, PairRanks(ranks, ranks))
        figures = fold.metrics.figures()
        line = {"digest": label, "test": figures}
        trainings.append(Training(seed, figures, ranks=fold, line=line))
    return ResultRow(label, "g", tuple(range(len(hits))), tuple(trainings))


def test_claims_are_judged_on_the_seeds_that_all_rows_have():
    rows = [row("VSRN", 240.0, 250.0), row("VSRN + OffTri", 241.5)]
    unknown = Claim(says="x", row="VSRN", above="BFAN")
    (judged,) = judge_claims([ABOVE, unknown], rows, {"VSRN": 516.8, "VSRN + OffTri": 518.6})
    assert judged.found.by_seed == {0: 1.5}
    assert judged.paper == pytest.approx(1.8)
    sentence = "offline negatives help: VSRN + OffTri above VSRN"
    assert judged.shown == (sentence, "+1.8", "+1.5", "", "+1.5", "", "open: 1 of 3 seeds")
    (open_,) = judge_claims([ABOVE], [rows[0], replace(rows[1], trainings=())], {})
    assert (open_.found, str(open_)) == (None, "open: 0 of 3 seeds")


def test_a_claim_about_several_rows_is_about_their_mean():
    claim = Claim(says="both", row=("a +", "b +"), above=("a", "b"))
    rows = [row("a", 10.0, 20.0), row("a +", 13.0, 21.0), row("b", 1.0, 2.0), row("b +", 2.0, 9.0)]
    (judged,) = judge_claims([claim], rows, {})
    assert judged.found.by_seed == {0: 2.0, 1: 4.0}
    assert judged.paper is None


def test_p_values_of_a_table_are_corrected_together():
    """What one claim alone would decide, four claims do not."""
    rows = [
        ranked("base", 50, 51, 49),
        ranked("a", 55, 54, 53),
        ranked("b", 50, 51, 50),
        ranked("c", 49, 51, 50),
        ranked("d", 70, 71, 69),
    ]
    claims = [Claim(says=label, row=label, above="base") for label in "abcd"]
    verdicts = judge_claims(claims, rows, {})
    p_values = [verdict.p for verdict in verdicts]
    assert [verdict.corrected for verdict in verdicts] == pytest.approx(holm(p_values))
    first, *_, last = verdicts
    assert first.p < 0.05 <= first.corrected
    assert str(first) == "not decided"
    assert str(last) == "holds"
    (alone,) = judge_claims(claims[:1], rows, {}, comparisons=Comparisons(rows))
    assert str(alone) == "holds"
    assert alone.corrected == alone.p == pytest.approx(first.p)


def test_the_table_for_programs_has_what_a_verdict_is_made_of():
    rows = [ranked("VSRN", 50, 51, 50), ranked("VSRN + OffTri", 55, 58, 56)]
    section = claims_section(judge_claims([ABOVE], rows, {}))
    names, values = (line.split(",") for line in section.csv.splitlines())
    line = dict(zip(names, values, strict=True))
    effect = judge_claims([ABOVE], rows, {})[0].effect
    expected = {
        "effect": effect.value,
        "error": effect.error,
        "variance_runs": effect.runs.value,
        "variance_queries": effect.queries.value,
        "p": effect.p_within(0, inf),
    }
    assert {name: float(line[name]) for name in expected} == pytest.approx(expected, rel=1e-5)
    assert line["verdict"] in section.table.rows[0]
