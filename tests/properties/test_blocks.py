"""Ranking in blocks against the full matrix, for any sizes and any relation."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from aoq.evaluation.metrics import DirectionMetrics
from aoq.evaluation.ranks import ranks_of_matrix
from aoq.scoring.encoded import EncodedDataset
from aoq.scoring.inner_product import InnerProduct
from aoq.types import Encoding, Positives
from tests.evaluation.cases import ranks_in_blocks
from tests.properties.cases import cases


@settings(deadline=None)
@given(cases())
def test_swapping_modalities_swaps_the_ranks(case):
    encoded, positives = case
    swapped = EncodedDataset(encoded.texts, encoded.images)
    ranks = ranks_in_blocks(InnerProduct(), encoded, positives)
    other = ranks_in_blocks(InnerProduct(), swapped, positives.swapped)
    np.testing.assert_array_equal(ranks.i2t, other.t2i)
    np.testing.assert_array_equal(ranks.t2i, other.i2t)


@settings(deadline=None)
@given(cases(), st.integers(1, 30))
def test_block_size_never_changes_a_rank(case, block_size):
    encoded, positives = case
    blocks = ranks_in_blocks(InnerProduct(), encoded, positives, block_size=block_size)
    matrix = (encoded.images.vectors.double() @ encoded.texts.vectors.double().T).numpy()
    whole = ranks_of_matrix(matrix.round(9), positives)
    np.testing.assert_array_equal(blocks.i2t, whole.i2t)
    np.testing.assert_array_equal(blocks.t2i, whole.t2i)


@settings(deadline=None)
@given(cases(), st.randoms())
def test_the_order_of_the_images_never_changes_a_rank(case, random):
    encoded, positives = case
    order = list(range(positives.n_images))
    random.shuffle(order)
    shuffled = EncodedDataset(encoded.images[torch.tensor(order)], encoded.texts)
    place = np.argsort(order)
    pairs = np.stack([place[positives.pairs[:, 0]], positives.pairs[:, 1]], axis=1)
    relation = Positives.from_pairs(pairs, n_images=positives.n_images, n_texts=positives.n_texts)
    before = ranks_in_blocks(InnerProduct(), encoded, positives)
    after = ranks_in_blocks(InnerProduct(), shuffled, relation)
    np.testing.assert_array_equal(before.i2t[order], after.i2t)
    np.testing.assert_array_equal(before.t2i, after.t2i)


def test_a_model_that_scores_everything_alike_gets_the_worst_rank():
    texts = np.arange(20)
    positives = Positives.from_pairs(np.stack([texts // 5, texts], axis=1), n_images=4, n_texts=20)
    same = torch.full((20, 7), 0.3)
    ranks = ranks_in_blocks(
        InnerProduct(), EncodedDataset(Encoding(same[:4]), Encoding(same)), positives, block_size=3
    )
    assert (ranks.i2t == 15).all()
    assert (ranks.t2i == 3).all()


@given(st.lists(st.integers(0, 50), min_size=1))
def test_recall_grows_with_k(ranks):
    metrics = DirectionMetrics.from_ranks(np.array(ranks))
    assert 0 <= metrics.r1 <= metrics.r5 <= metrics.r10 <= 100
    assert metrics.mean_rank >= 1
