"""Rows are compared on what chose nothing, with the error of all rows of their model."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest

from aoq.evaluation.effects import QueryError, RunError, query_influence
from aoq.evaluation.metrics import PAPER_FIGURES
from aoq.evaluation.protocols import JudgedFold
from aoq.evaluation.ranks import PairRanks
from aoq.experiments.comparisons import BOTH, Comparisons, Contrast
from aoq.experiments.rows import ResultRow, Training
from aoq.types import Positives

POSITIVES = Positives.from_pairs([(n, n) for n in range(50)], n_images=50, n_texts=50)


def fold(seed):
    return JudgedFold(POSITIVES, PairRanks(*np.random.default_rng(seed).integers(20, size=(2, 50))))


def row(label, dev, test, *, group="g", note="", ranks=()):
    trainings = [
        Training(
            seed,
            dict.fromkeys(PAPER_FIGURES, 0.0) | {"rsum": of_test},
            line={"digest": label, "dev": {"rsum": of_dev}, "test": {"rsum": of_test}},
            ranks=ranks[seed] if ranks else None,
        )
        for seed, (of_dev, of_test) in enumerate(zip(dev, test, strict=True))
    ]
    return ResultRow(label, group, tuple(range(len(dev))), tuple(trainings), note=note)


A = row("a", [10, 12, 11], [20, 22, 24])
B = row("b", [14, 15, 19], [22, 29, 27])
C = row("c", [9, 12, 14], [21, 24, 22])


def test_an_effect_is_the_mean_of_dev_and_test_over_the_seeds():
    found = Comparisons([A, B, C]).compare(Contrast([B], [A]))
    assert found.by_seed == {0: 3.0, 1: 5.0, 2: 5.5}
    assert found.by_split == {"dev": 5.0, "test": 4.0}
    assert found.effect.value == 4.5
    assert found.effect.queries is None


def test_the_error_is_pooled_over_all_rows_of_the_model():
    pooled = RunError.pooled(
        {
            each.label: {
                t.seed: (t.line["dev"]["rsum"] + t.line["test"]["rsum"]) / 2 for t in each.trainings
            }
            for each in (A, B, C)
        }
    )
    other = row("other", [0, 50, 100], [0, 50, 100], group="another model")
    again = row("c, by another name", [9, 12, 14], [21, 24, 22])
    again.trainings[0].line["digest"] = "c"
    comparisons = Comparisons([A, B, C, other, again])
    assert comparisons.run_error("g") == pooled
    runs = comparisons.compare(Contrast([B], [A])).effect.runs
    assert runs.value == pytest.approx(pooled.variance.value * 2 / 3)
    assert runs.degrees == 4
    runs = comparisons.compare(Contrast([B, C], [A, A])).effect.runs
    assert runs.value == pytest.approx(pooled.variance.value * (1 / 4 + 1 / 4 + 1) / 3)


def test_a_row_that_dev_chose_is_judged_on_test_alone():
    chosen = row("b", [14, 15, 19], [22, 29, 27], note="b is the best on dev of: ...")
    assert Contrast([chosen], [A]).splits == ("test",)
    found = Comparisons([A, B, C]).compare(Contrast([chosen], [A]))
    assert found.effect.value == 4.0
    assert found.by_split == {"test": 4.0}


def test_a_row_alone_and_rows_of_two_models_have_the_error_of_their_own_seeds():
    """The effect of a seed on all rows does not cancel out."""
    other = row("d", [1, 2, 3], [1, 2, 3], group="another model")
    for contrast in (Contrast([A]), Contrast([A], [other])):
        found = Comparisons([A, B, C, other]).compare(contrast)
        values = list(found.by_seed.values())
        assert found.effect.runs.value == pytest.approx(np.var(values, ddof=1) / 3)
        assert found.effect.runs.degrees == 2


def test_only_seeds_that_all_rows_have_are_compared():
    short = row("b", [14, 15], [22, 29])
    assert Comparisons([A, short, C]).compare(Contrast([short], [A])).by_seed == {0: 3.0, 1: 5.0}
    assert Comparisons([A]).compare(Contrast([row("none", [], [])], [A])) is None
    once = Comparisons([A]).compare(Contrast([row("b", [50], [60])], [A]))
    assert once.effect.p_within(0, inf) == 1.0


def test_a_row_that_is_left_out_of_the_pool_keeps_its_own_error():
    wild = row("wild", [30, 100, 150], [20, 110, 140])
    rows = [A, B, C, *(row(f"r{n}", [9, 11, n], [20, 21, 22]) for n in range(10, 14))]
    comparisons = Comparisons([*rows, wild])
    assert comparisons.run_error("g").left_out == ("wild",)
    runs = comparisons.compare(Contrast([wild], [A])).effect.runs
    assert runs.value > np.var([25, 105, 145], ddof=1) / 3
    assert runs.degrees == pytest.approx(2, abs=0.1)
    short = row("short", [10, 12], [20, 22])  # two of the seeds are compared
    runs = comparisons.compare(Contrast([wild], [short])).effect.runs
    assert runs.value > np.var([25, 105, 145], ddof=1) / 2


def test_a_row_with_one_training_has_no_bounds():
    effect = Comparisons([A]).compare(Contrast([row("b", [50], [60])], [A])).effect
    assert (effect.interval().low, effect.interval().high) == (-inf, inf)


def test_queries_are_those_of_the_splits_with_ranks_and_count_for_the_others():
    ones, twos = [fold(seed) for seed in range(3)], [fold(seed) for seed in range(3, 6)]
    rsums = [[each.metrics.rsum for each in folds] for folds in (ones, twos)]
    a, b = (
        row(label, by_seed, by_seed, ranks=folds)
        for label, by_seed, folds in zip("ab", rsums, (ones, twos), strict=True)
    )
    effect = Comparisons([a, b]).compare(Contrast([b], [a])).effect
    of_test = QueryError.of(
        np.stack(
            [
                query_influence(two) - query_influence(one)
                for one, two in zip(ones, twos, strict=True)
            ]
        )
    )
    assert Contrast([b], [a]).splits == BOTH
    assert effect.queries.value == pytest.approx(of_test.mean.value / 2)
    assert effect.both.value == pytest.approx(of_test.both.value / 2)
    assert effect.queries.degrees == 49
