"""The example of a loss in sentence-transformers, with a tiny model."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn
from torch.nn.functional import normalize

import aoq
from tests.towers import write_bert

pytest.importorskip("sentence_transformers")
from examples.sentence_transformers_loss import MatchingLoss, main

ANIMALS = ("dog", "cat", "bird", "fish", "horse", "cow")


class Vectors(nn.Module):
    """A model whose inputs are its vectors."""

    def forward(self, inputs):
        return {"sentence_embedding": inputs["rows"]}


@pytest.mark.parametrize("name", ["standard", "online", "infonce", "siglip"])
def test_the_loss_is_that_of_aoq_without_equal_anchors_as_negatives(name):
    torch.manual_seed(0)
    anchors, positives = torch.randn(4, 8), torch.randn(4, 8)
    labels = torch.tensor([[0, 4], [0, 5], [1, 6], [2, 5]])  # two anchors, two positives are equal
    loss = MatchingLoss(Vectors(), aoq.LossConfig(name=name))
    found = loss([{"rows": anchors}, {"rows": positives}], labels)
    negatives = torch.tensor(
        [[0, 0, 1, 1], [0, 0, 1, 0], [1, 1, 0, 1], [1, 0, 1, 0]], dtype=torch.bool
    )
    scores = aoq.BatchScores(
        normalize(anchors, dim=1) @ normalize(positives, dim=1).T, negatives=negatives
    )
    assert found == aoq.compute_loss(scores, aoq.LossConfig(name=name)).total / 4


def test_a_model_is_trained_and_saved(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    base = write_bert(tmp_path / "bert")
    lines = [{"anchor": f"a {name}", "positive": f"the {name} here"} for name in ANIMALS]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    main([str(base), "pairs.jsonl", "--out", "tuned", "--batch-size", "3", "--epochs", "2"])
    from sentence_transformers import SentenceTransformer

    before, after = (SentenceTransformer(str(folder)) for folder in (base, tmp_path / "tuned"))
    assert not torch.equal(
        *(model.encode("a dog", convert_to_tensor=True) for model in (before, after))
    )
