"""The example for the Trainer of transformers, with a tiny CLIP and drawn pictures."""

from __future__ import annotations

import json

import pytest
import torch

pytest.importorskip("accelerate")
from safetensors.torch import load_file

import aoq
from examples.clip import write_tiny_clip
from examples.transformers_trainer import main
from tests.examples.test_clip import SHADES, draw


def test_the_trainer_learns_from_mined_negatives_and_saves_a_whole_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    captions = draw(tmp_path / "pictures", SHADES)
    records = aoq.read_records(captions, pictures=captions.parent)
    torch.manual_seed(0)
    write_tiny_clip(tmp_path / "tiny", [text for record in records for text in record.captions])
    given = ("--batch-size", "6", "--epochs", "2", "--learning-rate", "1e-3", "--depth", "5")
    main(["tiny", str(captions), str(captions.parent), *given])
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("tiny", "tuned"))
    assert before.keys() == after.keys()
    changed = [name for name in before if not torch.equal(before[name], after[name])]
    assert "visual_projection.weight" in changed
    assert "text_projection.weight" in changed
    assert json.loads((tmp_path / "tuned" / "config.json").read_text())["model_type"] == "clip"
    assert (tmp_path / "tuned" / "tokenizer.json").is_file()
