"""Ranks on disk: found again by the same model and data, by nothing else, and never half."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from aoq.evaluation.protocols import JudgedFold
from aoq.evaluation.rank_cache import keep_ranks, kept_ranks, ranks_file
from aoq.evaluation.ranks import PairRanks
from tests.conftest import uneven_dataset


def ranked(dataset):
    images, texts = np.random.default_rng(0).integers(9, size=(2, len(dataset.positives.pairs)))
    return JudgedFold(dataset.positives, PairRanks(images=images, texts=texts))


def test_kept_ranks_give_the_same_figures(tmp_path):
    dataset = uneven_dataset()
    fold = ranked(dataset)
    keep_ranks(tmp_path / "ranks/all.safetensors", fold)
    found = kept_ranks(tmp_path / "ranks/all.safetensors", dataset)
    assert found.metrics == fold.metrics
    np.testing.assert_array_equal(found.pair_ranks.images, fold.pair_ranks.images)
    np.testing.assert_array_equal(found.pair_ranks.texts, fold.pair_ranks.texts)


def test_another_model_data_set_or_split_finds_nothing(tmp_path):
    dataset = uneven_dataset()
    keep_ranks(ranks_file(tmp_path, model="abc", dataset=dataset), ranked(dataset))

    def found(*, model="abc", dataset=dataset, run=tmp_path):
        return kept_ranks(ranks_file(run, model=model, dataset=dataset), dataset)

    assert found() is not None
    assert found(model="abd") is None
    assert found(dataset=uneven_dataset(seed=1)) is None
    assert found(dataset=replace(dataset, split="dev")) is None
    assert found(run=tmp_path / "elsewhere") is None


def test_a_damaged_file_is_as_good_as_none(tmp_path):
    dataset = uneven_dataset()
    file = tmp_path / "all.safetensors"
    keep_ranks(file, ranked(dataset))
    content = file.read_bytes()
    for damaged in (content[:-4], content[:-1] + bytes([content[-1] ^ 1])):
        file.write_bytes(damaged)
        assert kept_ranks(file, dataset) is None
