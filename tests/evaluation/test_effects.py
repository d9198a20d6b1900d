"""Effects have the error that they would show if everything were done again."""

from __future__ import annotations

from math import inf, sqrt

import numpy as np
import pytest
from scipy import stats

from aoq.evaluation.bootstrap import Resampled
from aoq.evaluation.effects import (
    Effect,
    QueryError,
    RunError,
    Variance,
    holm,
    outlying,
    own_variance,
    query_influence,
)
from aoq.evaluation.protocols import JudgedFold
from aoq.evaluation.ranks import PairRanks
from aoq.types import Positives

SEEDS = (0, 1, 2)


def by_seed(values):
    return dict(zip(SEEDS, values, strict=True))


def test_the_pooled_variance_is_what_rows_and_seeds_leave():
    """Two rows: half the variance of their differences. Worked out: -1, 1 and 3 around 1."""
    rows = {"a": by_seed([10, 20, 30]), "b": by_seed([9, 21, 33])}
    found = RunError.pooled(rows)
    assert found.variance.value == pytest.approx(np.var([-1, 1, 3], ddof=1) / 2) == pytest.approx(2)
    assert found.variance.degrees == 2
    assert found.left_out == ()


def test_rows_that_lack_seeds_count_for_what_they_have():
    random = np.random.default_rng(0)
    rows = {f"{row}": by_seed(random.normal(size=3)) for row in range(4)}
    del rows["3"][1]
    rows["once"] = {0: 1e6}  # its own mean, nothing is left of it
    assert RunError.pooled(rows).variance.degrees == 11 - 4 - 2
    assert RunError.pooled({"once": {0: 1.0}}) is None
    assert RunError.pooled({"alone": by_seed([1, 2, 3])}) is None


def test_a_row_that_differs_far_more_is_left_out():
    random = np.random.default_rng(1)
    rows = {f"{row}": by_seed(random.normal(0, 2, 3)) for row in range(8)}
    without = RunError.pooled(rows)
    found = RunError.pooled(rows | {"wild": by_seed([27, 103, 140])})
    assert found.left_out == ("wild",)
    assert found.variance == without.variance


def test_cochran_s_limit_is_that_of_its_formula():
    """Of F, as ISO 5725-2 derives it; just below and just above."""
    for n_rows, n_seeds in ((5, 2), (10, 3), (33, 3)):
        f = stats.f.ppf(1 - 0.01 / n_rows, n_seeds - 1, (n_rows - 1) * (n_seeds - 1))
        limit = 1 / (1 + (n_rows - 1) / f)
        share = limit / (1 - limit) * (n_rows - 1)  # of the largest variance, others being 1
        for factor, is_out in ((0.99, False), (1.01, True)):
            values = np.array([-1.0, 1.0] if n_seeds == 2 else [-1.0, 0.0, 1.0])
            rows = {f"{r}": dict(enumerate(values)) for r in range(n_rows)}
            rows["0"] = dict(enumerate(values * sqrt(share * factor)))
            assert (outlying(rows) == "0") is is_out


def test_cochran_s_limit_for_five_rows_of_three():
    """ISO 5725-2 tabulates 0.788 at 1 %."""
    base = [-1.0, 0.0, 1.0]
    for share, is_out in ((0.787, False), (0.789, True)):
        rows = {f"{r}": by_seed(base) for r in range(5)}
        rows["0"] = by_seed(np.multiply(base, sqrt(4 * share / (1 - share))))
        assert (outlying(rows) == "0") is is_out


