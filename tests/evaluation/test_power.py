"""The planned power is what simulated experiments have."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest
from scipy import stats

from aoq.evaluation.effects import Effect, RunError
from aoq.evaluation.power import Design


def found_share(*, true, seeds, low, high, rows=6, deviation=2.0, times=600):
    """Simulate experiments of `rows` rows; the second is better than the first by `true`."""
    random, found = np.random.default_rng(7), 0
    for _ in range(times):
        figures = random.normal(0, deviation, (rows, seeds)) + random.normal(0, 3, seeds)
        figures[1] += true
        error = RunError.pooled({f"{r}": dict(enumerate(figures[r])) for r in range(rows)})
        effect = Effect(float((figures[1] - figures[0]).mean()), error.variance.times(2 / seeds))
        found += effect.p_within(low, high) < 0.05
    return found / times


@pytest.mark.parametrize(
    ("true", "seeds", "low", "high"),
    [(3.0, 3, 0.0, inf), (3.0, 8, 0.0, inf), (0.0, 5, -4.0, 4.0), (1.0, 4, -inf, 4.0)],
)
def test_simulated_experiments_find_as_often_as_planned(true, seeds, low, high):
    planned = Design(rows=6, deviation=2.0).power(true, seeds=seeds, low=low, high=high)
    share = found_share(true=true, seeds=seeds, low=low, high=high)
    assert share == pytest.approx(planned, abs=0.055)  # 2.7 deviations of 600 draws


def test_the_planned_number_of_seeds_finds_a_difference_of_three_with_80_percent():
    seeds = Design(rows=6, deviation=2.0).seeds_for(3.0)
    assert 0.76 <= found_share(true=3.0, seeds=seeds, low=0.0, high=inf) <= 0.88
    assert Design(rows=6, deviation=2.0).power(3.0, seeds=seeds - 1) < 0.8


def test_power_is_that_of_the_noncentral_t_distribution():
    design, seeds = Design(rows=5, deviation=2.6), 4
    degrees, error = 4 * 3, 2.6 * np.sqrt(2 / seeds)
    expected = stats.nct.sf(stats.t.ppf(0.975, degrees), degrees, 3 / error)
    assert design.power(3.0, seeds=seeds) == pytest.approx(expected, abs=1e-4)
    of_three = Design(rows=5, deviation=2.6, claims=3).power(3.0, seeds=seeds)
    expected = stats.nct.sf(stats.t.ppf(1 - 0.025 / 3, degrees), degrees, 3 / error)
    assert of_three == pytest.approx(expected, abs=1e-4)


def test_smallest_differences_and_bounds_have_the_power_that_was_asked_for():
    design = Design(rows=8, deviation=2.0)
    size = design.smallest_difference(seeds=4, power=0.9)
    assert design.power(size, seeds=4) == pytest.approx(0.9, abs=0.002)
    bound = design.smallest_bound(seeds=4, power=0.9)
    assert design.power(0.0, seeds=4, low=-bound, high=bound) == pytest.approx(0.9, abs=0.002)
    assert bound > size  # both sides have to be shown


def test_more_seeds_do_not_help_against_too_few_queries():
    few = Design(rows=8, deviation=2.0, queries=4.0)
    assert few.seeds_for(3.0) is None
    assert Design(rows=8, deviation=2.0, queries=0.2).seeds_for(3.0) is not None


def test_one_seed_or_one_row_decides_nothing():
    assert Design(rows=5).power(50.0, seeds=1) == 0.0
    assert Design(rows=1).power(50.0, seeds=9) == 0.0
    assert Design(rows=1).smallest_difference(seeds=9) == inf
