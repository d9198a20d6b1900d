"""Mining against the full matrix: exact where it guesses, in threads, in budgets and rounded."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from aoq.config import MiningConfig
from aoq.errors import UserError
from aoq.mining.candidates import Provenance
from aoq.mining.mine import mine, mine_in_processes
from aoq.mining.score_matrix import ScoreMatrix
from aoq.mining.sweep import FullSweep
from aoq.mining.toplists import TopLists, ids_of
from aoq.scoring.blocks import evenly_spread
from aoq.scoring.inner_product import InnerProduct
from aoq.scoring.precision import Rounded
from aoq.threads import worker_threads
from aoq.types import Encoding, Positives
from tests.mining.cases import (
    DISTINCT,
    NOWHERE,
    TIED,
    assert_close,
    assert_exact,
    best_of_rows,
    embedded,
    encoded_from,
    five_texts_an_image,
    matrix_of,
    negatives_of,
    threads,
)


def mined(encoded, positives, *, block_size=None, scorer=None, **settings):
    return mine(
        scorer or InnerProduct(),
        encoded,
        positives,
        config=MiningConfig(**settings),
        provenance=NOWHERE,
        block_size=block_size,
    )


# Exact


@pytest.fixture
def happened(monkeypatch):
    """How often what happened to the floors and lists of how many anchors."""
    counts = Counter()

    def spy(name, count):
        real = getattr(TopLists, name)

        def spied(lists, *arguments, **options):
            before = lists.floors.copy()
            result = real(lists, *arguments, **options)
            counts[name, len(lists)] += int(count(lists, before, result))
            return result

        monkeypatch.setattr(TopLists, name, spied)

    def risen(lists, before, _):
        return (lists.floors > before).sum()

    spy("guess_floors", risen)
    spy("raise_floors", risen)
    spy("settle", lambda lists, before, short: len(short))
    return counts


def test_floors_are_guessed_and_raised_lists_completed_and_the_result_is_exact(happened):
    for kind in DISTINCT:
        matrix, positives = matrix_of(kind, 300, 1500), five_texts_an_image(300, 1500)
        lists = mined(
            encoded_from(matrix), positives, depth_texts=60, depth_images=8, block_size=40
        )
        assert_exact(lists, matrix, positives)
    for what in ("guess_floors", "raise_floors", "settle"):
        assert happened[what, 300] > 0, f"{what} of images"
        assert happened[what, 1500] > 0, f"{what} of texts"


@pytest.mark.parametrize("kind", TIED)
@pytest.mark.parametrize("block_size", [16, 37, 100])
def test_equal_scores_are_listed_by_rising_id_whatever_the_block(kind, block_size):
    matrix, positives = matrix_of(kind, 200, 1000), five_texts_an_image(200, 1000)
    lists = mined(
        encoded_from(matrix), positives, depth_texts=20, depth_images=8, block_size=block_size
    )
    assert_exact(lists, matrix, positives)


@pytest.mark.parametrize("kind", TIED)
def test_equal_scores_are_listed_by_rising_id_where_one_block_holds_all(kind):
    matrix, positives = matrix_of(kind, 40, 200), five_texts_an_image(40, 200)
    lists = mined(encoded_from(matrix), positives, depth_texts=9, depth_images=4)
    assert_exact(lists, matrix, positives)


def test_vectors_sorted_by_topic_are_mined_as_from_the_full_matrix():
    random = np.random.default_rng(3)
    centres = random.normal(size=(8, 16))
    images = np.repeat(centres, 25, axis=0) + 0.3 * random.normal(size=(200, 16))
    texts = np.repeat(centres, 200, axis=0) + 0.3 * random.normal(size=(1600, 16))
    encoded, positives = embedded(images, texts), five_texts_an_image(200, 1600)
    lists = mined(encoded, positives, depth_texts=15, depth_images=6, block_size=64)
    matrix = (encoded.images.vectors.double() @ encoded.texts.vectors.double().T).numpy()
    assert_close(lists, matrix, positives)


@pytest.mark.parametrize(("n_images", "n_texts"), [(2, 2), (2, 9), (9, 2), (5, 6)])
@pytest.mark.parametrize("block_size", [1, 2, 8, 10**9])
def test_tiny_sets_and_huge_blocks_are_mined_too(n_images, n_texts, block_size):
    matrix = matrix_of("without order", n_images, n_texts)
    positives = Positives.from_pairs([(0, 0), (1, 1)], n_images=n_images, n_texts=n_texts)
    lists = mined(encoded_from(matrix), positives, block_size=block_size)
    assert lists.i2t.shape == (n_images, n_texts - 1)
    assert lists.t2i.shape == (n_texts, n_images - 1)
    assert_exact(lists, matrix, positives)


def test_a_relation_without_pairs_leaves_everything_a_negative():
    matrix = matrix_of("without order", 30, 70)
    positives = Positives.from_pairs([], n_images=30, n_texts=70)
    lists = mined(encoded_from(matrix), positives, block_size=16)
    assert lists.i2t.shape == (30, 70)
    assert_exact(lists, matrix, positives)


def test_lists_say_how_they_were_made():
    matrix, positives = matrix_of("without order", 20, 100), five_texts_an_image(20, 100)
    whole = mine_in_processes(
        InnerProduct(),
        encoded_from(matrix),
        positives,
        config=MiningConfig(),
        provenance=Provenance(teacher="teacher", data="data"),
    )
    assert whole.lists.provenance == Provenance(teacher="teacher", data="data")
    assert whole.n_dropped == {}
    assert whole.n_excused == (0, 0)
    rough = mined(encoded_from(matrix), positives, precision="bfloat16")
    assert rough.provenance == replace(NOWHERE, precision="bfloat16")


# Threads


@pytest.mark.parametrize("count", [2, 3, 4])
def test_the_number_of_threads_changes_no_bit(count):
    random = np.random.default_rng(1)
    encoded = embedded(random.normal(size=(150, 24)), random.normal(size=(900, 24)))
    positives = five_texts_an_image(150, 900)
    settings = {"depth_texts": 10, "depth_images": 5, "block_size": 32}
    alone = mined(encoded, positives, **settings)
    for _ in range(3):
        with threads(count):
            lists = mined(encoded, positives, **settings)
        for name in ("i2t", "i2t_scores", "t2i", "t2i_scores"):
            np.testing.assert_array_equal(getattr(lists, name), getattr(alone, name))


@pytest.fixture
def ranked_again(monkeypatch):
    """How many anchors are ranked again, each time."""
    counts = []
    rank = ScoreMatrix.rank

    def spied(matrix, anchor_ids, **options):
        counts.append(len(anchor_ids))
        return rank(matrix, anchor_ids, **options)

    monkeypatch.setattr(ScoreMatrix, "rank", spied)
    return counts


def falling_vectors(*, width):
    """The first images and texts score highest, so that floors are too high."""
    random = np.random.default_rng(4)
    images = random.normal(size=(300, width)) * np.linspace(3, 1, 300)[:, None]
    texts = random.normal(size=(1500, width)) * np.geomspace(3, 1, 1500)[:, None]
    return embedded(images, texts), five_texts_an_image(300, 1500)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_anchors_that_are_ranked_again_get_the_same_bits_from_any_number_of_threads(
    ranked_again, precision
):
    """Vectors are so wide that torch would share a sum among threads."""
    encoded, positives = falling_vectors(width=2000)
    settings = {"depth_texts": 60, "depth_images": 8, "block_size": 40, "precision": precision}
    with threads(1):
        alone = mined(encoded, positives, **settings)
    assert len(ranked_again) == 2
    with threads(2):
        lists = mined(encoded, positives, **settings)
    assert ranked_again[2:] == ranked_again[:2]
    for name in ("i2t", "i2t_scores", "t2i", "t2i_scores"):
        np.testing.assert_array_equal(getattr(lists, name), getattr(alone, name))


class Failing(InnerProduct):
    """Scores a few blocks, then fails."""

    def __init__(self, error, *, after):
        self.error, self.left = error, after

    def score_matrix(self, images, texts):
        self.left -= 1
        if self.left < 0:
            raise self.error
        return super().score_matrix(images, texts)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("out of memory")])
def test_an_error_while_threads_run_ends_them_and_is_passed_on(error):
    positives = five_texts_an_image(40, 200)
    encoded = encoded_from(matrix_of("without order", 40, 200))
    before = threading.active_count()
    with threads(3):
        with pytest.raises(type(error)):
            mined(encoded, positives, block_size=8, scorer=Failing(error, after=30))
        assert torch.get_num_threads() == 3
    assert threading.active_count() == before


def test_an_interruption_of_the_one_who_waits_ends_the_threads(monkeypatch):
    positives = five_texts_an_image(40, 200)
    collect, calls = FullSweep._collect, 0

    def interrupted(sweep, task):
        nonlocal calls
        calls += 1
        if calls == 20:
            raise KeyboardInterrupt
        collect(sweep, task)

    monkeypatch.setattr(FullSweep, "_collect", interrupted)
    before = threading.active_count()
    with threads(2), pytest.raises(KeyboardInterrupt):
        mined(encoded_from(matrix_of("rising", 40, 200)), positives, block_size=8)
    assert threading.active_count() == before


def test_every_thread_computes_by_itself():
    with threads(3):
        with worker_threads("cpu") as workers:
            assert workers.count == 3
            assert workers.pool.submit(torch.get_num_threads).result() == 1
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 3
        with worker_threads("meta") as workers:
            assert workers.count == 1


def test_threads_read_a_few_arguments_ahead_and_answer_in_order():
    read = []

    def numbers():
        for number in range(50):
            read.append(number)
            yield number

    def slower_at_first(number, factor):
        threading.Event().wait(0.02 / (number + 1))
        return number * factor

    with threads(3), worker_threads() as workers:
        results = []
        for result in workers.map(slower_at_first, numbers(), [2] * 50):
            results.append(result)
            assert len(read) - len(results) <= workers.count
    assert results == list(range(0, 100, 2))


@pytest.mark.parametrize(("total", "count"), [(0, 5), (1, 5), (5, 5), (7, 1), (7, 0), (1000, 256)])
def test_what_is_evenly_spread_rises_in_equal_steps_from_the_first_to_the_last(total, count):
    ids = evenly_spread(total, count)
    assert len(ids) == min(total, count)
    assert set(np.diff(ids).tolist()) <= {
        (total - 1) // max(len(ids) - 1, 1) + more for more in (0, 1)
    }
    if len(ids) > 1:
        assert (ids[0], ids[-1]) == (0, total - 1)


# Scores that are not finite


def test_scores_that_are_not_finite_are_refused_with_the_anchor():
    matrix = matrix_of("without order", 30, 150)
    encoded = encoded_from(matrix)
    encoded.texts.vectors[77] = torch.nan
    with pytest.raises(UserError, match=r"anchor 77 gets scores that are not finite"):
        mined(encoded, five_texts_an_image(30, 150), depth_texts=5, depth_images=3, block_size=16)


class Looked:
    """A scorer that looks scores up by the numbers of images and texts."""

    def __init__(self, matrix):
        self.matrix = torch.from_numpy(matrix)

    def score_matrix(self, images, texts):
        rows, columns = images.vectors[:, 0].long(), texts.vectors[:, 0].long()
        return self.matrix[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]


# Precision


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_lower_precision_mines_what_rounded_vectors_give(precision):
    random = np.random.default_rng(2)
    encoded = embedded(random.normal(size=(60, 12)), random.normal(size=(300, 12)))
    positives = five_texts_an_image(60, 300)
    dtype = getattr(torch, precision)
    by_hand = embedded(
        encoded.images.vectors.to(dtype).float(), encoded.texts.vectors.to(dtype).float()
    )
    settings = {"depth_texts": 10, "depth_images": 5, "block_size": 32}
    lists = mined(encoded, positives, precision=precision, **settings)
    expected = mined(by_hand, positives, **settings)
    exact = mined(encoded, positives, **settings)
    for name in ("i2t", "i2t_scores", "t2i", "t2i_scores"):
        np.testing.assert_array_equal(getattr(lists, name), getattr(expected, name))
    assert (lists.i2t_scores != exact.i2t_scores).any()


class Switched(InnerProduct):
    """Notes whether tensor cores may be used."""

    def __init__(self):
        self.allowed = []

    def score_matrix(self, images, texts):
        self.allowed.append(torch.backends.cuda.matmul.allow_tf32)
        return super().score_matrix(images, texts)


@pytest.mark.parametrize(("precision", "allowed"), [("float32", False), ("bfloat16", True)])
def test_anchors_are_ranked_again_with_tensor_cores_if_the_sweep_used_them(
    ranked_again, precision, allowed
):
    encoded, positives = falling_vectors(width=24)
    scorer = Switched()
    settings = {"depth_texts": 60, "depth_images": 8, "block_size": 40, "precision": precision}
    mined(encoded, positives, scorer=scorer, **settings)
    assert ranked_again
    assert set(scorer.allowed) == {allowed}
    assert not torch.backends.cuda.matmul.allow_tf32


class Waiting:
    """A scorer that waits inside until it is let go."""

    def __init__(self):
        self.inside, self.go_on = threading.Event(), threading.Event()

    def score_matrix(self, images, texts):
        self.inside.set()
        assert self.go_on.wait(10)
        return torch.zeros(len(images), len(texts))


def test_threads_that_round_leave_the_switch_for_tensor_cores_as_it_was():
    rows = Encoding(torch.ones(2, 3))
    torch.backends.cuda.matmul.allow_tf32 = False
    scorers = [Waiting(), Waiting()]
    workers = [
        threading.Thread(target=Rounded(scorer, torch.float16).score_matrix, args=(rows, rows))
        for scorer in scorers
    ]
    try:
        for worker, scorer in zip(workers, scorers, strict=True):
            worker.start()
            assert scorer.inside.wait(10)
        for worker, scorer in zip(workers, scorers, strict=True):
            scorer.go_on.set()
            worker.join()
        assert not torch.backends.cuda.matmul.allow_tf32
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False


# Memory


def block_sizes_of(monkeypatch):
    """The block size of every sweep."""
    seen = []
    run = FullSweep.run

    def spied(sweep, **options):
        seen.append(sweep.block_size)
        return run(sweep, **options)

    monkeypatch.setattr(FullSweep, "run", spied)
    return seen


def test_a_smaller_budget_makes_smaller_blocks_and_the_same_lists(monkeypatch):
    seen = block_sizes_of(monkeypatch)
    matrix, positives = matrix_of("by topic", 200, 1000), five_texts_an_image(200, 1000)
    for memory in (None, "1GiB", "140MiB", "133MiB", "132500KiB"):
        lists = mined(
            encoded_from(matrix), positives, depth_texts=10, depth_images=5, memory=memory
        )
        assert_exact(lists, matrix, positives)
    assert seen[:2] == [1024, 1000]
    assert all(after < before for before, after in pairwise(seen))
    assert seen[-1] < 100


def test_more_threads_share_a_budget(monkeypatch):
    seen = block_sizes_of(monkeypatch)
    matrix, positives = matrix_of("without order", 200, 1000), five_texts_an_image(200, 1000)
    for count in (1, 2):
        with threads(count):
            mined(encoded_from(matrix), positives, depth_texts=10, memory="262MiB")
    assert seen[1] < seen[0]


def test_long_lists_are_part_of_a_budget(monkeypatch):
    seen = block_sizes_of(monkeypatch)
    matrix, positives = matrix_of("without order", 200, 1000), five_texts_an_image(200, 1000)
    for depth in (5, 300):
        mined(encoded_from(matrix), positives, depth_texts=depth, memory="137MiB")
    assert seen[1] < seen[0]


def test_rows_that_are_large_make_blocks_that_are_small(monkeypatch):
    seen = block_sizes_of(monkeypatch)
    positives = five_texts_an_image(4, 20)
    mined(embedded(torch.ones(4, 2**17), torch.ones(20, 2**17)), positives)
    assert seen == [128]


def test_a_budget_that_is_too_small_is_refused_with_one_that_is_not():
    matrix, positives = matrix_of("without order", 40, 200), five_texts_an_image(40, 200)
    with pytest.raises(UserError, match=r"10MiB is too small: .* at least 1GiB\."):
        mined(encoded_from(matrix), positives, memory="10MiB")


# What cannot be mined


def test_lists_end_where_the_set_does(capsys):
    matrix, positives = matrix_of("without order", 6, 30), five_texts_an_image(6, 30)
    lists = mined(encoded_from(matrix), positives, skip_first=2)
    assert lists.i2t.shape == (6, 23)
    assert lists.t2i.shape == (30, 3)
    said = capsys.readouterr().err
    assert "23 texts deep instead of 300" in said
    assert "3 images deep instead of 60" in said


def test_a_matrix_ranks_some_anchors_as_the_full_matrix_does():
    matrix, positives = matrix_of("few scores", 30, 90), five_texts_an_image(30, 90)
    anchors = np.array([3, 4, 60, 89])
    seen = ScoreMatrix.of(
        "t2i", scorer=InnerProduct(), encoded=encoded_from(matrix), positives=positives
    )
    lists = seen.rank(anchors, depth=7, block_size=8)
    expected = best_of_rows(negatives_of(matrix, positives).T[anchors], 7)
    np.testing.assert_array_equal(ids_of(lists.best(slice(0, 4))), expected)