def test_intervals_and_p_values_are_those_of_student_s_test():
    values = np.random.default_rng(2).normal(1.0, 2.0, 12)
    effect = Effect(float(values.mean()), own_variance(values))
    expected = stats.ttest_1samp(values, 0.0)
    interval, (low, high) = effect.interval(), expected.confidence_interval()
    assert (interval.low, interval.high) == pytest.approx((low, high))
    assert effect.p_within(0, inf) == pytest.approx(expected.pvalue)
    assert effect.p_outside(-inf, 0) == pytest.approx(expected.pvalue)
    assert effect.p_outside(0, inf) == 1.0
    tests = [
        stats.ttest_1samp(values, -2.5, alternative="greater").pvalue,
        stats.ttest_1samp(values, 2.5, alternative="less").pvalue,
    ]
    assert effect.p_within(-2.5, 2.5) == pytest.approx(2 * max(tests))


@pytest.mark.parametrize("value", [-7.0, -4.9, -3.0, 0.0, 4.0, 5.2, 9.0])
def test_a_p_value_is_the_level_at_which_the_interval_decides(value):
    effect = Effect(value, Variance(1.0, 9))
    for level in (0.5, 0.8, 0.95, 0.999):
        interval = effect.interval(level=level)
        assert (interval.low > -5 and interval.high < 5) == (effect.p_within(-5, 5) < 1 - level)
        is_beyond = interval.high < -5 or interval.low > 5
        assert is_beyond == (effect.p_outside(-5, 5) < 1 - level)


def test_nothing_is_decided_by_one_training_and_everything_without_error():
    once = Effect(50.0, own_variance([50.0]))
    assert once.p_within(0, inf) == once.p_outside(-inf, 0) == 1.0
    certain = Effect(1.0, Variance(0.0))
    assert (certain.p_within(0, inf), certain.p_outside(0, inf)) == (0.0, 1.0)


def test_satterthwaite_s_degrees_are_welch_s():
    one, two = np.random.default_rng(3).normal(size=(2, 7)) * [[1.0], [4.0]]
    total = Variance.sum([own_variance(one), own_variance(two)])
    welch = stats.ttest_ind(one, two, equal_var=False)
    assert total.degrees == pytest.approx(welch.df)
    assert (one.mean() - two.mean()) / sqrt(total.value) == pytest.approx(welch.statistic)


def test_holm_s_correction_by_hand_and_in_any_order():
    p_values = [0.01, 0.04, 0.03, 0.005]
    assert holm(p_values) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm(p_values[::-1]) == pytest.approx([0.02, 0.06, 0.06, 0.03])
    assert holm([]) == []
    assert holm([0.9, 0.8]) == [1.0, 1.0]


def uneven_fold(seed):
    """Images with none to four texts; a text may have two images."""
    random = np.random.default_rng(seed)
    texts = np.repeat(np.arange(200), random.integers(0, 5, 200))
    pairs = [(image, text) for text, image in enumerate(texts)] + [(0, len(texts) - 1)]
    positives = Positives.from_pairs(pairs, n_images=200, n_texts=len(texts))
    ranks = random.geometric(0.1, size=(2, len(positives.pairs))) - 1
    return JudgedFold(positives, PairRanks(*ranks))


def test_the_error_from_queries_is_that_of_the_bootstrap():
    fold = uneven_fold(0)
    influence = query_influence(fold)
    assert influence.sum() == pytest.approx(0, abs=1e-9)
    error = sqrt(QueryError.of(influence[None]).mean.value)
    drawn = Resampled.of([fold], resamples=4000).drawn["rsum"]
    assert error == pytest.approx(np.std(drawn), rel=0.05)


def test_the_influence_of_an_image_is_what_one_more_of_it_changes():
    """Of rsum, in the limit of a large set: doubling one of n images moves it by influence / n."""
    n = 400
    positives = Positives.from_pairs([(i, i) for i in range(n)], n_images=n, n_texts=n)
    random = np.random.default_rng(5)
    ranks = random.integers(20, size=(2, n))
    fold = JudgedFold(positives, PairRanks(*ranks))
    hits = [[100.0 * (side < k) for k in (1, 5, 10)] for side in ranks]
    rsum = fold.metrics.rsum
    for image in (0, 17, 399):
        again = sum((shares.sum() + shares[image]) / (n + 1) for side in hits for shares in side)
        assert query_influence(fold)[image] / (n + 1) == pytest.approx(again - rsum)


