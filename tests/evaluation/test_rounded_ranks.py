"""Ranks by rounded products: those of float32, whatever rounding does to the vectors."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aoq.evaluation import ranks as ranks_module
from aoq.evaluation.ranks import pair_ranks_in_blocks
from aoq.scoring.approximation import FAST_PRODUCTS, Speeds
from aoq.scoring.inner_product import InnerProduct
from aoq.types import Positives
from tests.mining.cases import embedded, five_texts_an_image
from tests.scoring.test_approximation import KINDS, vectors_of


def assert_same(encoded, positives, product, **options):
    def ranked(product):
        return pair_ranks_in_blocks(InnerProduct(), encoded, positives, product=product, **options)

    ours, expected = ranked(product), ranked("float32")
    np.testing.assert_array_equal(ours.images, expected.images)
    np.testing.assert_array_equal(ours.texts, expected.texts)


@pytest.mark.parametrize("product", FAST_PRODUCTS)
@pytest.mark.parametrize("kind", KINDS)
def test_ranks_are_those_of_float32(kind, product):
    texts = vectors_of(kind, 300, seed=1)
    images = texts[::5] + vectors_of("random", 60, seed=0)  # nearer to their own
    assert_same(embedded(images, texts), five_texts_an_image(60, 300), product, block_size=50)


@pytest.mark.parametrize("product", FAST_PRODUCTS)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_vector_that_is_not_finite_changes_no_other_rank(value, product):
    texts = vectors_of("random", 300, seed=1)
    images = texts[::5] + vectors_of("random", 60, seed=0)
    texts[7, 3] = value
    assert_same(embedded(images, texts), five_texts_an_image(60, 300), product, block_size=50)


@pytest.mark.parametrize("product", FAST_PRODUCTS)
@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10**6), st.integers(1, 60), st.booleans())
def test_ranks_of_any_relation_are_those_of_float32(product, seed, block_size, ties):
    random = np.random.default_rng(seed)
    n_images, n_texts = random.integers(2, 40, size=2)
    pairs = random.integers([n_images, n_texts], size=(60, 2))
    positives = Positives.from_pairs(np.unique(pairs, axis=0), n_images=n_images, n_texts=n_texts)
    images, texts = random.normal(size=(n_images, 24)), random.normal(size=(n_texts, 24))
    if ties:
        texts[: n_texts // 2] = texts[0]
    assert_same(embedded(images, texts), positives, product, block_size=block_size)


def test_a_fast_product_is_used_where_it_is_much_faster(monkeypatch):
    encoded = embedded(vectors_of("random", 50, seed=0), vectors_of("random", 80, seed=1))
    speeds = Speeds(float32=1e-8, single=5e-8, fast={"int8": 2e-9, "bfloat16": 1e-9})
    monkeypatch.setattr(ranks_module, "machine_speeds", lambda *_: speeds)

    def chosen(wanted="auto"):
        return ranks_module._fast_product(InnerProduct(), encoded, wanted)

    assert chosen() is None  # small
    monkeypatch.setattr(ranks_module, "WORTH_MEASURING", 0)
    assert chosen() == "bfloat16"
    assert chosen("float32") is None
    monkeypatch.setattr(ranks_module, "machine_speeds", lambda *_: Speeds(1e-8, 5e-8, {}))
    assert chosen() is None
