"""Draws of offline negatives."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aoq.config import SamplingConfig
from aoq.errors import UserError
from aoq.mining.candidates import CandidateLists, Provenance
from aoq.sampling import OfflineSampler
from aoq.types import Positives


def data_set(n_images=12, *, seed=0, depth_texts=9, depth_images=5):
    """Uneven captions, and lists of random negatives."""
    random = np.random.default_rng(seed)
    owners = np.concatenate([np.arange(n_images), random.integers(n_images, size=2 * n_images)])
    pairs = np.stack([owners, np.arange(len(owners))], axis=1)
    positives = Positives.from_pairs(pairs, n_images=n_images, n_texts=len(owners))

    def lists(relation: Positives, depth: int):
        wrong = [
            np.setdiff1d(np.arange(relation.n_texts), relation.texts_of(anchor))
            for anchor in range(relation.n_images)
        ]
        return np.stack([random.permutation(row)[:depth] for row in wrong]).astype(np.int32)

    i2t, t2i = lists(positives, depth_texts), lists(positives.swapped, depth_images)
    return positives, CandidateLists(
        i2t,
        np.zeros(i2t.shape, np.float32),
        t2i,
        np.zeros(t2i.shape, np.float32),
        Provenance(teacher="", data=""),
    )


def sampler_of(positives, lists, *, seed=0, **settings):
    return OfflineSampler(lists, positives, config=SamplingConfig(**settings), seed=seed)


def drawn_ranks(sampler, lists, *, times):
    """How often each text and each image of the first pair's lists is drawn."""
    image, text = sampler.positives.pairs[0]
    ids = np.full(times, image), np.full(times, text)
    drawn = sampler.draw(*ids, epoch=0, step=0)
    return (
        (drawn.texts[:, None] == lists.i2t[image]).sum(axis=0),
        (drawn.images[:, None] == lists.t2i[text]).sum(axis=0),
    )


@settings(deadline=None)
@given(
    st.integers(0, 1000),
    st.integers(1, 9),
    st.integers(1, 5),
    st.sampled_from(["uniform", "normal"]),
    st.sampled_from(["independent", "coupled"]),
)
def test_draws_come_from_the_head_of_the_lists_and_never_belong_together(
    seed, texts, images, draws, ranks
):
    positives, lists = data_set(seed=seed)
    sampler = sampler_of(
        positives, lists, depth_texts=texts, depth_images=images, draws=draws, ranks=ranks
    )
    image_ids, text_ids = positives.pairs.T
    drawn = sampler.draw(image_ids, text_ids, epoch=0, step=seed)
    for row, (image, text) in enumerate(positives.pairs):
        assert drawn.texts[row] in lists.i2t[image, :texts]
        assert drawn.images[row] in lists.t2i[text, :images]
        assert positives.contains(drawn.partner_images[row], drawn.texts[row])
        assert positives.contains(drawn.images[row], drawn.partner_texts[row])
    valid = drawn.valid
    assert not positives.contains(drawn.images, drawn.texts)[valid].any()
    assert not positives.contains(drawn.partner_images, drawn.partner_texts)[valid].any()


@pytest.mark.parametrize("draws", ["uniform", "normal"])
def test_a_draw_follows_from_seed_epoch_and_step_alone(draws):
    positives, lists = data_set()
    image_ids, text_ids = positives.pairs.T

    def draw(seed, epoch, step):
        sampler = sampler_of(positives, lists, seed=seed, draws=draws)
        return sampler.draw(image_ids, text_ids, epoch=epoch, step=step).texts.tolist()

    keys = [(1, 2, 3), (2, 2, 3), (1, 3, 3), (1, 2, 4)]
    first, again = ([draw(*key) for key in keys] for _ in range(2))
    assert first == again
    assert len({tuple(texts) for texts in first}) == len(keys)


