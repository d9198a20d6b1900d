"""Rules against false negatives, one by one and together, against plain loops."""

from __future__ import annotations

import json

import numpy as np
import pytest

from aoq.config import MiningConfig
from aoq.errors import UserError
from aoq.mining import finish
from aoq.mining.candidates import CandidateLists
from aoq.mining.filters import best_positive_scores, pair_scores
from aoq.scoring.inner_product import InnerProduct
from aoq.types import Positives
from tests.mining.cases import encoded_from, five_texts_an_image
from tests.mining.rule_cases import COMBINATIONS, LARGE, RULES, SMALL, Case, Reference

# The same, as the words say it


def assert_as_documented(case, **settings):
    """Mine with these settings, and compare lists and counts; what was mined."""
    config = MiningConfig(**settings)
    mined = case.mined(**settings)
    counts = {name.rsplit(" ", 1)[0]: number for name, number in mined.n_dropped.items()}
    for side, ids in enumerate((mined.lists.i2t, mined.lists.t2i)):
        reference = Reference(case, texts_are_anchors=bool(side), config=config)
        depth = reference.usable_depth(config.depth_images if side else config.depth_texts)
        expected, n_high, n_near, n_excused = reference.lists(depth)
        np.testing.assert_array_equal(ids, expected)
        assert mined.n_excused[side] == n_excused
        if config.equal_captions:
            assert mined.n_dropped["equal captions"][side] == reference.n_equal > 0
        if config.score_share is not None:
            assert counts["score share"][side] == n_high > 0
        if config.near_captions is not None:
            assert counts["near captions"][side] == n_near
        if config.skip_first:
            assert counts["skip first"][side] == config.skip_first * len(ids)
    return mined


@pytest.mark.parametrize("rules", COMBINATIONS, ids=" ".join)
def test_rules_leave_what_plain_loops_leave(rules):
    settings = {name: RULES[name][1] for name in rules}
    mined = assert_as_documented(LARGE, depth_texts=10, depth_images=5, **settings)
    assert mined.lists.provenance.rules == tuple(RULES[name][0] for name in rules)
    assert list(mined.n_dropped) == [RULES[name][0] for name in rules]


@pytest.mark.parametrize("rules", COMBINATIONS, ids=" ".join)
def test_rules_leave_what_plain_loops_leave_of_a_small_set(rules):
    assert_as_documented(
        SMALL, depth_texts=8, depth_images=3, **{name: RULES[name][1] for name in rules}
    )


@pytest.mark.parametrize("block_size", [7, 64, 1000])
def test_blocks_change_neither_what_rules_leave_nor_what_they_count(block_size):
    settings = {name: value for name, (_, value) in RULES.items()}
    one = LARGE.mined(depth_texts=10, depth_images=5, **settings)
    other = LARGE.mined(depth_texts=10, depth_images=5, block_size=block_size, **settings)
    np.testing.assert_array_equal(one.lists.i2t, other.lists.i2t)
    np.testing.assert_array_equal(one.lists.t2i, other.lists.t2i)
    assert one.n_dropped == other.n_dropped
    assert one.n_excused == other.n_excused


def test_no_rule_is_on_unless_asked_for():
    mined = LARGE.mined(depth_texts=10, depth_images=5)
    assert mined.lists.provenance.rules == ()
    assert mined.n_dropped == {}
    plain = np.argsort(-np.where(_is_positive(LARGE), -np.inf, LARGE.matrix), axis=1)
    np.testing.assert_array_equal(mined.lists.i2t, plain[:, :10])


def _is_positive(case):
    images, texts = np.indices(case.matrix.shape)
    return case.positives.contains(images, texts)


def test_rules_are_stored_with_the_lists(tmp_path):
    mined = LARGE.mined(depth_texts=10, depth_images=5, score_share=0.6, skip_first=3)
    mined.lists.save(tmp_path / "lists")
    assert CandidateLists.load(tmp_path / "lists").provenance.rules == (
        "score share 0.6",
        "skip first 3",
    )
    assert json.dumps(mined.n_dropped)


# Ceilings


@pytest.mark.parametrize("share", [0.2, 0.9, 1.0])
def test_a_share_of_a_negative_score_lies_below_it(share):
    case = Case(LARGE.matrix - 6, LARGE.positives, LARGE.captions)
    assert (case.matrix < 0).all()
    assert_as_documented(case, depth_texts=10, depth_images=5, score_share=share)


def test_a_share_of_everything_drops_what_beats_the_best_positive_and_leaves_what_equals_it():
    pairs = [(0, 0), (1, 1), (2, 2), (2, 3), (2, 4), (2, 5)]
    positives = Positives.from_pairs(pairs, n_images=3, n_texts=6)
    matrix = np.array([[5, 5, 6, 4, 3, 2], [1, 5, 4, 6, 2, 0], [0, 1, 1, 1, 1, 1]], np.float32)
    mined = Case(matrix, positives, [""] * 6).mined(depth_texts=2, depth_images=1, score_share=1.0)
    assert mined.lists.i2t.tolist() == [[1, 3], [2, 4], [1, 0]]
    assert mined.n_dropped["score share 1.0"][0] == 2


