"""Intervals against resampling by hand, and what they must and must not do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from aoq.errors import UserError
from aoq.evaluation import bootstrap as module
from aoq.evaluation.bootstrap import (
    Resampled,
    bootstrap,
    clusters,
    paired_bootstrap,
    resampled_figures,
)
from aoq.evaluation.metrics import DirectionMetrics, Metrics
from aoq.evaluation.protocols import JudgedFold, average
from aoq.evaluation.ranks import PairRanks
from tests.evaluation.cases import in_order, judged, uneven


def of_images(ranks, texts_per_image=5):
    """A fold whose texts all share the rank of their image."""
    positives = in_order(len(ranks), texts_per_image)
    each = np.repeat(ranks, texts_per_image)
    return JudgedFold(positives, PairRanks(images=each, texts=each))


@pytest.mark.parametrize("positives", [in_order(12), in_order(11, 2), uneven(12)])
def test_every_figure_of_every_resample_is_that_of_the_queries_drawn(positives):
    fold, resamples = judged(positives, noise=2.0), 40
    found = resampled_figures([fold], resamples=resamples, seed=3)
    images, texts = clusters(positives)
    size = images.max() + 1
    draws = np.random.default_rng(3).integers(size, size=(resamples, size))
    for number, draw in enumerate(draws):
        i2t = [rank for cluster in draw for rank in fold.ranks.i2t[images == cluster]]
        t2i = [rank for cluster in draw for rank in fold.ranks.t2i[texts == cluster]]
        expected = Metrics(*(DirectionMetrics.from_ranks(np.array(r)) for r in (i2t, t2i)))
        assert {name: values[number] for name, values in found.items()} == pytest.approx(
            expected.figures()
        )


def test_the_resamples_are_the_same_in_pieces_and_with_the_same_seed(monkeypatch):
    folds = [judged(in_order(9), noise=2.0), judged(in_order(8), noise=2.0, seed=1)]
    whole = resampled_figures(folds, resamples=50)
    monkeypatch.setattr(module, "_AT_ONCE", 7 * 45)
    pieces = resampled_figures(folds, resamples=50)
    other = resampled_figures(folds, resamples=50, seed=1)
    for name, values in whole.items():
        np.testing.assert_array_equal(values, pieces[name])
    assert not np.array_equal(whole["rsum"], other["rsum"])


def test_folds_are_drawn_from_one_by_one_and_averaged():
    perfect, hopeless = of_images(np.zeros(20, int)), of_images(np.full(20, 50))
    drawn = resampled_figures([perfect, hopeless], resamples=30)
    assert (drawn["i2t_r1"] == 50).all()
    assert (drawn["rsum"] == 300).all()


def test_the_texts_of_an_image_are_not_evidence_of_their_own():
    random = np.random.default_rng(0)
    fold = of_images(np.where(random.random(400) < 0.5, 0, 30))
    drawn = resampled_figures([fold], resamples=300)
    np.testing.assert_allclose(drawn["t2i_r1"], drawn["i2t_r1"])
    spread = drawn["t2i_r1"].std()
    assert spread == pytest.approx(100 * 0.5 / np.sqrt(400), rel=0.2)  # not / sqrt(2000)


def test_an_interval_holds_the_figure_and_narrows_with_more_queries():
    widths = []
    for n_images in (50, 800):
        fold = of_images(np.random.default_rng(1).integers(0, 12, n_images))
        intervals = bootstrap([fold], resamples=500)
        assert intervals.keys() == average([fold]).figures().keys()
        for name, value in average([fold]).figures().items():
            assert intervals[name].value == value
            assert intervals[name].low <= value <= intervals[name].high
        widths.append(intervals["rsum"].high - intervals["rsum"].low)
    assert widths[0] / widths[1] == pytest.approx(4, rel=0.3)


def test_a_wider_level_gives_a_wider_interval():
    fold = of_images(np.random.default_rng(1).integers(0, 12, 60))
    wide, narrow = (bootstrap([fold], level=level)["rsum"] for level in (0.99, 0.5))
    assert wide.low < narrow.low < narrow.high < wide.high


def test_the_interval_holds_the_truth_about_as_often_as_it_says():
    random, held = np.random.default_rng(5), 0
    for seed in range(200):
        fold = of_images(np.where(random.random(80) < 0.4, 0, 30))
        found = bootstrap([fold], resamples=200, seed=seed)["t2i_r1"]
        held += found.low <= 40 <= found.high
    assert 0.88 <= held / 200 <= 0.99


def test_a_model_differs_from_itself_by_nothing():
    fold = judged(in_order(15), noise=2.0)
    for difference in paired_bootstrap([fold], [fold]).values():
        assert (difference.value, difference.low, difference.high) == (0, 0, 0)
        assert difference.below_zero == 0


def test_a_difference_is_the_second_less_the_first():
    worse, better = of_images(np.arange(30)), of_images(np.arange(30) // 4)
    gained, lost = paired_bootstrap([worse], [better]), paired_bootstrap([better], [worse])
    assert gained["i2t_r1"].value == pytest.approx(100 * 3 / 30)
    assert gained["rsum"].low > 0
    assert gained["rsum"].below_zero == 0
    assert lost["rsum"].below_zero == 1
    assert lost["rsum"].low == pytest.approx(-gained["rsum"].high)
    assert "i2t_mean_rank" not in gained


def test_pairing_distinguishes_what_two_intervals_do_not():
    random = np.random.default_rng(2)
    ranks = np.where(random.random(300) < 0.5, 0, 30)
    helped = ranks.copy()
    helped[np.flatnonzero(ranks)[:9]] = 0
    one, two = of_images(ranks), of_images(helped)
    before, after = (bootstrap([fold])["i2t_r1"] for fold in (one, two))
    assert after.low < before.high
    assert paired_bootstrap([one], [two])["i2t_r1"].low > 0


def test_models_judged_on_different_queries_are_not_compared():
    with pytest.raises(UserError, match="different queries"):
        paired_bootstrap([judged(in_order(5))], [judged(in_order(6))])


def test_equal_pairs_of_other_data_are_other_queries():
    fold = judged(in_order(5))
    mine, other = (replace(fold, data=data) for data in ("mine", "other"))
    with pytest.raises(UserError, match="different queries"):
        paired_bootstrap([mine], [other])
    assert paired_bootstrap([mine], [fold])["rsum"].value == 0  # where nothing is known


def test_several_trainings_are_averaged_in_every_resample():
    """What all trainings share, the queries, stays in the interval; what differs averages out."""
    folds = [judged(in_order(20), noise=2.0, seed=seed) for seed in range(3)]
    parts = [Resampled.of([fold], resamples=60) for fold in folds]
    whole = Resampled.mean(parts)
    assert whole.figures["rsum"] == pytest.approx(np.mean([p.figures["rsum"] for p in parts]))
    each = [resampled_figures([fold], resamples=60)["t2i_r5"] for fold in folds]
    np.testing.assert_allclose(whole.drawn["t2i_r5"], np.mean(each, axis=0))
    alike = Resampled.mean([parts[0]] * 3)
    assert alike.intervals()["rsum"].low == pytest.approx(parts[0].intervals()["rsum"].low)


def test_trainings_judged_on_different_queries_are_not_averaged():
    parts = [Resampled.of([judged(in_order(n))], resamples=5) for n in (5, 6)]
    with pytest.raises(UserError, match="different queries"):
        Resampled.mean(parts)
