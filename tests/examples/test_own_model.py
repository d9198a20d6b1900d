"""The example of a model of one's own, run as a user would."""

from __future__ import annotations

import json
import re
import runpy
import sys
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch

import aoq
from aoq.data.splits import training_captions
from aoq.data.vocabulary import Vocabulary
from aoq.distributed import default_device
from aoq.runs import checkpoint
from aoq.runs.checkpoint import load_own_model
from aoq.training import two_rounds
from examples.own_model import TwoTowers, main
from tests.conftest import write_precomp


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_precomp(tmp_path_factory.mktemp("own") / "precomp")


@pytest.fixture(scope="module")
def run(data):
    main([str(data), str(data.parent / "run")])
    return data.parent / "run"


def make_model() -> TwoTowers:
    return TwoTowers(6, 15)  # the 11 words of `write_precomp`, and four special ones


def test_the_model_that_is_kept_has_the_result_that_is_reported(data, tmp_path, capsys):
    main([str(data), str(tmp_path / "run")])
    told = float(re.search(r"test rsum ([0-9.]+)", capsys.readouterr().err).group(1))
    vocabulary = Vocabulary.build(training_captions(data))
    assert len(vocabulary) == 15
    test = aoq.Collator(aoq.open_dataset(data, "test"), vocabulary)
    model = load_own_model(tmp_path / "run" / "round-two", make_model)
    assert aoq.evaluate(model, test).rsum == pytest.approx(told, abs=0.05)


def test_data_are_opened_once_and_their_device_is_the_model_s(data, tmp_path, monkeypatch):
    monkeypatch.setattr(two_rounds, "open_training_data", Mock(side_effect=AssertionError))
    opened = Mock(wraps=load_own_model)
    monkeypatch.setattr(checkpoint, "load_own_model", opened)
    main([str(data), str(tmp_path / "run")])
    assert opened.call_args.kwargs == {"device": torch.device(default_device())}


def test_the_split_that_was_judged_is_the_one_that_is_reported(tmp_path, capsys):
    data = write_precomp(tmp_path / "precomp")
    for file in data.glob("test_*"):
        file.unlink()
    main([str(data), str(tmp_path / "run")])
    told = capsys.readouterr().err
    assert "\ndev rsum " in told
    assert "test rsum" not in told


def test_a_mistake_is_one_sentence(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(
        sys, "argv", ["own_model.py", str(tmp_path / "none"), str(tmp_path / "run")]
    )
    with pytest.raises(SystemExit, match="2"):
        runpy.run_path(Path(__file__).parents[2] / "examples" / "own_model.py", run_name="__main__")
    said = capsys.readouterr().err
    assert said.startswith(f"error: {tmp_path / 'none'} is not a folder")
    assert len(said.splitlines()) == 1


def test_round_two_learns_from_mined_negatives(run):
    lines = (run / "round-two" / "events.jsonl").read_text(encoding="utf-8").splitlines()
    losses = [event["loss"] for event in map(json.loads, lines) if event["event"] == "epoch"]
    assert {"i2t_offline", "t2i_offline", "i2t_derived", "t2i_derived"} <= losses[-1].keys()
    assert losses[-1]["i2t_offline"] > 0
    one, two = (load_own_model(run / name, make_model) for name in ("round-one", "round-two"))
    assert not torch.equal(one.text_tower.weight, two.text_tower.weight)


def test_the_model_keeps_the_contracts(data, run):
    model = load_own_model(run / "round-two", make_model)
    train = aoq.Collator(aoq.open_dataset(data, "train"), Vocabulary.build(training_captions(data)))
    ids = np.arange(12)
    with torch.no_grad():
        images, texts = (
            model.encode_images(train.regions(ids)),
            model.encode_texts(train.texts(ids)),
        )
        matrix = model.score_matrix(images, texts)
        torch.testing.assert_close(model.score_pairs(images, texts), matrix.diagonal())
        for text in ids:  # alone, without the padding of longer ones
            alone = model.encode_texts(train.texts(ids[text : text + 1]))
            torch.testing.assert_close(
                model.score_matrix(images, alone)[:, 0], matrix[:, text], atol=1e-5, rtol=0
            )
