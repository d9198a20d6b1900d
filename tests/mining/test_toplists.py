"""Lists filled in pieces against all candidates sorted, with ties, ceilings and false floors."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from aoq.mining.kernels import Block, find_scores
from aoq.mining.toplists import NO_KEY, Hits, TopLists, ids_of, keys_of, merged, scores_of

FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)
FEW = st.integers(-2, 2).map(float)


def sorted_rows(scores, depth):
    """Ids of the best of each row; equal scores by rising id, what is struck out not at all."""
    order = np.argsort(-scores, axis=1, kind="stable")[:, :depth]
    return [
        [at for at in ids if row[at] > -np.inf]
        for ids, row in zip(order.tolist(), scores, strict=True)
    ]


def ids_in(keys):
    return [ids_of(row[row != NO_KEY]).tolist() for row in keys]


def filled(scores, *, depth, size, ceilings=None):
    """Lists that saw the columns of `scores` in pieces of `size`, with no floor guessed."""
    lists = TopLists(len(scores), depth=depth, n_candidates=scores.shape[1])
    if ceilings is not None:
        lists.ceilings = ceilings
    everyone = slice(0, len(scores))
    for start in range(0, scores.shape[1], size):
        piece = scores[:, start : start + size]
        idx, columns = np.nonzero(piece >= lists.floors[:, None])
        lists.offer(everyone, Hits(idx, piece[idx, columns], columns + start))
    return lists


@given(st.lists(st.tuples(st.one_of(FINITE, FEW), st.integers(0, 2**31 - 1)), min_size=1))
def test_keys_order_by_score_and_equal_scores_by_lower_id(candidates):
    scores = np.array([score for score, _ in candidates], np.float32)
    ids = np.array([number for _, number in candidates])
    keys = keys_of(scores, ids)
    order = sorted(range(len(keys)), key=lambda at: (-scores[at], ids[at]))
    assert np.array_equal(np.sort(keys)[::-1], keys[order])
    assert np.array_equal(scores_of(keys), scores)
    assert np.array_equal(ids_of(keys), ids)
    assert (keys > NO_KEY).all()


def test_there_is_one_zero_only():
    zeros = np.array([-0.0, 0.0, -0.0], np.float32)
    keys = keys_of(zeros, np.array([2, 1, 0]))
    assert ids_of(np.sort(keys)[::-1]).tolist() == [0, 1, 2]


@settings(deadline=None)
@given(
    arrays.arrays(np.float32, st.tuples(st.integers(1, 4), st.integers(1, 90)), elements=FEW),
    st.integers(1, 12),
    st.integers(1, 100),
)
def test_lists_are_the_sorted_candidates_whatever_the_pieces_and_however_many_tie(
    scores, depth, size
):
    lists = filled(scores, depth=depth, size=size)
    assert not len(lists.settle(slice(0, len(scores))))
    assert ids_in(lists.best(slice(0, len(scores)))) == sorted_rows(scores, depth)


def test_more_hits_than_a_list_has_places_are_taken_in_turns():
    random = np.random.default_rng(0)
    scores = random.permuted(np.tile(np.arange(5000, dtype=np.float32), (3, 1)), axis=1)
    lists = filled(scores, depth=4, size=5000)
    assert not len(lists.settle(slice(0, 3)))
    assert scores_of(lists.best(slice(0, 3))).tolist() == [[4999, 4998, 4997, 4996]] * 3


@given(
    arrays.arrays(np.float32, (3, 40), elements=FEW),
    arrays.arrays(np.float32, 3, elements=FEW),
    st.integers(1, 45),
)
def test_what_is_above_the_ceiling_is_dropped_and_counted(scores, ceilings, size):
    lists = filled(scores, depth=5, size=size, ceilings=ceilings)
    high = scores > ceilings[:, None]
    assert lists.n_dropped.tolist() == high.sum(axis=1).tolist()
    below = np.where(high, -np.inf, scores)
    assert not len(lists.settle(slice(0, 3)))
    assert ids_in(lists.best(slice(0, 3))) == sorted_rows(below, 5)


@given(st.integers(1, 3000), st.integers(1, 3000), st.integers(1, 300))
def test_the_rank_to_keep_never_passes_the_depth_and_reaches_it_when_all_is_seen(
    n_candidates, seen, depth
):
    lists = TopLists(0, depth=depth, n_candidates=n_candidates)
    assert 1 <= lists.rank_to_keep(seen, alike=1.0) <= depth
    assert lists.rank_to_keep(n_candidates, alike=1.0) == depth


def test_a_floor_that_is_guessed_too_high_shows():
    lists = TopLists(2, depth=20, n_candidates=1000)
    sample = np.tile(np.arange(200, dtype=np.float32), (2, 1))
    lists.guess_floors(slice(0, 2), sample)
    rank = lists.rank_to_keep(200, alike=1.0)
    assert rank < 20
    assert lists.floors.tolist() == [200 - rank] * 2
    candidates = np.arange(20)
    hits = Hits(np.zeros(20, np.int64), np.full(20, 200, np.float32), candidates)
    lists.offer(slice(0, 2), hits)
    assert lists.settle(slice(0, 2)).tolist() == [1]
    assert lists.settle(slice(1, 2)).tolist() == [1]


def test_a_sample_of_struck_out_scores_sets_no_floor():
    lists = TopLists(1, depth=20, n_candidates=1000)
    lists.guess_floors(slice(0, 1), np.full((1, 200), -np.inf, np.float32))
    idx, scores = np.zeros(1, np.int64), np.array([np.finfo(np.float32).min])
    assert scores[0] >= lists.floors[0]
    lists.offer(slice(0, 1), Hits(idx, scores, idx))
    assert lists.fills.tolist() == [1]
    assert not len(lists.settle(slice(0, 1)))


def test_a_ceiling_keeps_a_guessed_floor_below_it():
    lists = TopLists(1, depth=20, n_candidates=1000)
    lists.ceilings = np.array([49], np.float32)
    lists.guess_floors(slice(0, 1), np.arange(200, dtype=np.float32)[None])
    assert lists.floors[0] == 50 - lists.rank_to_keep(200, alike=1.0)


def raised(scores, *, depth, size):
    """Lists that saw all of `scores` in pieces, with floors raised after each."""
    lists = TopLists(1, depth=depth, n_candidates=len(scores))
    for start in range(0, len(scores), size):
        piece = scores[start : start + size]
        hits = np.flatnonzero(piece >= lists.floors[0])
        idx = np.zeros(len(hits), np.int64)
        lists.offer(slice(0, 1), Hits(idx, piece[hits], hits + start))
        lists.raise_floors(slice(0, 1), seen=start + len(piece), latest=len(piece))
    return lists


def test_floors_rise_before_a_list_is_full():
    scores = np.random.default_rng(0).permutation(np.arange(1024, dtype=np.float32))
    lists = TopLists(1, depth=100, n_candidates=1024)
    hits = Hits(np.zeros(128, np.int64), scores[:128], np.arange(128))
    lists.offer(slice(0, 1), hits)
    lists.raise_floors(slice(0, 1), seen=128, latest=64)
    rank = lists.rank_to_keep(128, alike=1.0)
    assert rank < 100
    assert lists.floors[0] == np.sort(scores[:128])[-rank]


@given(st.integers(0, 100), st.integers(1, 300))
def test_lists_whose_floors_were_raised_are_exact_or_show_that_they_are_short(seed, size):
    scores = np.random.default_rng(seed).permutation(np.arange(1024, dtype=np.float32))
    if seed % 2:
        scores.sort()  # the best come last: every floor is far too low
    lists = raised(scores, depth=100, size=size)
    short = lists.settle(slice(0, 1))
    assert len(short) or ids_in(lists.best(slice(0, 1))) == sorted_rows(scores[None], 100)


@pytest.mark.parametrize("size", [16, 32, 64])
def test_a_raised_floor_keeps_the_lower_ids_among_equal_scores(size):
    scores = np.ones(1024, np.float32)
    lists = raised(scores, depth=100, size=size)
    assert not len(lists.settle(slice(0, 1)))
    assert ids_in(lists.best(slice(0, 1))) == [list(range(100))]


@given(st.lists(st.lists(st.integers(0, 1000), min_size=5, max_size=5), min_size=1, max_size=4))
def test_merged_lists_are_the_best_of_all(parts):
    keys = [np.array([sorted(part, reverse=True)], np.uint64) for part in parts]
    everything = sorted((key for part in parts for key in part), reverse=True)
    assert merged(keys).tolist() == [everything[:5]]


@settings(deadline=None)
@given(
    arrays.arrays(np.float32, st.tuples(st.integers(1, 30), st.integers(1, 40)), elements=FEW),
    st.randoms(use_true_random=False),
)
def test_the_kernels_find_what_plain_loops_find(scores, random):
    """Scores above a floor, row by row; columns filled, cut back where a list is full."""
    n_rows, n_columns = scores.shape
    floors = np.array([random.choice([-3, 0, 1]) for _ in range(n_rows)], np.float32)
    lists = TopLists(n_columns, depth=3, n_candidates=n_rows)
    lists.floors[:] = [random.choice([-10, 0]) for _ in range(n_columns)]
    lists.ceilings = np.array([random.choice([0.0, np.inf]) for _ in range(n_columns)], np.float32)
    idx, ids = np.empty((2, scores.size + 1), np.int32)
    found = Hits(idx, np.empty(scores.size + 1, np.float32), ids)
    column_floors = lists.floors.copy()
    count = find_scores(Block(scores, floors, column_floors), found)
    rows, columns = np.nonzero((scores >= floors[:, None]) | (scores >= column_floors))
    assert idx[:count].tolist() == rows.tolist()
    assert ids[:count].tolist() == columns.tolist()
    assert found.scores[:count].tolist() == scores[rows, columns].tolist()
    everything = slice(0, n_columns)
    lists.offer(everything, Hits(ids[:count], found.scores[:count], idx[:count] + 10))
    lists.settle(everything)
    kept = np.where((scores > lists.ceilings) | (scores < column_floors), -np.inf, scores).T
    expected = [[at + 10 for at in ids] for ids in sorted_rows(kept, 3)]
    best = lists.best(everything)
    listed = [ids_of(keys[keys != NO_KEY]).tolist() for keys in best]
    assert listed == expected
    high = (scores > lists.ceilings) & (scores >= column_floors)
    assert lists.n_dropped.tolist() == high.sum(axis=0).tolist()


@given(
    st.lists(st.floats(-2, 2, width=32) | st.sampled_from([-0.0, 0.0, 1.0]), min_size=1).map(
        lambda scores: np.array(scores * 40, np.float32)
    ),
    st.integers(1, 9),
    st.randoms(use_true_random=False),
)
def test_a_full_list_is_cut_without_losing_what_ends_up_in_it(scores, depth, random):
    random.shuffle(scores)
    lists = TopLists(1, depth=depth, n_candidates=len(scores))
    idx = np.zeros(len(scores), np.int64)
    lists.offer(slice(0, 1), Hits(idx, scores, np.arange(len(scores))))
    assert len(scores) < lists.capacity(depth) or lists.floors[0] <= np.sort(scores)[-depth]
    assert not len(lists.settle(slice(0, 1)))
    assert ids_in(lists.best(slice(0, 1))) == sorted_rows(scores[None] + np.float32(0), depth)
