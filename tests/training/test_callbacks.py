"""Callbacks are told of all that is trained, in order."""

from __future__ import annotations

import ast
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

import aoq
from aoq.runs.directory import ROUND_ONE, ROUND_TWO
from aoq.storage import read_json_lines
from aoq.training.inputs import open_training_data
from aoq.training.two_rounds import run_recipe, train_round
from tests.kills import KilledError
from tests.training.cases import assert_same_weights, small_recipe, validations

DOCUMENT = Path(__file__).parents[2] / "docs" / "training.md"


class Recorder(aoq.Callback):
    """Keeps all that it is told; dies at a step."""

    def __init__(self, *, dies_at=None):
        self.told = []
        self.dies_at = dies_at

    def on_round_start(self, start):
        self.told.append(("start", start))

    def on_step(self, step):
        self.told.append(("step", step))
        if step.step == self.dies_at:
            raise KilledError

    def on_validation(self, validation):
        self.told.append(("validation", validation))

    def on_round_end(self, end):
        self.told.append(("end", end))

    def of(self, kind, which="one"):
        return [what for name, what in self.told if name == kind and what.round == which]


def test_a_callback_receives_both_rounds_in_order(tmp_path, precomp):
    recipe = small_recipe(precomp)
    recipe = replace(recipe, model=replace(recipe.model, name="vse"))
    recorder = Recorder()
    run_recipe(tmp_path / "run", recipe, callbacks=[recorder, aoq.Callback()])
    steps = ["step"] * 4 + ["validation"]
    assert [kind for kind, _ in recorder.told] == 2 * ["start", *steps, *steps, *steps, "end"]
    for which, folder in (("one", ROUND_ONE), ("two", ROUND_TWO)):
        (start,), (end,) = recorder.of("start", which), recorder.of("end", which)
        settings = recipe.settings_of(which)
        assert (start.settings, start.steps_per_epoch, start.steps_done) == (settings, 4, 0)
        assert start.path == end.path == tmp_path / "run" / folder
        assert [(step.epoch, step.step) for step in recorder.of("step", which)] == [
            (1 + step // 4, 1 + step) for step in range(12)
        ]
        rates = [step.learning_rate for step in recorder.of("step", which)]
        assert rates == [1e-3] * 8 + [1e-4] * 4
        validated = recorder.of("validation", which)
        assert [(each.epoch, each.step) for each in validated] == [(1, 4), (2, 8), (3, 12)]
        logged = validations(tmp_path / "run" / folder)
        assert [each.is_best for each in validated] == [line["best"] for line in logged]
        assert [each.metrics.rsum for each in validated] == [line["rsum"] for line in logged]
        assert end.epochs == 3
        assert end.best == max(each.metrics.rsum for each in validated)
        assert [each.epoch for each in validated if each.is_best][-1] == end.best_epoch


def test_the_terms_of_a_step_are_those_of_the_log(tmp_path, precomp):
    recipe = small_recipe(precomp)
    recipe = replace(recipe, round_one=replace(recipe.round_one, log_every=1))
    recorder = Recorder()
    data = open_training_data(recipe)
    train_round(tmp_path / "run", recipe, data, which="one", callbacks=[recorder])
    lines = read_json_lines(tmp_path / "run" / "events.jsonl")
    logged = [line["loss"] for line in lines if line["event"] == "steps"]
    for step, terms in zip(recorder.of("step"), logged, strict=True):
        assert step.terms == pytest.approx(terms, abs=1e-4)


def test_an_error_in_a_callback_ends_the_round_which_continues(tmp_path, precomp):
    recipe = small_recipe(precomp)
    data = open_training_data(recipe)
    train_round(tmp_path / "whole", recipe, data, which="one")
    with pytest.raises(KilledError):
        train_round(tmp_path / "run", recipe, data, which="one", callbacks=[Recorder(dies_at=6)])
    recorder = Recorder()
    train_round(tmp_path / "run", recipe, data, which="one", callbacks=[recorder])
    assert recorder.of("start")[0].steps_done == 5
    assert [step.step for step in recorder.of("step")] == list(range(6, 13))
    assert_same_weights(tmp_path / "whole", tmp_path / "run")
    again = Recorder()
    train_round(tmp_path / "run", recipe, data, which="one", callbacks=[again])
    assert again.told == []


def examples():
    """The classes that the document shows, by name."""
    blocks = re.findall(r"```python\n(.*?)\n```", DOCUMENT.read_text("utf-8"), flags=re.DOTALL)
    for block in blocks:
        for node in ast.parse(block).body:
            if isinstance(node, ast.ClassDef):
                yield node.name, block


@pytest.mark.parametrize(("name", "block"), list(examples()))
def test_the_callbacks_of_the_document_send_steps_and_validations(
    tmp_path, precomp, monkeypatch, name, block
):
    sent = SimpleNamespace(scalars=[], ended=0)

    def log(values, *, step):
        assert all(isinstance(value, float | int) for value in values.values())
        sent.scalars.append((step, set(values)))

    def end():
        sent.ended += 1

    run = SimpleNamespace(log=log, finish=end)
    wandb, mlflow = ModuleType("wandb"), ModuleType("mlflow")
    wandb.init = lambda **options: run
    mlflow.start_run = lambda **options: None
    mlflow.log_params = lambda values: None
    mlflow.log_metrics, mlflow.end_run = log, end
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    names = {"aoq": aoq}
    exec(block, names)
    recipe = small_recipe(precomp)
    data = open_training_data(recipe)
    train_round(tmp_path / "run", recipe, data, which="one", callbacks=[names[name]()])
    steps = [step for step, values in sent.scalars if "learning_rate" in values]
    validated = [step for step, values in sent.scalars if "rsum" in values]
    assert (steps, validated, sent.ended) == (list(range(1, 13)), [4, 8, 12], 1)


def test_both_services_are_shown():
    assert [name for name, _ in examples()] == ["WeightsAndBiases", "MLflow"]
