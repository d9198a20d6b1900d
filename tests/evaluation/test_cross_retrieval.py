"""The cross-retrieval rank against the paper's formula and plain loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from aoq.evaluation.cross_retrieval import LAST_RANKS, CrossRetrieval, cross_retrieval_ranks
from aoq.evaluation.protocols import JudgedFold
from aoq.evaluation.ranks import PairRanks, pair_ranks_in_blocks, ranks_of_matrix
from aoq.scoring.encoded import EncodedDataset
from aoq.scoring.inner_product import InnerProduct
from aoq.types import Encoding
from tests.evaluation.cases import (
    encode,
    in_order,
    judged,
    looped_pair_ranks,
    matrix_of,
    uneven,
)


@pytest.mark.parametrize("positives", [in_order(9), in_order(8, 2), uneven(9), uneven(7, 3)])
@pytest.mark.parametrize("block_size", [1, 4, 100])
def test_the_ranks_of_pairs_are_those_of_plain_loops(positives, block_size):
    encoded = encode(positives)
    ranks = pair_ranks_in_blocks(InnerProduct(), encoded, positives, block_size=block_size)
    expected = np.array(looped_pair_ranks(matrix_of(encoded), positives))
    np.testing.assert_array_equal(ranks.images + 1, expected[:, 0])
    np.testing.assert_array_equal(ranks.texts + 1, expected[:, 1])
    best, whole = ranks.best(positives), ranks_of_matrix(matrix_of(encoded), positives)
    np.testing.assert_array_equal(best.i2t, whole.i2t)
    np.testing.assert_array_equal(best.t2i, whole.t2i)


def test_several_threads_count_the_same():
    positives = uneven(40)
    encoded = encode(positives)
    alone = pair_ranks_in_blocks(InnerProduct(), encoded, positives, block_size=7)
    torch.set_num_threads(3)
    try:
        together = pair_ranks_in_blocks(InnerProduct(), encoded, positives, block_size=7)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(1)
    np.testing.assert_array_equal(together.images, alone.images)
    np.testing.assert_array_equal(together.texts, alone.texts)


@pytest.mark.parametrize("texts_per_image", [1, 2, 5, 7])
def test_with_k_texts_an_image_it_is_the_formula_of_the_paper_with_k_for_5(texts_per_image):
    positives = in_order(11, texts_per_image)
    encoded = encode(positives, noise=2.0)
    fold = JudgedFold(positives, pair_ranks_in_blocks(InnerProduct(), encoded, positives))
    expected = [
        max(texts_per_image * (image - 1) + 1, text)  # for 5: max(5 r_i - 4, r_t)
        for image, text in looped_pair_ranks(matrix_of(encoded), positives)
    ]
    assert len(set(expected)) > 3
    assert CrossRetrieval.of([fold]).ranks.tolist() == expected


def test_the_worst_rank_from_either_side_counts_alike():
    positives = uneven(10, 2)
    images, texts = positives.pairs.T
    worst_image = positives.n_images - positives.swapped.texts_per_image()[texts]
    worst_text = positives.n_texts - positives.texts_per_image()[images]
    none = np.zeros_like(worst_image)
    by_image = cross_retrieval_ranks(PairRanks(images=worst_image, texts=none), positives)
    by_text = cross_retrieval_ranks(PairRanks(images=none, texts=worst_text), positives)
    np.testing.assert_allclose(by_image, by_text)
    assert (by_text == worst_text + 1).all()
    assert (cross_retrieval_ranks(PairRanks(images=none, texts=none), positives) == 1).all()


def test_a_collapsed_model_has_the_worst_rank_for_every_pair():
    positives, same = in_order(6), torch.full((30, 4), 0.3)
    encoded = EncodedDataset(Encoding(same[:6]), Encoding(same))
    fold = JudgedFold(positives, pair_ranks_in_blocks(InnerProduct(), encoded, positives))
    assert (CrossRetrieval.of([fold]).ranks == 5 * 6 - 4).all()


def test_the_histogram_counts_every_pair_once():
    ranks = CrossRetrieval(np.array([1, 1.5, 2, 5, 6, 200, 200.5, 9000]))
    assert {part.name: part.count for part in ranks.histogram()} == {
        "1": 1,
        "2-5": 3,
        "6-10": 1,
        "11-20": 0,
        "21-50": 0,
        "51-100": 0,
        "101-200": 1,
        ">200": 2,
    }
    assert sum(part.share for part in ranks.histogram()) == pytest.approx(100)
    assert [part.last for part in ranks.histogram()] == [*LAST_RANKS, np.inf]
    assert [part.name for part in ranks.histogram([1, 2, 10])] == ["1", "2", "3-10", ">10"]


def test_pairs_of_folds_are_counted_together():
    folds = [judged(in_order(5)), judged(in_order(4), seed=1)]
    both = CrossRetrieval.of(folds)
    assert len(both.ranks) == 45
    assert both.ranks[25:].tolist() == CrossRetrieval.of(folds[1:]).ranks.tolist()
