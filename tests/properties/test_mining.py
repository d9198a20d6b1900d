"""Mining against the full matrix, for any block, budget, threads, processes and interruption."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

from aoq.config import MiningConfig
from aoq.errors import UserError
from aoq.mining.candidates import Provenance, check_lists
from aoq.mining.mine import mine, mine_in_processes
from aoq.mining.sweep_file import SweepFile
from aoq.scoring.encoded import EncodedDataset
from aoq.scoring.inner_product import InnerProduct
from aoq.types import Encoding, Positives
from tests.kills import KilledError
from tests.mining.cases import (
    DISTINCT,
    TIED,
    assert_close,
    assert_exact,
    encoded_from,
    matrix_of,
    threads,
)
from tests.mining.processes import run_in_threads
from tests.properties.cases import cases, minable

NOWHERE = Provenance(teacher="", data="")
# Large sets are not made smaller where one fails: that would take minutes.
LARGE_SETS = settings(
    deadline=None,
    max_examples=15,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow],
)


@dataclass(frozen=True)
class Plan:
    """How a set is mined; none of it may show in the lists."""

    block_size: int | None
    memory: str | None
    n_threads: int
    n_processes: int

    def mined(self, encoded, positives, *, depth_texts, depth_images):
        config = MiningConfig(
            depth_texts=depth_texts, depth_images=depth_images, memory=self.memory
        )

        def work(processes):
            return mine_in_processes(
                InnerProduct(),
                encoded,
                positives,
                config=config,
                provenance=NOWHERE,
                block_size=self.block_size,
                processes=processes,
            )

        with threads(self.n_threads):
            return run_in_threads(self.n_processes, work)[0].lists


@st.composite
def plans(draw, *, smallest_block=8):
    by_budget = draw(st.booleans())
    return Plan(
        block_size=None if by_budget else draw(st.integers(smallest_block, 200)),
        memory=draw(st.sampled_from([None, "1GiB", "540MiB"])) if by_budget else None,
        n_threads=draw(st.integers(1, 4)),
        n_processes=draw(st.integers(1, 5)),
    )


@st.composite
def relations(draw):
    """Uneven, and large enough that floors are guessed; some images have no text, some share."""
    n_images, n_texts = draw(st.integers(60, 150)), draw(st.integers(300, 800))
    random = np.random.default_rng(draw(st.integers(0, 10**6)))
    pairs = np.stack([random.integers(n_images, size=n_texts), np.arange(n_texts)], axis=1)
    more = random.integers([n_images, n_texts], size=(n_texts // 10, 2))
    pairs = np.concatenate([pairs, more])
    return Positives.from_pairs(pairs, n_images=n_images, n_texts=n_texts)


@pytest.mark.parametrize("kind", [*DISTINCT, *TIED])
@LARGE_SETS
@given(data=st.data())
def test_lists_are_the_top_of_the_full_matrix_however_they_are_mined(kind, data):
    positives, plan = data.draw(relations()), data.draw(plans())
    matrix = matrix_of(kind, positives.n_images, positives.n_texts)
    depth_texts, depth_images = data.draw(st.integers(5, 60)), data.draw(st.integers(5, 20))
    lists = plan.mined(
        encoded_from(matrix), positives, depth_texts=depth_texts, depth_images=depth_images
    )
    assert (lists.depth_texts, lists.depth_images) == (depth_texts, depth_images)
    assert_exact(lists, matrix, positives)
    check_lists(lists.i2t, positives, source="i2t")
    check_lists(lists.t2i, positives.swapped, source="t2i")


@settings(deadline=None)
@given(cases(), plans(smallest_block=1), st.integers(1, 30), st.integers(1, 12))
def test_small_sets_are_mined_like_large_ones(case, plan, depth_texts, depth_images):
    encoded, positives = case
    assume(minable(positives))
    lists = plan.mined(encoded, positives, depth_texts=depth_texts, depth_images=depth_images)
    matrix = (encoded.images.vectors.double() @ encoded.texts.vectors.double().T).numpy()
    assert_close(lists, matrix, positives)
    check_lists(lists.i2t, positives, source="i2t")
    check_lists(lists.t2i, positives.swapped, source="t2i")


@st.composite
def topics(draw):
    """Vectors in clusters, one topic after the other, or not in order."""
    positives = draw(relations())
    random = np.random.default_rng(draw(st.integers(0, 10**6)))
    centres = random.normal(size=(draw(st.integers(1, 8)), 12))

    def vectors(number):
        near = centres[np.arange(number) * len(centres) // number]
        return near + 0.5 * random.normal(size=(number, 12))

    return positives, vectors(positives.n_images), vectors(positives.n_texts)


@LARGE_SETS
@given(topics(), plans(), st.integers(1, 60), st.integers(1, 20))
def test_vectors_in_clusters_are_mined_as_from_the_full_matrix(
    case, plan, depth_texts, depth_images
):
    positives, images, texts = case
    encoded = EncodedDataset(
        Encoding(torch.tensor(images, dtype=torch.float32)),
        Encoding(torch.tensor(texts, dtype=torch.float32)),
    )
    lists = plan.mined(encoded, positives, depth_texts=depth_texts, depth_images=depth_images)
    matrix = (encoded.images.vectors.double() @ encoded.texts.vectors.double().T).numpy()
    assert_close(lists, matrix, positives)


class Mortal(InnerProduct):
    """Dies after so many blocks."""

    def __init__(self, lifetime):
        self.blocks, self.lifetime = count(), lifetime

    def score_matrix(self, images, texts):
        if next(self.blocks) >= self.lifetime:
            raise KilledError
        return super().score_matrix(images, texts)


@LARGE_SETS
@given(
    topics(),
    st.integers(8, 100),
    st.integers(1, 4),
    st.lists(st.integers(0, 200), min_size=1, max_size=4),
)
def test_mining_that_dies_at_any_block_and_goes_on_ends_bit_by_bit_the_same(
    case, block_size, n_threads, lifetimes
):
    positives, images, texts = case
    encoded = EncodedDataset(
        Encoding(torch.tensor(images, dtype=torch.float32)),
        Encoding(torch.tensor(texts, dtype=torch.float32)),
    )

    def mined(scorer, saved):
        return mine_in_processes(
            scorer,
            encoded,
            positives,
            config=MiningConfig(depth_texts=40, depth_images=10),
            provenance=NOWHERE,
            block_size=block_size,
            saved=saved,
        ).lists

    with (
        TemporaryDirectory() as folder,
        pytest.MonkeyPatch.context() as patch,
        threads(n_threads),
    ):
        patch.setattr(SweepFile, "is_due", lambda saved: True)
        whole = mined(InnerProduct(), Path(folder) / "whole")
        for lifetime in lifetimes:
            with suppress(KilledError):
                mined(Mortal(lifetime), Path(folder) / "saved")
        again = mined(InnerProduct(), Path(folder) / "saved")
    for name in ("i2t", "i2t_scores", "t2i", "t2i_scores"):
        assert getattr(whole, name).tobytes() == getattr(again, name).tobytes()


@settings(deadline=None)
@given(cases())
def test_swapping_modalities_swaps_the_lists(case):
    encoded, positives = case
    assume(minable(positives))
    swapped = EncodedDataset(encoded.texts, encoded.images)
    lists = mine(
        InnerProduct(),
        encoded,
        positives,
        config=MiningConfig(depth_texts=4, depth_images=2),
        provenance=NOWHERE,
    )
    other = mine(
        InnerProduct(),
        swapped,
        positives.swapped,
        config=MiningConfig(depth_texts=2, depth_images=4),
        provenance=NOWHERE,
    )
    np.testing.assert_allclose(lists.i2t_scores, other.t2i_scores, atol=1e-6)
    np.testing.assert_allclose(lists.t2i_scores, other.i2t_scores, atol=1e-6)


def test_mining_is_refused_where_no_negative_is_left():
    positives = Positives.from_pairs([(0, 0), (0, 1)], n_images=1, n_texts=2)
    encoded = EncodedDataset(Encoding(torch.ones(1, 3)), Encoding(torch.ones(2, 3)))
    with pytest.raises(UserError, match="no texts are left"):
        mine(InnerProduct(), encoded, positives, config=MiningConfig(), provenance=NOWHERE)