def test_the_best_of_several_positives_sets_the_ceiling():
    best_i2t, best_t2i = best_positive_scores(
        InnerProduct(), encoded_from(LARGE.matrix), LARGE.positives
    )
    for image in range(60):
        own = LARGE.matrix[image, LARGE.positives.texts_of(image)]
        assert best_i2t[image] == (own.max() if len(own) else np.inf)
    image_of = LARGE.positives.swapped.pairs[:, 1]
    np.testing.assert_array_equal(best_t2i, LARGE.matrix[image_of, np.arange(300)])


def test_positives_are_scored_in_the_order_of_the_relation(monkeypatch):
    monkeypatch.setattr("aoq.mining.filters._PAIRS_AT_ONCE", 7)
    scores = pair_scores(InnerProduct(), encoded_from(LARGE.matrix), LARGE.positives)
    np.testing.assert_array_equal(scores, LARGE.matrix[tuple(LARGE.positives.pairs.T)])
    none = Positives.from_pairs([], n_images=60, n_texts=300)
    assert pair_scores(InnerProduct(), encoded_from(LARGE.matrix), none).shape == (0,)


@pytest.mark.parametrize("share", [0.6, 1.0])
def test_an_anchor_without_positives_has_no_ceiling(share):
    few = LARGE.positives.pairs[:50]
    case = Case(LARGE.matrix, Positives.from_pairs(few, n_images=60, n_texts=300), LARGE.captions)
    assert_as_documented(case, depth_texts=10, depth_images=5, score_share=share)


# Too few left


def test_an_anchor_that_rules_leave_too_few_keeps_what_it_had():
    mined = assert_as_documented(LARGE, depth_texts=250, depth_images=5, score_share=0.6)
    assert mined.n_excused[0] > 0


def test_what_an_excused_anchor_keeps_is_not_counted_as_dropped():
    mined = LARGE.mined(depth_texts=250, depth_images=5, score_share=0.6)
    reference = Reference(LARGE, texts_are_anchors=False, config=MiningConfig(score_share=0.6))
    _, n_high, _, n_excused = reference.lists(250)
    assert mined.n_excused[0] == n_excused > 0
    assert mined.n_dropped["score share 0.6"][0] == n_high


def test_a_reserve_that_near_captions_use_up_is_made_good(monkeypatch):
    """Two sentences for all: half of the candidates of every anchor are near."""
    ranked_whole = []
    rank_all = finish._rank_all

    def spied(plan, anchors, *, block_size):
        ranked_whole.extend(anchors)
        return rank_all(plan, anchors, block_size=block_size)

    monkeypatch.setattr(finish, "_rank_all", spied)
    captions = ["a red ball" if text // 5 % 2 else "two cups" for text in range(500)]
    random = np.random.default_rng(5)
    matrix = random.normal(size=(100, 500)).astype(np.float32)
    matrix[:20, [caption == "two cups" for caption in captions]] += 9  # near comes first, for some
    case = Case(matrix, five_texts_an_image(100, 500), captions)
    mined = assert_as_documented(case, depth_texts=10, depth_images=5, near_captions=0.9)
    assert ranked_whole
    assert mined.n_excused == (0, 0)


def test_anchors_to_whom_all_is_near_are_excused_and_skip_their_first_all_the_same():
    case = Case(LARGE.matrix, LARGE.positives, ["a red ball"] * 299 + ["a cup"])
    mined = assert_as_documented(
        case, depth_texts=10, depth_images=5, near_captions=0.9, skip_first=2
    )
    assert mined.n_excused[0] >= 59
    assert mined.n_dropped["near captions 0.9"][0] == 0


def test_rules_about_captions_without_them_say_how_to_pass_them():
    case = Case(LARGE.matrix, LARGE.positives, None)
    for rule in ({"equal_captions": True}, {"near_captions": 0.8}):
        with pytest.raises(UserError, match=r"pass captions=dataset\.captions"):
            case.mined(**rule)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"score_share": 0.0}, "score_share is 0.0; it has to lie in"),
        ({"score_share": 1.1}, "score_share is 1.1"),
        ({"score_share": float("nan")}, "score_share is nan"),
        ({"near_captions": -0.5}, "near_captions is -0.5"),
        ({"skip_first": -1}, "skip_first is -1; it cannot be negative"),
        ({"memory": "lots"}, "cannot be read"),
    ],
)
def test_impossible_rules_are_refused(settings, sentence):
    with pytest.raises(UserError, match=sentence):
        MiningConfig(**settings)


def test_skipping_all_there_is_is_refused():
    with pytest.raises(UserError, match="no texts are left to mine"):
        LARGE.mined(skip_first=300)


def test_the_ceiling_of_rounded_vectors_is_rounded_too():
    positives = Positives.from_pairs([(0, 0), (1, 1), (1, 2), (1, 3)], n_images=2, n_texts=4)
    matrix = np.array([[1.0, 1.0001, 0.5, 0.2], [0.0, 0.1, 0.2, 0.3]], np.float32)
    case = Case(matrix, positives, [""] * 4)
    settings = {"depth_texts": 1, "depth_images": 1, "score_share": 1.0}
    assert case.mined(**settings).lists.i2t[0].tolist() == [2]
    assert case.mined(precision="bfloat16", **settings).lists.i2t[0].tolist() == [1]