def test_every_partner_is_drawn_about_equally_often():
    positives, lists = data_set()
    drawn = sampler_of(positives, lists).draw(
        *np.tile(positives.pairs[:1], (20_000, 1)).T, epoch=0, step=0
    )
    for image in np.unique(drawn.images):
        own = positives.texts_of(image)
        times = (drawn.partner_texts[drawn.images == image, None] == own).sum(axis=0)
        expected = times.sum() / len(own)
        assert (abs(times - expected) < 6 * np.sqrt(expected)).all()
    assert max(len(positives.texts_of(image)) for image in np.unique(drawn.images)) > 1


def test_every_rank_is_drawn_about_equally_often():
    positives, lists = data_set()
    sampler = sampler_of(positives, lists, redraw=False)
    for counts, depth in zip(drawn_ranks(sampler, lists, times=9000), (9, 5), strict=True):
        assert len(counts) == depth
        np.testing.assert_allclose(counts, 9000 / depth, rtol=0.15)


def test_normal_draws_gather_around_the_middle_of_the_list_and_thin_out_to_its_ends():
    """One sigma to either side is the middle third; the ends are three sigma away.

    A normal leaves 0.27% outside; of the rest 68.45% lie within one sigma, 2.15% beyond two on
    either side. Were the outside moved to the ends, each end would get 0.18%, not 0.05%.
    """
    positives, lists = data_set(n_images=60, depth_texts=60, depth_images=30)
    sampler = sampler_of(
        positives, lists, depth_texts=60, depth_images=30, draws="normal", redraw=False
    )
    times = 40_000
    for counts in drawn_ranks(sampler, lists, times=times):
        assert counts.sum() == times
        third, sixth = len(counts) // 3, len(counts) // 6
        assert counts[third : 2 * third].sum() / times == pytest.approx(0.6845, abs=0.02)
        assert counts[:sixth].sum() / times == pytest.approx(0.0215, abs=0.005)
        assert counts[-sixth:].sum() / times == pytest.approx(0.0215, abs=0.005)
        assert counts[[0, -1]].max() < counts[[2, -3]].min()


def test_independent_ranks_do_not_follow_each_other():
    positives, lists = data_set(n_images=60, depth_texts=60, depth_images=12)
    image, text = positives.pairs[0]
    for draws in ("uniform", "normal"):
        sampler = sampler_of(
            positives, lists, depth_texts=60, depth_images=12, draws=draws, redraw=False
        )
        drawn = sampler.draw(np.full(5000, image), np.full(5000, text), epoch=0, step=0)
        text_ranks = (drawn.texts[:, None] == lists.i2t[image]).argmax(axis=1)
        image_ranks = (drawn.images[:, None] == lists.t2i[text]).argmax(axis=1)
        assert abs(np.corrcoef(text_ranks, image_ranks)[0, 1]) < 0.06


@pytest.mark.parametrize("draws", ["uniform", "normal"])
def test_coupled_ranks_draw_rank_n_and_rank_n_over_five(draws):
    positives, lists = data_set(depth_texts=10, depth_images=2)
    sampler = sampler_of(
        positives, lists, depth_texts=10, depth_images=2, draws=draws, ranks="coupled", redraw=False
    )
    image_ids, text_ids = positives.pairs.T
    drawn = sampler.draw(image_ids, text_ids, epoch=0, step=0)
    for row, (image, text) in enumerate(positives.pairs):
        text_rank = lists.i2t[image].tolist().index(drawn.texts[row])
        image_rank = lists.t2i[text].tolist().index(drawn.images[row])
        assert image_rank == text_rank // 5
    assert drawn.valid.all()


@pytest.mark.parametrize("draws", ["uniform", "normal"])
def test_a_smaller_depth_draws_from_deep_lists_as_from_lists_mined_that_deep(draws, capsys):
    positives, deep = data_set()
    shallow = replace(
        deep,
        i2t=deep.i2t[:, :4],
        i2t_scores=deep.i2t_scores[:, :4],
        t2i=deep.t2i[:, :3],
        t2i_scores=deep.t2i_scores[:, :3],
    )
    image_ids, text_ids = positives.pairs.T
    drawn, wanted = (
        sampler_of(positives, lists, depth_texts=4, depth_images=3, draws=draws).draw(
            image_ids, text_ids, epoch=1, step=2
        )
        for lists in (deep, shallow)
    )
    np.testing.assert_array_equal(drawn.texts, wanted.texts)
    np.testing.assert_array_equal(drawn.images, wanted.images)
    assert capsys.readouterr().err == ""


