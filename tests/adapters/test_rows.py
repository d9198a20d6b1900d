"""Mined lists as rows of `datasets`, and rows that are mined with a sentence-transformers model."""

from __future__ import annotations

import json

import pytest
import torch

import aoq
from aoq.mining.export import export_lists
from tests.conftest import uneven_dataset

pytest.importorskip("datasets")
from datasets import Dataset

DEPTH = 2


@pytest.fixture(scope="module")
def dataset():
    return uneven_dataset()


@pytest.fixture(scope="module")
def lists(dataset):
    random = torch.Generator().manual_seed(0)
    encoded = aoq.EncodedDataset(
        images=aoq.Encoding(torch.randn(len(dataset), 4, generator=random)),
        texts=aoq.Encoding(torch.randn(dataset.n_texts, 4, generator=random)),
    )
    return aoq.mine(
        aoq.InnerProduct(),
        encoded,
        dataset.positives,
        config=aoq.MiningConfig(depth_texts=DEPTH, depth_images=DEPTH),
        provenance=aoq.Provenance(teacher="none", data=dataset.fingerprint),
    )


@pytest.mark.parametrize("direction", ["i2t", "t2i"])
def test_rows_are_the_lines_that_the_export_writes(dataset, lists, direction, tmp_path):
    rows = aoq.hard_negative_rows(lists, dataset, direction=direction)
    export_lists(lists, dataset, tmp_path / "lines", direction=direction)
    lines = [json.loads(line) for line in (tmp_path / "lines").read_text().splitlines()]
    assert rows.column_names == ["anchor", "positive", "negative_1", "negative_2"]
    assert rows.to_list() == [{name: line[name] for name in rows.column_names} for line in lines]


def test_images_are_paths_or_ids(dataset, lists, tmp_path):
    from dataclasses import replace

    pictures = tuple(tmp_path / f"{name}.jpg" for name in dataset.image_ids)
    shown = replace(dataset, pictures=pictures)
    by_path = aoq.hard_negative_rows(lists, shown, direction="t2i", depth=1)
    by_id = aoq.hard_negative_rows(lists, shown, direction="t2i", depth=1, images="id")
    assert by_path.column_names == by_id.column_names == ["anchor", "positive", "negative_1"]
    assert set(by_id["positive"]) == set(dataset.image_ids)
    assert by_path["negative_1"] == [str(tmp_path / f"{name}.jpg") for name in by_id["negative_1"]]


def test_lists_of_other_data_are_refused(lists):
    with pytest.raises(aoq.UserError, match="another data set"):
        aoq.hard_negative_rows(lists, uneven_dataset(seed=1), direction="i2t")


class ByTable:
    """Encodes what a table holds, as sentence-transformers encodes sentences."""

    def __init__(self, vectors):
        self.vectors = vectors

    def encode(self, inputs, *, convert_to_tensor, normalize_embeddings):
        assert convert_to_tensor
        assert normalize_embeddings
        rows = torch.stack([self.vectors[name] for name in inputs])
        return torch.nn.functional.normalize(rows, dim=1)


def test_the_hardest_wrong_ones_of_each_anchor_are_mined():
    names = [f"q{n}" for n in range(4)] + [f"a{n}" for n in range(8)]
    random = torch.Generator().manual_seed(1)
    model = ByTable({name: torch.randn(6, generator=random) for name in names})
    pairs = Dataset.from_dict(
        {
            "anchor": [f"q{n % 4}" for n in range(8)],
            "positive": [f"a{n}" for n in range(7)] + ["a0"],  # a0 is right for q0 and q3
        }
    )
    rows = aoq.mine_hard_negatives(model, pairs, depth=3)
    right = {anchor: set() for anchor in pairs["anchor"]}
    for row in pairs:
        right[row["anchor"]].add(row["positive"])
    known = list(dict.fromkeys(pairs["positive"]))
    assert len(rows) == len(pairs)
    for row in rows:
        anchor = model.encode([row["anchor"]], convert_to_tensor=True, normalize_embeddings=True)
        scores = model.encode(known, convert_to_tensor=True, normalize_embeddings=True) @ anchor[0]
        ranked = [known[at] for at in scores.argsort(descending=True).tolist()]
        wrong = [name for name in ranked if name not in right[row["anchor"]]]
        assert [row[f"negative_{rank}"] for rank in (1, 2, 3)] == wrong[:3]
        assert row["positive"] in right[row["anchor"]]


def test_pairs_without_the_columns_are_refused():
    with pytest.raises(aoq.UserError, match="expected anchor and positive"):
        aoq.mine_hard_negatives(ByTable({}), Dataset.from_dict({"query": ["a"]}))


def test_pairs_that_are_not_texts_are_refused():
    pairs = Dataset.from_dict({"anchor": ["a", "b"], "positive": [1, 2]})
    with pytest.raises(aoq.UserError, match="row 0 of pairs holds a int; expected texts or paths"):
        aoq.mine_hard_negatives(ByTable({}), pairs)
