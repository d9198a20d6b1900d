"""Ranks on disk: found again by the same model and data, by nothing else, and never half."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from aoq.evaluation.kept_ranks import keep_ranks, kept_ranks
from aoq.evaluation.protocols import JudgedFold
from aoq.evaluation.ranks import PairRanks
from tests.conftest import uneven_dataset


def ranked(dataset):
    images, texts = np.random.default_rng(0).integers(9, size=(2, len(dataset.positives.pairs)))
    return JudgedFold(dataset.positives, PairRanks(images=images, texts=texts))


def test_kept_ranks_give_the_same_figures(tmp_path):
    dataset = uneven_dataset()
    fold = ranked(dataset)
    keep_ranks(tmp_path, fold, model="abc", dataset=dataset)
    found = kept_ranks(tmp_path, model="abc", dataset=dataset)
    assert found.metrics == fold.metrics
    np.testing.assert_array_equal(found.pair_ranks.images, fold.pair_ranks.images)
    np.testing.assert_array_equal(found.pair_ranks.texts, fold.pair_ranks.texts)


def test_another_model_data_set_or_split_finds_nothing(tmp_path):
    dataset = uneven_dataset()
    keep_ranks(tmp_path, ranked(dataset), model="abc", dataset=dataset)
    assert kept_ranks(tmp_path, model="abd", dataset=dataset) is None
    assert kept_ranks(tmp_path, model="abc", dataset=uneven_dataset(seed=1)) is None
    assert kept_ranks(tmp_path, model="abc", dataset=replace(dataset, split="dev")) is None
    assert kept_ranks(tmp_path / "elsewhere", model="abc", dataset=dataset) is None


def test_a_damaged_file_is_as_good_as_none(tmp_path):
    dataset = uneven_dataset()
    keep_ranks(tmp_path, ranked(dataset), model="abc", dataset=dataset)
    (file,) = (tmp_path / "ranks").iterdir()
    file.write_bytes(file.read_bytes()[:-4])
    assert kept_ranks(tmp_path, model="abc", dataset=dataset) is None
