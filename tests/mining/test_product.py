"""Sweeps by rounded products: the same lists as in float32, whatever the vectors."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from aoq.config import MiningConfig
from aoq.mining import mine as mine_module
from aoq.mining import product as product_module
from aoq.mining.candidates import check_lists
from aoq.mining.mine import mine_in_processes
from aoq.mining.product import FLOAT32, ProductChoice, RoundedStripe, choose_product
from aoq.mining.score_matrix import ScoreMatrix
from aoq.mining.sweep_file import SweepFile
from aoq.scoring.approximation import FAST_PRODUCTS, Speeds
from aoq.scoring.inner_product import InnerProduct
from tests.kills import KilledError
from tests.mining.cases import (
    NOWHERE,
    assert_close,
    embedded,
    five_texts_an_image,
    threads,
)
from tests.mining.processes import run_in_threads
from tests.scoring.test_approximation import KINDS, vectors_of

SIZES = 150, 700


def mined(encoded, positives, *, product, n_processes=1, **options):
    config = MiningConfig(depth_texts=40, depth_images=12, product=product)

    def work(processes):
        return mine_in_processes(
            InnerProduct(),
            encoded,
            positives,
            config=config,
            provenance=NOWHERE,
            processes=processes,
            **{"block_size": 64, **options},
        )

    return run_in_threads(n_processes, work)[0]


def full_matrix(encoded):
    return (encoded.images.vectors.double() @ encoded.texts.vectors.double().T).numpy()


@pytest.mark.parametrize("product", FAST_PRODUCTS)
@pytest.mark.parametrize("kind", KINDS)
def test_lists_are_the_top_of_the_full_matrix_however_rounding_treats_the_vectors(kind, product):
    encoded = embedded(vectors_of("random", SIZES[0], seed=0), vectors_of(kind, SIZES[1], seed=1))
    positives = five_texts_an_image(*SIZES)
    result = mined(encoded, positives, product=product)
    matrix = full_matrix(encoded)
    assert result.product.product == product
    if kind == "random":  # others admit so much that float32 takes over
        assert result.product.n_pairs == SIZES[0] * SIZES[1]
    assert 0 < result.product.n_scored <= result.product.n_pairs
    assert_close(result.lists, matrix, positives, tolerance=1e-5 * max(1, abs(matrix).max()))
    check_lists(result.lists.i2t, positives, source="i2t")
    check_lists(result.lists.t2i, positives.swapped, source="t2i")


@pytest.mark.parametrize("product", FAST_PRODUCTS)
@settings(deadline=None, max_examples=20)
@given(data=st.data())
def test_blocks_threads_and_processes_do_not_show_in_the_lists(product, data):
    random = np.random.default_rng(data.draw(st.integers(0, 10**6)))
    sizes = data.draw(st.integers(60, 150)), data.draw(st.integers(300, 700))
    centres = random.normal(size=(data.draw(st.integers(1, 8)), 24))

    def near(count):
        return centres[np.arange(count) * len(centres) // count] + 0.5 * random.normal(
            size=(count, 24)
        )

    encoded, positives = embedded(near(sizes[0]), near(sizes[1])), five_texts_an_image(*sizes)
    with threads(data.draw(st.integers(1, 3))):
        result = mined(
            encoded,
            positives,
            product=product,
            block_size=data.draw(st.integers(8, 200)),
            n_processes=data.draw(st.integers(1, 3)),
        )
    assert_close(result.lists, full_matrix(encoded), positives, tolerance=1e-4)


@pytest.mark.parametrize("product", FAST_PRODUCTS)
def test_equal_texts_are_listed_by_rising_id(product):
    some = np.random.default_rng(0).normal(size=(100, 24)).astype(np.float32)
    texts = np.repeat(some[:60], 10, axis=0)
    positives = five_texts_an_image(100, 600)
    lists = mined(embedded(some, texts), positives, product=product).lists
    tied = np.diff(lists.i2t_scores) == 0
    assert tied.mean() > 0.7
    assert (np.diff(lists.i2t)[tied] > 0).all()


@pytest.mark.parametrize("kind", ["random", "near duplicates", "equal"])
def test_where_too_many_pairs_are_admitted_a_block_is_multiplied_in_float32(kind, monkeypatch):
    monkeypatch.setattr(
        mine_module, "choose_product", lambda *_, **__: ProductChoice("bfloat16", most=0.2)
    )
    encoded = embedded(vectors_of("random", SIZES[0], seed=0), vectors_of(kind, SIZES[1], seed=1))
    positives = five_texts_an_image(*SIZES)
    result = mined(encoded, positives, product="auto")
    assert_close(result.lists, full_matrix(encoded), positives)
    if kind != "random":  # two blocks of a stripe, and those that were under way
        assert result.product.n_pairs < SIZES[0] * SIZES[1]
        assert result.product.n_scored == result.product.n_pairs


def test_a_sweep_that_is_killed_ends_bit_by_bit_the_same(tmp_path, monkeypatch):
    encoded = embedded(vectors_of("random", SIZES[0], seed=0), vectors_of("random", 700, seed=1))
    positives = five_texts_an_image(*SIZES)
    monkeypatch.setattr(SweepFile, "is_due", lambda saved: True)
    whole = mined(encoded, positives, product="bfloat16", saved=tmp_path / "whole")
    real = RoundedStripe.block
    for lifetime in (3, 17, 25):
        blocks = iter(range(lifetime))

        def mortal(stripe, *arguments, blocks=blocks):
            if next(blocks, None) is None:
                raise KilledError
            return real(stripe, *arguments)

        monkeypatch.setattr(RoundedStripe, "block", mortal)
        with suppress(KilledError):
            mined(encoded, positives, product="bfloat16", saved=tmp_path / "saved")
    monkeypatch.setattr(RoundedStripe, "block", real)
    again = mined(encoded, positives, product="bfloat16", saved=tmp_path / "saved")
    assert whole.product == again.product
    for name in ("i2t", "i2t_scores", "t2i", "t2i_scores"):
        assert getattr(whole.lists, name).tobytes() == getattr(again.lists, name).tobytes()


def test_a_sweep_that_continues_keeps_its_product(tmp_path):
    choice = ProductChoice("int8", most=0.125)
    choice.keep(tmp_path / "kept.json", key="this sweep")
    assert ProductChoice.kept(tmp_path / "kept.json", key="this sweep") == choice
    assert ProductChoice.kept(tmp_path / "kept.json", key="another") is None
    (tmp_path / "kept.json").write_text("{")
    assert ProductChoice.kept(tmp_path / "kept.json", key="this sweep") is None


def chosen(speeds, *, vectors, monkeypatch, wanted="auto"):
    monkeypatch.setattr(product_module, "WORTH_MEASURING", 0)
    monkeypatch.setattr(product_module, "machine_speeds", lambda *_: speeds)
    matrix = ScoreMatrix.of(
        "i2t",
        scorer=InnerProduct(),
        encoded=embedded(vectors, vectors),
        positives=five_texts_an_image(len(vectors), len(vectors)),
    )
    images = slice(0, len(vectors))
    return choose_product(wanted, matrix, images, depth_texts=20, depth_images=20)


def test_the_fastest_product_is_chosen_and_float32_where_rounding_does_not_pay(monkeypatch):
    some = vectors_of("random", 1000, seed=0)
    fast = Speeds(float32=1e-8, single=5e-8, fast={"bfloat16": 1e-9, "int8": 2e-9})
    choice = chosen(fast, vectors=some, monkeypatch=monkeypatch)
    assert choice.product == "bfloat16"
    assert 0.1 < choice.most < 0.2  # 9 of 50: what is left of float32's time
    slow = Speeds(float32=1e-8, single=5e-8, fast={"bfloat16": 1.2e-8})
    assert chosen(slow, vectors=some, monkeypatch=monkeypatch) == FLOAT32
    none = Speeds(float32=1e-8, single=5e-8, fast={})
    assert chosen(none, vectors=some, monkeypatch=monkeypatch) == FLOAT32
    equal = vectors_of("equal", 1000, seed=0)
    assert chosen(fast, vectors=equal, monkeypatch=monkeypatch) == FLOAT32
    asked = chosen(slow, vectors=some, monkeypatch=monkeypatch, wanted="int8")
    assert asked.product == "int8"


def test_products_in_float32_are_said_to_be():
    encoded = embedded(vectors_of("random", 60, seed=0), vectors_of("random", 300, seed=1))
    result = mined(encoded, five_texts_an_image(60, 300), product="auto")
    assert result.product.product == "float32"
    assert result.product.sentence == "all scores were computed in float32"
    fast = mined(encoded, five_texts_an_image(60, 300), product="int8")
    assert "int8" in fast.product.sentence
    torch.testing.assert_close(
        torch.from_numpy(fast.lists.i2t_scores), torch.from_numpy(result.lists.i2t_scores)
    )
