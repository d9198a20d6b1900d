"""Rounded products: no pair is further from its float32 score than the bound says."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from aoq.scoring.approximation import (
    FAST_PRODUCTS,
    RoundedRows,
    approximable,
    highest_products,
    lowest_products,
    machine_speeds,
    measure_speeds,
    score_pairs,
)
from aoq.scoring.encoded import EncodedDataset
from aoq.scoring.inner_product import InnerProduct
from aoq.types import Encoding
from tests.mining.cases import embedded

WIDTH = 24
AWKWARD = st.one_of(
    st.floats(-2, 2, width=32),
    st.sampled_from([0.0, -0.0, 1e-40, -1e-30, 1e4, -1e4, 1e-20, 0.33333334, 1.0]),
)


def vectors(count):
    return arrays.arrays(np.float32, (count, WIDTH), elements=AWKWARD)


def vectors_of(kind, count, *, seed):
    """Vectors that rounding treats badly."""
    random = np.random.default_rng(seed)
    noise = random.normal(size=(count, WIDTH))
    one = random.normal(size=WIDTH)
    made = {
        "random": noise,
        "near duplicates": one + 1e-4 * noise,
        "equal": np.tile(one, (count, 1)),
        "one huge coordinate": noise + 1e6 * np.eye(WIDTH)[0],
        "denormal": noise * 1e-41,
        "of all lengths": noise * 10.0 ** random.integers(-12, 12, size=(count, 1)),
        "zero": noise * 0,
    }
    return made[kind].astype(np.float32)


KINDS = (
    "random",
    "near duplicates",
    "equal",
    "one huge coordinate",
    "denormal",
    "of all lengths",
    "zero",
)


def assert_bounded(images, texts, kind):
    """Where an approximate score is below the lowest, the float32 score is below the floor."""
    rows, columns = (RoundedRows.of(torch.from_numpy(part), kind) for part in (images, texts))
    approximate = rows.scores(columns, rows.products(columns), slice(None))
    exact = images.astype(np.float64) @ texts.T.astype(np.float64)
    everything = np.indices(exact.shape, dtype=np.int32).reshape(2, -1)
    single = score_pairs(images, texts, *map(np.ascontiguousarray, everything))
    product = torch.from_numpy(images) @ torch.from_numpy(texts).T
    for scores in (exact, single.reshape(exact.shape), product.numpy()):
        for floors in (scores.min(axis=1), scores.max(axis=1), np.zeros(len(scores))):
            lowest = lowest_products(kind, floors, rows.errors(columns))[:, None]
            assert not ((approximate < lowest) & (scores >= floors[:, None])).any()
            highest = highest_products(kind, floors, rows.errors(columns))[:, None]
            assert not ((approximate >= highest) & (scores < floors[:, None])).any()
        for floors in (scores.min(axis=0), scores.max(axis=0)):
            lowest = lowest_products(kind, floors, columns.errors(rows))
            assert not ((approximate < lowest) & (scores >= floors)).any()


@pytest.mark.parametrize("kind", FAST_PRODUCTS)
@settings(deadline=None, max_examples=60)
@given(vectors(5), vectors(7))
def test_no_score_is_beyond_the_bound(kind, images, texts):
    assert_bounded(images, texts, kind)


@pytest.mark.parametrize("kind", FAST_PRODUCTS)
@pytest.mark.parametrize("images", KINDS)
@pytest.mark.parametrize("texts", KINDS)
def test_no_score_of_awkward_vectors_is_beyond_the_bound(kind, images, texts):
    assert_bounded(vectors_of(images, 40, seed=0), vectors_of(texts, 50, seed=1), kind)


@pytest.mark.parametrize("kind", FAST_PRODUCTS)
def test_the_bound_of_unit_vectors_is_small(kind):
    some = torch.nn.functional.normalize(torch.randn(64, 512), dim=1)
    rounded = RoundedRows.of(some, kind)
    assert rounded.errors(rounded).max() < {"bfloat16": 0.005, "int8": 0.025}[kind]


def test_int8_products_are_exact_on_processors_without_vnni():
    """They add two products in int16, which overflows where codes reach 127."""
    program = """if True:
        import torch
        from aoq.scoring.approximation import RoundedRows

        rows = RoundedRows.of(torch.ones(70, 64), "int8")
        codes = rows.codes.long()
        assert (rows.products(rows) == (codes @ codes.T).numpy()).all()
    """
    oldest = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"}
    subprocess.run([sys.executable, "-c", program], env=oldest, check=True)


def test_what_is_not_finite_is_never_ruled_out():
    some = np.ones((3, WIDTH), np.float32)
    some[1, 0], some[2, 0] = np.inf, np.nan
    for kind in FAST_PRODUCTS:
        rows = RoundedRows.of(torch.from_numpy(some), kind)
        lowest = lowest_products(kind, np.zeros(3), rows.errors(rows))
        approximate = rows.scores(rows, rows.products(rows), slice(None))
        assert not (approximate < lowest[:, None])[:, 1:].any()


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 10**6))
def test_pairs_are_scored_alike_whatever_is_scored_with_them(n_images, n_texts, seed):
    random = np.random.default_rng(seed)
    images = random.normal(size=(n_images, WIDTH)).astype(np.float32)
    texts = np.repeat(random.normal(size=(n_texts, WIDTH)).astype(np.float32), 2, axis=0)
    rows, columns = np.indices((n_images, 2 * n_texts), dtype=np.int32).reshape(2, -1)
    every = score_pairs(images, texts, rows, columns)
    some = np.sort(random.choice(len(rows), size=random.integers(1, len(rows)), replace=False))
    assert every[some].tolist() == score_pairs(images, texts, rows[some], columns[some]).tolist()
    expected = (images.astype(np.float64) @ texts.T.astype(np.float64))[rows, columns]
    np.testing.assert_allclose(every, expected, atol=1e-5)
    assert every[::2].tolist() == every[1::2].tolist()  # equal texts


def test_only_inner_products_of_single_vectors_are_approximable():
    class Own(InnerProduct):
        def score_matrix(self, images, texts):
            return 2 * super().score_matrix(images, texts)

    plain = embedded(np.ones((2, 3)), np.ones((4, 3)))
    words = EncodedDataset(plain.images, Encoding(torch.ones(4, 2, 3)))
    double = EncodedDataset(plain.images, Encoding(torch.ones(4, 3).double()))
    assert approximable(InnerProduct(), plain)
    assert not approximable(Own(), plain)
    assert not approximable(InnerProduct(), words)
    assert not approximable(InnerProduct(), double)


def test_speeds_are_those_of_this_machine():
    some = torch.randn(128, 64)
    speeds = measure_speeds(some, some, FAST_PRODUCTS)
    assert speeds.float32 > 0
    assert speeds.single > speeds.float32
    assert set(speeds.fast) <= set(FAST_PRODUCTS)
    assert all(seconds > 0 for seconds in speeds.fast.values())


def test_speeds_are_measured_once_a_machine_and_width(tmp_path, monkeypatch):
    monkeypatch.setenv("AOQ_CACHE", str(tmp_path))
    some, wide = torch.randn(128, 64), torch.randn(128, 96)
    first = machine_speeds(some, some)
    assert machine_speeds(some, some) == first  # times are never equal by chance
    assert machine_speeds(wide, wide) != first
    for file in tmp_path.rglob("*.json"):
        file.write_text("{")
    assert machine_speeds(some, some) != first
