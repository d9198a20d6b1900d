"""Means and deviations over lines of results."""

from __future__ import annotations

import numpy as np
import pytest

from aoq.errors import UserError
from aoq.evaluation.metrics import DirectionMetrics, Metrics
from aoq.evaluation.seeds import FIGURES, over_seeds
from tests.evaluation.cases import in_order, judged


def line(seed, *, data="d", split="test"):
    metrics = judged(in_order(8), noise=2.0, seed=seed).metrics
    return {"split": split, "model": f"m{seed}", "data": data, **metrics.as_dict()}


def test_figures_are_those_of_metrics():
    assert set(FIGURES) == Metrics.figures(judged(in_order(4)).metrics).keys()


def test_the_mean_and_the_deviation_of_a_sample_of_every_figure():
    lines = [line(seed) for seed in range(3)]
    spreads = over_seeds(lines)
    assert set(spreads) == set(FIGURES)
    values = [entry["rsum"] for entry in lines]
    mean = sum(values) / 3
    assert spreads["rsum"].mean == pytest.approx(mean)
    variance = sum((value - mean) ** 2 for value in values) / 2
    assert spreads["rsum"].deviation == pytest.approx(variance**0.5)
    assert spreads["rsum"].count == 3


def test_a_model_judged_twice_counts_once():
    spread = over_seeds([line(0), line(1), line(0)])["rsum"]
    assert spread == over_seeds([line(0), line(1)])["rsum"]


def test_an_ensemble_is_not_a_training_of_its_own():
    together = {**line(2), "model": "m0+m1"}
    assert over_seeds([line(0), together, line(1)]) == over_seeds([line(0), line(1)])


def test_one_training_has_no_deviation():
    assert over_seeds([line(0)])["rsum"].deviation is None


@pytest.mark.parametrize("other", [{"data": "e"}, {"split": "dev"}])
def test_results_on_different_data_are_not_averaged(other):
    with pytest.raises(UserError, match="different splits or data sets"):
        over_seeds([line(0), line(1, **other)])


def test_no_results_are_refused():
    with pytest.raises(UserError, match="no result"):
        over_seeds([])


def test_a_recall_is_the_exact_share_of_the_queries():
    ranks = np.repeat([0, 50], [49, 31])
    assert DirectionMetrics.from_ranks(ranks).r1 == 61.25