def simulated(random, *, rows, runs, queries, both, n_seeds, n_queries, seed_effect=3.0):
    """Return rsums by row and seed, and the influence by row, seed and query; all rows are equal.

    The rows' figures contain the mean of what queries do to them, as measured figures do.
    """
    of_runs = random.normal(0, runs, (rows, n_seeds)) + random.normal(0, seed_effect, n_seeds)
    parts = random.normal(0, queries, (rows, 1, n_queries))
    parts = parts + random.normal(0, both, (rows, n_seeds, n_queries))
    figures = of_runs + parts.mean(axis=2)
    return figures, parts - parts.mean(axis=2, keepdims=True)


def effect_of(figures, influence):
    """The gain of the second row over the first."""
    n_rows, n_seeds = figures.shape
    error = RunError.pooled({f"{r}": dict(enumerate(figures[r])) for r in range(n_rows)})
    queries = QueryError.of(influence[1] - influence[0])
    runs = error.variance.times(2 / n_seeds)
    return Effect(float((figures[1] - figures[0]).mean()), runs, queries.mean, queries.both)


@pytest.mark.parametrize(
    ("runs", "queries", "both"),
    [
        pytest.param(2.0, 0.0, 0.0, id="only runs"),
        pytest.param(0.5, 30.0, 0.0, id="mostly queries"),
        pytest.param(0.0, 0.0, 30.0, id="what queries do to runs"),
        pytest.param(1.0, 15.0, 30.0, id="everything"),
    ],
)
def test_intervals_contain_the_truth_as_often_as_they_say(runs, queries, both):
    random, times = np.random.default_rng(11), 800
    contain = 0
    for _ in range(times):
        drawn = simulated(
            random, rows=5, runs=runs, queries=queries, both=both, n_seeds=3, n_queries=100
        )
        interval = effect_of(*drawn).interval()
        contain += interval.low < 0 < interval.high
    assert 0.93 <= contain / times <= 0.985  # a part of runs below that of queries is not believed


def test_three_seeds_alone_would_say_less():
    """The pooled error has narrower intervals than Student's test of the three differences."""
    random = np.random.default_rng(12)
    pooled, alone = [], []
    for _ in range(200):
        figures, _ = simulated(
            random, rows=12, runs=2.0, queries=0.0, both=0.0, n_seeds=3, n_queries=2
        )
        error = RunError.pooled({f"{r}": dict(enumerate(figures[r])) for r in range(12)})
        differences = figures[1] - figures[0]
        for found, runs in (
            (pooled, error.variance.times(2 / 3)),
            (alone, own_variance(differences)),
        ):
            interval = Effect(float(differences.mean()), runs).interval()
            found.append(interval.high - interval.low)
    assert np.mean(pooled) < 0.6 * np.mean(alone)


def test_a_table_without_effects_has_a_wrong_verdict_one_time_in_twenty():
    """Three rows against the first: both directions of all three, corrected."""
    random, times = np.random.default_rng(13), 1500
    wrong = uncorrected = 0
    for _ in range(times):
        figures, _ = simulated(
            random, rows=4, runs=2.0, queries=0.0, both=0.0, n_seeds=3, n_queries=2
        )
        error = RunError.pooled({f"{r}": dict(enumerate(figures[r])) for r in range(4)})
        effects = [
            Effect(float((row - figures[0]).mean()), error.variance.times(2 / 3))
            for row in figures[1:]
        ]
        p_values = [min(e.p_within(0, inf), e.p_outside(0, inf)) for e in effects]
        wrong += min(holm(p_values)) < 0.05
        uncorrected += min(p_values) < 0.05
    assert wrong / times <= 0.05 + 2.5 * sqrt(0.05 * 0.95 / times)
    assert uncorrected / times > 0.09
