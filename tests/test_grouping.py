"""The order of grouped batches."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aoq.config import SamplingConfig
from aoq.grouping import grouped_order, sides_of, walk
from aoq.mining.candidates import CandidateLists, Provenance
from aoq.randomness import epoch_order, group_generator
from aoq.sampling import OfflineSampler
from aoq.types import Positives


def sampler_of(positives, i2t, t2i, *, seed=0, **config):
    scores = (np.zeros(lists.shape, np.float32) for lists in (i2t, t2i))
    lists = CandidateLists(i2t, next(scores), t2i, next(scores), Provenance("", ""))
    return OfflineSampler(lists, positives, config=SamplingConfig(**config), seed=seed)


def random_sampler(n_images=12, *, seed=0, shared=0, **config):
    """Uneven captions, some of several images, and lists of random negatives."""
    random = np.random.default_rng(seed)
    owners = np.concatenate([np.arange(n_images), random.integers(n_images, size=2 * n_images)])
    texts = np.concatenate([np.arange(len(owners)), random.integers(len(owners), size=shared)])
    owners = np.concatenate([owners, random.integers(n_images, size=shared)])
    pairs = np.stack([owners, texts], axis=1)
    positives = Positives.from_pairs(pairs, n_images=n_images, n_texts=3 * n_images)

    def lists(relation: Positives) -> np.ndarray:
        depth = relation.n_texts - int(relation.texts_per_image().max())
        wrong = (
            np.setdiff1d(np.arange(relation.n_texts), relation.texts_of(anchor))
            for anchor in range(relation.n_images)
        )
        return np.stack([random.permutation(row)[:depth] for row in wrong]).astype(np.int32)

    return sampler_of(positives, lists(positives), lists(positives.swapped), seed=seed, **config)


def neighbours(n_images=400, *, texts_each=5, seed=0):
    """Images on a ring: the lists of each hold the nearest others, nearest first."""
    pairs = np.stack([np.arange(n_images * texts_each) // texts_each] * 2, axis=1)
    pairs[:, 1] = np.arange(len(pairs))
    positives = Positives.from_pairs(pairs, n_images=n_images, n_texts=len(pairs))
    steps = np.array([step for near in range(1, 7) for step in (near, -near)])
    images = (np.arange(n_images)[:, None] + steps) % n_images
    i2t = (images[:, :, None] * texts_each + np.arange(texts_each)).reshape(n_images, -1)
    t2i = images[pairs[:, 0]]
    return sampler_of(positives, i2t.astype(np.int32), t2i.astype(np.int32), seed=seed)


@settings(deadline=None)
@given(
    st.integers(0, 1000),
    st.integers(2, 9),
    st.integers(1, 20),
    st.integers(1, 5),
    st.sampled_from(["uniform", "normal"]),
    st.sampled_from(["independent", "coupled"]),
)
def test_an_epoch_visits_every_positive_pair_exactly_once(
    seed, group_size, texts, images, draws, ranks
):
    sampler = random_sampler(
        seed=seed,
        shared=seed % 20,
        depth_texts=texts,
        depth_images=images,
        draws=draws,
        ranks=ranks,
    )
    order = grouped_order(sampler, group_size=group_size, epoch=seed)
    assert sorted(order.tolist()) == list(range(len(sampler.positives.pairs)))


def walked_by_plain_loops(positives, pairs, lists, ranks, group_size):
    """The groups of `walk`, by looking through all pairs for each candidate."""
    free, groups = list(range(len(pairs))), []

    def find(group, side):
        """The first free pair that has a candidate of the seed on this side and may join."""
        if not free:
            return None
        candidates = lists[side][pairs[group[0]][1 - side]].tolist()
        start = ranks[side][len(pairs) - len(free)] % len(candidates)
        for candidate in candidates[start:] + candidates[:start]:
            for row in free:
                strange = all(
                    not positives.contains(*pair)
                    for member in group
                    for pair in (
                        (pairs[row][0], pairs[member][1]),
                        (pairs[member][0], pairs[row][1]),
                    )
                )
                if pairs[row][side] == candidate and strange:
                    return row
        return None

    while free:
        group = [free.pop(0)]
        while len(group) < group_size:
            side = (len(pairs) - len(free)) % 2
            found = [row for each in (side, 1 - side) if (row := find(group, each)) is not None]
            if not found:
                break
            group.append(found[0])
            free.remove(found[0])
        groups.append(group)
    return groups


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 1000), st.integers(2, 9), st.integers(1, 6), st.integers(1, 3))
def test_groups_are_those_of_plain_loops_and_no_two_of_their_pairs_belong_together(
    seed, group_size, depth_texts, depth_images
):
    sampler = random_sampler(
        seed=seed, shared=seed % 20, depth_texts=depth_texts, depth_images=depth_images
    )
    positives = sampler.positives
    chosen = epoch_order(len(positives.pairs), seed=seed, epoch=0)
    images, texts = sides_of(sampler, chosen, np.random.default_rng(seed))
    order, sizes = walk(images, texts, group_size)
    groups = [part.tolist() for part in np.split(order, np.cumsum(sizes)[:-1])]
    pairs, lists = positives.pairs[chosen], (sampler.images, sampler.texts)
    ranks = sampler.draw_ranks(len(pairs), np.random.default_rng(seed))[::-1]
    assert groups == walked_by_plain_loops(positives, pairs, lists, ranks, group_size)
    for group in groups:
        belong = positives.among(*pairs[group].T)
        assert (belong == np.eye(len(group), dtype=bool)).all()


def test_an_order_follows_from_seed_epoch_and_lists_alone():
    def order(seed=1, epoch=2, **changes):
        sampler = neighbours(seed=seed, **changes)
        return grouped_order(sampler, group_size=4, epoch=epoch).tolist()

    kinds = [{}, {"seed": 2}, {"epoch": 3}, {"n_images": 401}]
    first, again = ([order(**kind) for kind in kinds] for _ in range(2))
    assert first == again
    assert len({tuple(each) for each in first}) == len(kinds)


def candidates_in_batches(sampler, order, size):
    """How many of the other pairs of its batch are in the lists of a pair, on average."""
    found = []
    for start in range(0, len(order), size):
        images, texts = sampler.positives.pairs[order[start : start + size]].T
        for image, text in zip(images, texts, strict=True):
            of_image = np.isin(texts, sampler.texts[image])
            of_text = np.isin(images, sampler.images[text])
            found.append((of_image | of_text).sum())
    return np.mean(found)


@pytest.mark.parametrize("group_size", [4, 8])
def test_batches_hold_many_more_candidates_of_their_pairs_than_random_ones(group_size):
    """2,000 pairs with 60 candidates each: a random batch of 32 holds 31 * 60 / 2000 of them."""
    sampler = neighbours()
    order = epoch_order(2000, seed=0, epoch=0)
    assert candidates_in_batches(sampler, order, 32) == pytest.approx(0.93, abs=0.1)
    grouped = grouped_order(sampler, group_size=group_size, epoch=0)
    assert candidates_in_batches(sampler, grouped, 32) > 0.93 + 0.5 * (group_size - 1)


def test_groups_of_a_batch_come_from_all_over_the_data():
    """Five batches of 8 groups of 4: each spans most of the ring, and so do its seeds."""
    sampler = neighbours()
    order = grouped_order(sampler, group_size=4, epoch=0)
    for start in range(0, 160, 32):
        images = np.sort(sampler.positives.pairs[order[start : start + 32], 0])
        gaps = np.diff(images, append=images[0] + 400)
        assert gaps.max() < 200


def test_full_groups_stay_together_and_the_rest_of_an_epoch_is_last():
    """41 pairs make ten groups of 4, some of them joined from smaller ones, and one pair more."""
    sampler = neighbours(n_images=41, texts_each=1)
    chosen, random = epoch_order(41, seed=0, epoch=5), group_generator(0, epoch=5)
    walked, sizes = walk(*sides_of(sampler, chosen, random), 4)
    groups = np.split(chosen[walked], np.cumsum(sizes)[:-1])
    full = {tuple(group.tolist()) for group in groups if len(group) == 4}
    order = grouped_order(sampler, group_size=4, epoch=5).tolist()
    rows = [tuple(order[start : start + 4]) for start in range(0, 41, 4)]
    assert full <= set(rows)
    assert rows[-1] == (groups[-1][-1],)
    assert 5 <= len(full) < 10