def lists_with_true_pairs():
    """Of pair (0, 0), texts 1, 2, 3 and images 1, 2: (1, 1) and (2, 2) belong together."""
    positives = Positives.from_pairs([(0, 0), (1, 1), (2, 2), (3, 3)], n_images=4, n_texts=4)
    i2t = np.array([[1, 2, 3], [0, 2, 3], [0, 1, 3], [1, 0, 2]], np.int32)
    t2i = np.array([[1, 2], [0, 2], [0, 1], [0, 1]], np.int32)
    scores = np.zeros((4, 3), np.float32)
    return positives, CandidateLists(i2t, scores, t2i, scores[:, :2], Provenance("", ""))


@pytest.mark.parametrize("tries", [1, 10])
def test_what_is_left_after_true_pairs_is_drawn_about_equally_often(tries):
    positives, lists = lists_with_true_pairs()
    sampler = sampler_of(positives, lists, depth_texts=3, depth_images=2, tries=tries)
    drawn = sampler.draw(np.zeros(4000, int), np.zeros(4000, int), epoch=0, step=0)
    combinations, counts = np.unique(
        np.stack([drawn.images, drawn.texts], axis=1), axis=0, return_counts=True
    )
    assert combinations.tolist() == [[1, 2], [1, 3], [2, 1], [2, 3]]
    np.testing.assert_allclose(counts, 1000, rtol=0.15)


def test_a_true_pair_is_drawn_again_only_so_many_times(monkeypatch):
    positives, lists = lists_with_true_pairs()
    sampler = sampler_of(positives, lists, depth_texts=1, depth_images=1, tries=3)
    sizes = []
    draw = sampler._draw

    def counted(image_ids, text_ids, random):
        sizes.append(len(image_ids))
        return draw(image_ids, text_ids, random)

    monkeypatch.setattr(sampler, "_draw", counted)
    drawn = sampler.draw(np.array([0, 3]), np.array([0, 3]), epoch=0, step=0)
    assert sizes == [2, 1, 1, 1]  # the only combination of (0, 0) is the true pair (1, 1)
    assert drawn.images.tolist() == [1, 0]
    assert drawn.texts.tolist() == [1, 1]
    assert drawn.valid.tolist() == [False, True]


def test_where_every_combination_is_a_true_pair_the_derived_terms_are_switched_off():
    positives = Positives.from_pairs([(0, 0), (1, 1), (2, 2)], n_images=3, n_texts=3)
    i2t, t2i = np.array([[1], [0], [0]], np.int32), np.array([[1], [0], [1]], np.int32)
    zeros = np.zeros((3, 1), np.float32)
    lists = CandidateLists(i2t, zeros, t2i, zeros, Provenance(teacher="", data=""))
    sampler = sampler_of(positives, lists, depth_texts=1, depth_images=1)
    ids = np.arange(3)
    drawn = sampler.draw(ids, ids, epoch=0, step=0)
    assert drawn.texts.tolist() == [1, 0, 0]
    assert drawn.images.tolist() == [1, 0, 1]
    assert drawn.valid.tolist() == [False, False, True]


def test_lists_that_are_not_deep_enough_are_used_with_a_warning(capsys):
    positives, lists = data_set()
    sampler_of(positives, lists, depth_texts=300, depth_images=60)
    assert "9 texts and 5 images instead of 300 and 60" in capsys.readouterr().err


