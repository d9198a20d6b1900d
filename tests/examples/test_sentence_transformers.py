"""The examples for sentence-transformers, with a tiny model."""

from __future__ import annotations

import json

import pytest
import torch

from tests.towers import write_bert

pytest.importorskip("sentence_transformers")
from examples import sentence_transformers_loss, sentence_transformers_mining

ANIMALS = ("dog", "cat", "bird", "fish", "horse", "cow")


@pytest.mark.parametrize(
    ("example", "options"),
    [
        (sentence_transformers_loss, ("--loss", "online")),
        (sentence_transformers_mining, ("--depth", "2")),
    ],
    ids=["loss", "mining"],
)
def test_a_model_is_trained_and_saved(tmp_path, monkeypatch, example, options):
    monkeypatch.chdir(tmp_path)
    base = write_bert(tmp_path / "bert")
    lines = [{"anchor": f"a {name}", "positive": f"the {name} here"} for name in ANIMALS]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    given = ("pairs.jsonl", "--out", "tuned", "--batch-size", "3", "--epochs", "2", *options)
    example.main([str(base), *given])
    from sentence_transformers import SentenceTransformer

    before, after = (SentenceTransformer(str(folder)) for folder in (base, tmp_path / "tuned"))
    assert not torch.equal(
        *(model.encode("a dog", convert_to_tensor=True) for model in (before, after))
    )
