"""Fusion: recomputed with plain loops, and the weight that dev chooses."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from aoq.retrieval.fusion import RANK_OFFSET, Fusion, JudgedCandidates, choose_weight

lists = st.integers(1, 12).flatmap(
    lambda size: st.tuples(
        *(
            st.lists(st.integers(low, 5).map(float), min_size=size, max_size=size).map(np.array)
            for low in (-5, 0)
        )
    )
)


def rank(scores, place):
    """1 for the best; of equal scores the first."""
    before = [
        other
        for other, score in enumerate(scores)
        if score > scores[place] or (score == scores[place] and other < place)
    ]
    return 1 + len(before)


@given(lists)
def test_reciprocal_ranks_are_added(scores):
    model, words = scores
    merged = Fusion().merge(model, words)
    for place, value in enumerate(merged):
        expected = 1 / (RANK_OFFSET + rank(model, place))
        if words[place] > 0:
            expected += 1 / (RANK_OFFSET + rank(words, place))
        assert np.isclose(value, expected)


@given(lists, st.floats(0, 4))
def test_a_weight_adds_words_relative_to_the_best(scores, weight):
    model, words = scores
    for place, value in enumerate(Fusion(weight).merge(model, words)):
        relative = words[place] / max(words) if max(words) > 0 else 0
        assert np.isclose(value, model[place] + weight * relative)


def test_candidates_keep_the_order_of_the_model_where_no_word_is_known():
    model, words = np.array([0.1, 0.4, 0.3]), np.zeros(3)
    for fusion in (Fusion(), Fusion(2.0)):
        assert np.argsort(-fusion.merge(model, words)).tolist() == [1, 2, 0]


def judged(*, words_help):
    """Queries whose right answer has the best words, or the worst."""
    random = np.random.default_rng(0)
    queries = []
    for _ in range(40):
        right = np.arange(10) == random.integers(10)
        model = random.normal(size=10) + 0.5 * right
        words = np.abs(random.normal(size=10)) + 3 * (right == words_help)
        queries.append(JudgedCandidates(model, words, right))
    return queries


def test_words_count_much_where_they_help_and_nothing_where_they_mislead():
    assert choose_weight(judged(words_help=True)) > 1
    assert choose_weight(judged(words_help=False)) == 0


def test_a_query_without_a_right_candidate_chooses_nothing():
    nothing = JudgedCandidates(np.array([0.1, 0.4]), np.array([1.0, 0.0]), np.array([False, False]))
    assert choose_weight([nothing]) == 0
