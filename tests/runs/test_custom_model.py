"""A model that a program brings is known again, and another one is noticed."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import aoq
from aoq.errors import UserError
from aoq.runs.custom_model import fingerprint_model
from aoq.runs.directory import RunDirectory
from aoq.storage import write_json

NUMBERS = itertools.count()  # a module is imported once
SETTINGS = aoq.RoundConfig(epochs=1, batch_size=4, precision="float32")
RECIPE = replace(aoq.Recipe(rounds="one"), round_one=SETTINGS)

SOURCE = """
import aoq
from torch import nn

class Towers(aoq.InnerProduct, nn.Module):
    def __init__(self, width=3, dropout=0.0):
        super().__init__()
        self.images, self.words = nn.Linear(5, width), nn.Embedding(9, width)
        self.dropout = nn.Dropout(dropout)

    def encode_images(self, regions):
        return aoq.Encoding(self.images(self.dropout(regions).mean(dim=1)))

    def encode_texts(self, texts):
        return aoq.Encoding(self.words(texts.tokens).mean(dim=1))
"""


@pytest.fixture
def towers(tmp_path, monkeypatch):
    """Imports the model from a file, with changes to its source."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def load(old="", new=""):
        name = f"own_towers_{next(NUMBERS)}"
        (tmp_path / f"{name}.py").write_text(SOURCE.replace(old, new) if old else SOURCE)
        return __import__(name).Towers

    return load


def data():
    random = np.random.default_rng(0)

    def split(name):
        captions = [f"{number}" for number in range(8)]
        dataset = aoq.PairDataset.of(
            random.random((8, 2, 5), dtype=np.float32),
            captions,
            [(n, n) for n in range(8)],
            split=name,
        )
        return aoq.Collator(dataset, lambda caption: [int(caption)])

    random = np.random.default_rng(0)
    return aoq.TrainingData(split("train"), split("dev"))


def train(folder, make_model, **options):
    return aoq.run_recipe(str(folder), RECIPE, data=data(), make_model=make_model, **options)


def test_the_same_model_is_opened_again_without_a_word(tmp_path, towers, capsys):
    result = train(tmp_path / "run", towers())
    again = towers("class Towers", "# a remark\nclass Towers")  # another module and a comment
    capsys.readouterr()
    assert train(tmp_path / "run", again) == result
    aoq.load_own_model(str(tmp_path / "run" / "round-one"), again)
    assert "source" not in capsys.readouterr().err


def test_another_structure_is_refused(tmp_path, towers):
    kind = towers()
    train(tmp_path / "run", kind)
    for options, part in (({"width": 4}, "parameters"), ({"dropout": 0.5}, "modules")):
        with pytest.raises(UserError, match=f"another model.*{part}.*force=True"):
            train(tmp_path / "run", lambda options=options: kind(**options))
        with pytest.raises(UserError, match=f"weights of another model.*{part}"):
            aoq.load_own_model(
                tmp_path / "run" / "round-one", lambda options=options: kind(**options)
            )
    train(tmp_path / "run", lambda: kind(width=4), force=True)
    aoq.load_own_model(tmp_path / "run" / "round-one", lambda: kind(width=4))


def test_another_source_is_refused_in_training_and_reported_for_finished_weights(
    tmp_path, towers, capsys
):
    train(tmp_path / "run", towers())
    changed = towers("self.words(texts.tokens)", "2 * self.words(texts.tokens)")
    with pytest.raises(UserError, match=r"differs in its source; .*force=True"):
        train(tmp_path / "run", changed)
    capsys.readouterr()
    aoq.load_own_model(tmp_path / "run" / "round-one", changed)
    assert "source of the model has changed" in " ".join(capsys.readouterr().err.split())


def test_a_function_that_the_model_calls_counts_as_its_source(tmp_path, towers):
    pooled = ".mean(dim=1))", "pool(self.words(texts.tokens)))", "pool(regions))"
    helper = "def pool(values):\n    return values.mean(dim=1)\n\nclass Towers"
    calls = SOURCE.replace("self.words(texts.tokens).mean(dim=1)", "pool(self.words(texts.tokens))")
    assert pooled[1] in calls
    one = towers(SOURCE, calls.replace("class Towers", helper))
    other = towers(SOURCE, calls.replace("class Towers", helper.replace("mean", "amax")))
    train(tmp_path / "run", one)
    with pytest.raises(UserError, match=r"differs in its source"):
        train(tmp_path / "run", other)


def test_a_reader_of_queries_can_be_added_to_a_trained_model(tmp_path, towers, capsys):
    result = train(tmp_path / "run", towers())
    reads = "def read():\n    return aoq.QueryReader()\n\nclass Towers"
    method = "    def query_reader(self):\n        return read()\n\n    def encode_texts"
    source = SOURCE.replace("class Towers", reads).replace("    def encode_texts", method)
    later = towers(SOURCE, source)
    capsys.readouterr()
    assert train(tmp_path / "run", later) == result
    aoq.load_own_model(tmp_path / "run" / "round-one", later)
    assert "source" not in capsys.readouterr().err


def test_a_run_that_says_nothing_of_its_model_opens_as_before(tmp_path, towers):
    train(tmp_path / "run", towers())
    origin = RunDirectory(tmp_path / "run" / "round-one").origin
    stored = json.loads(origin.read_text("utf-8"))
    assert stored.pop("model").keys() == {"tensors", "modules", "source"}
    write_json(origin, stored)
    changed = towers("self.words(texts.tokens)", "2 * self.words(texts.tokens)")
    train(tmp_path / "run", changed)
    aoq.load_own_model(tmp_path / "run" / "round-one", changed)


def test_a_class_without_source_counts_by_name():
    def made(factor):
        space = {"nn": nn}
        exec(f"class Made(nn.Linear):\n    factor = {factor}", space)
        return fingerprint_model(space["Made"](2, 2))

    assert made(1) == made(2)
    assert fingerprint_model(nn.Linear(2, 2)) != made(1)


def test_values_and_addresses_do_not_count():
    class Activated(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.rand(2))

        def extra_repr(self):
            return repr(lambda: None)

    assert fingerprint_model(Activated()) == fingerprint_model(Activated())
