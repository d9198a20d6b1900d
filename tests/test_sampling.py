"""Draws of offline negatives."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aoq.config import SamplingConfig
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


@settings(deadline=None)
@given(st.integers(0, 1000), st.integers(2, 9), st.integers(2, 5))
def test_draws_come_from_the_head_of_the_lists_and_never_belong_together(seed, texts, images):
    positives, lists = data_set(seed=seed)
    sampler = sampler_of(positives, lists, depth_texts=texts, depth_images=images)
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


def test_a_draw_follows_from_seed_epoch_and_step_alone():
    positives, lists = data_set()
    image_ids, text_ids = positives.pairs.T

    def draw(seed, epoch, step):
        sampler = sampler_of(positives, lists, seed=seed)
        return sampler.draw(image_ids, text_ids, epoch=epoch, step=step).texts.tolist()

    assert draw(1, 2, 3) == draw(1, 2, 3)
    others = [draw(2, 2, 3), draw(1, 3, 3), draw(1, 2, 4)]
    assert all(other != draw(1, 2, 3) for other in others)


def test_every_rank_is_drawn_about_equally_often():
    positives, lists = data_set()
    sampler = sampler_of(positives, lists, redraw=False)
    image, text = positives.pairs[:1].T
    ids = np.repeat(image, 9000), np.repeat(text, 9000)
    drawn = sampler.draw(*ids, epoch=0, step=0)
    _, counts = np.unique(drawn.texts, return_counts=True)
    assert len(counts) == lists.depth_texts
    assert counts.min() > 850
    assert counts.max() < 1150


def test_coupled_ranks_draw_rank_n_and_rank_n_over_five():
    positives, lists = data_set(depth_texts=10, depth_images=2)
    sampler = sampler_of(
        positives, lists, depth_texts=10, depth_images=2, ranks="coupled", redraw=False
    )
    image_ids, text_ids = positives.pairs.T
    drawn = sampler.draw(image_ids, text_ids, epoch=0, step=0)
    for row, (image, text) in enumerate(positives.pairs):
        text_rank = lists.i2t[image].tolist().index(drawn.texts[row])
        image_rank = lists.t2i[text].tolist().index(drawn.images[row])
        assert image_rank == text_rank // 5
    assert drawn.valid.all()


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
