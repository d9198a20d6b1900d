"""Calibration: never falls, stays a probability, and a bar keeps what it promises."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aoq.retrieval.calibration import Calibration

hits = st.lists(
    st.tuples(st.integers(-20, 20).map(lambda score: score / 10), st.booleans()), min_size=1
)


def fit(pairs, *, fewest=1):
    scores, right = (np.array(each) for each in zip(*pairs, strict=True))
    return Calibration.fit(
        scores, right, split="dev", queries=len(pairs), depth=1, gallery=9, fewest=fewest
    )


def isotonic(pairs):
    """The least-squares fit that never falls: the max-min formula, over each score once."""
    scores = sorted({score for score, _ in pairs})

    def share(first, last):
        found = [right for score, right in pairs if scores[first] <= score <= scores[last]]
        return sum(found) / len(found)

    count = len(scores)
    return {
        score: max(min(share(first, last) for last in range(at, count)) for first in range(at + 1))
        for at, score in enumerate(scores)
    }


@given(hits)
def test_blocks_are_the_isotonic_regression(pairs):
    found = fit(pairs)
    expected = isotonic(pairs)
    shares = np.divide(found.right, found.hits)
    for score, share in expected.items():
        block = np.searchsorted(found.lowest, score, side="right") - 1
        assert shares[block] == pytest.approx(share)
    assert sum(found.hits) == len(pairs)
    assert sum(found.right) == sum(right for _, right in pairs)


@given(hits, st.lists(st.floats(-5, 5), min_size=2))
def test_the_probability_never_falls_and_stays_between_0_and_1(pairs, scores):
    found = fit(pairs)
    values = [found.probability(score) for score in sorted(scores)]
    assert values == sorted(values)
    assert all(0 <= value <= 1 for value in values)


@given(hits, st.floats(0.01, 0.99))
def test_at_least_the_wanted_share_of_the_hits_above_a_bar_is_right(pairs, precision):
    found = fit(pairs)
    bar = found.bar(precision)
    if bar is None:
        assert found.best_precision < precision
    else:
        above = [right for score, right in pairs if score >= bar]
        assert sum(above) / len(above) >= precision


@given(hits)
def test_a_calibration_is_the_same_after_a_file(pairs):
    found = fit(pairs)
    assert Calibration.from_dict(asdict(found)) == found


@given(hits, st.integers(2, 9))
def test_the_best_hits_are_pooled_until_there_are_enough_to_prove_anything(pairs, fewest):
    all_blocks, found = fit(pairs), fit(pairs, fewest=fewest)
    assert found.hits[-1] >= min(fewest, len(pairs))
    assert found.lowest == all_blocks.lowest[: len(found.lowest)]
    shares = np.divide(found.right, found.hits).tolist()
    assert shares == sorted(shares)


def test_a_worked_example():
    """0.2 is right and 0.3 is wrong: both are pooled to a half."""
    found = fit([(0.1, False), (0.2, True), (0.3, False), (0.4, True)])
    assert found.lowest == (0.1, 0.2, 0.4)
    assert (found.hits, found.right) == ((1, 2, 1), (0, 1, 1))
    assert found.probability(0.25) == 0.5
    assert found.probability(9) == 1
    assert found.bar(0.9) == 0.4
    assert found.bar(0.6) == 0.2
    assert found.bar(0.4) == 0.1
