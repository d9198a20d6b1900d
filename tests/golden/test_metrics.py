"""Ranks and metrics against the published evaluation."""

from __future__ import annotations

from dataclasses import astuple

import numpy as np
import pytest
import torch

from aoq.evaluation.metrics import Metrics
from aoq.evaluation.ranks import ranks_of_matrix
from aoq.scoring.encoded import EncodedDataset
from aoq.scoring.inner_product import InnerProduct
from aoq.types import Encoding
from tests.evaluation.cases import ranks_in_blocks
from tests.golden.cases import in_order


def assert_published(ranks, arrays, tag):
    metrics = Metrics.from_ranks(ranks)
    for direction in ("i2t", "t2i"):
        expected = arrays.numpy(f"{tag}.{direction}.ranks").astype(int)
        np.testing.assert_array_equal(getattr(ranks, direction), expected)
        np.testing.assert_allclose(
            astuple(getattr(metrics, direction)), arrays.numpy(f"{tag}.{direction}.metrics")
        )


@pytest.mark.parametrize("tag", ["a", "b", "mean"])
def test_ranks_and_metrics_of_a_score_matrix_are_the_published_ones(golden, tag):
    arrays = golden("metrics")
    sims, sims2 = arrays.numpy("in.sims"), arrays.numpy("in.sims2")
    matrix = {"a": sims, "b": sims2, "mean": (sims + sims2) / 2}[tag]
    assert_published(ranks_of_matrix(matrix, in_order(*matrix.shape)), arrays, tag)


@pytest.mark.parametrize("block_size", [1, 7, 1000])
def test_ranks_of_embeddings_in_blocks_are_the_published_ones(golden, block_size):
    arrays = golden("metrics")
    repeated, captions = arrays["emb.images_repeated5"], arrays["emb.captions"]
    n_images = len(arrays.numpy("emb.i2t.ranks"))
    images = repeated[:: len(repeated) // n_images]
    encoded = EncodedDataset(Encoding(images), Encoding(captions))
    ranks = ranks_in_blocks(
        InnerProduct(), encoded, in_order(n_images, len(captions)), block_size=block_size
    )
    assert torch.is_tensor(images)
    assert_published(ranks, arrays, "emb")