@pytest.mark.parametrize("tries", [1, 10])
def test_the_search_after_the_last_try_finds_the_only_combination_left(tries):
    """Text 1 belongs to image 1; of the lists (1, 2) and (1) only (image 1, text 2) is wrong."""
    positives = Positives.from_pairs([(0, 0), (1, 1), (2, 2), (1, 3)], n_images=3, n_texts=4)
    i2t = np.array([[1, 2], [0, 2], [0, 1]], np.int32)
    t2i = np.array([[1], [0], [0], [0]], np.int32)
    lists = CandidateLists(
        i2t, np.zeros((3, 2), np.float32), t2i, np.zeros((4, 1), np.float32), Provenance("", "")
    )
    sampler = sampler_of(positives, lists, depth_texts=2, depth_images=1, tries=tries)
    for step in range(20):
        drawn = sampler.draw(np.array([0]), np.array([0]), epoch=0, step=step)
        assert (drawn.texts[0], drawn.images[0]) == (2, 1)
        assert drawn.valid.all()


def with_matches(lists, *, seed=0):
    random = np.random.default_rng(seed)
    i2t, t2i = (random.random(ids.shape).astype(np.float32) for ids in (lists.i2t, lists.t2i))
    return replace(lists, i2t_matches=i2t, t2i_matches=t2i)


@pytest.mark.parametrize("draws", ["uniform", "normal"])
def test_likely_matches_are_drawn_less_in_proportion(draws):
    positives, lists = data_set()
    lists = with_matches(lists)
    options = {"depth_texts": 9, "depth_images": 5, "draws": draws, "redraw": False}
    times = 20_000
    usual = drawn_ranks(sampler_of(positives, lists, **options), lists, times=times)
    found = drawn_ranks(
        sampler_of(positives, lists, avoid_matches=True, **options), lists, times=times
    )
    image, text = positives.pairs[0]
    for before, after, p in zip(
        usual, found, (lists.i2t_matches[image], lists.t2i_matches[text]), strict=True
    ):
        expected = before * (1 - p) / (before * (1 - p)).sum() * times
        np.testing.assert_allclose(after, expected, atol=4 * np.sqrt(times) / 2)


@settings(deadline=None)
@given(st.integers(0, 1000))
def test_sure_matches_are_never_drawn_unless_nothing_else_is_listed(seed):
    positives, lists = data_set(seed=seed)
    lists = with_matches(lists, seed=seed)
    lists.i2t_matches[:, ::2], lists.t2i_matches[:, 1:] = 1.0, 1.0
    lists.i2t_matches[0], lists.t2i_matches[0] = 1.0, 1.0
    sampler = sampler_of(
        positives, lists, depth_texts=9, depth_images=5, avoid_matches=True, redraw=False
    )
    images, texts = positives.pairs.T
    drawn = sampler.draw(images, texts, epoch=0, step=seed)
    for row, (image, text) in enumerate(positives.pairs):
        allowed = lists.i2t[image] if image == 0 else lists.i2t[image, 1::2]
        assert drawn.texts[row] in allowed
        assert drawn.images[row] in (lists.t2i[text] if text == 0 else lists.t2i[text, :1])


def test_draws_carry_the_probabilities_of_their_candidates():
    positives, lists = data_set()
    lists = with_matches(lists)
    sampler = sampler_of(positives, lists, depth_texts=9, depth_images=5)
    images, texts = positives.pairs.T
    drawn = sampler.draw(images, texts, epoch=0, step=0)[2:7]
    for row, (image, text) in enumerate(positives.pairs[2:7]):
        place = lists.i2t[image].tolist().index(drawn.texts[row])
        assert drawn.text_matches[row] == lists.i2t_matches[image, place]
        place = lists.t2i[text].tolist().index(drawn.images[row])
        assert drawn.image_matches[row] == lists.t2i_matches[text, place]


def test_lists_without_probabilities_cannot_be_drawn_by_them():
    positives, lists = data_set()
    with pytest.raises(UserError, match="mine them with --estimate-matches"):
        sampler_of(positives, lists, avoid_matches=True)
    with pytest.raises(UserError, match="text and image by their own probabilities"):
        SamplingConfig(avoid_matches=True, ranks="coupled")
