"""The threads of a round: measured without a trace, and kept when it goes on."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from aoq import threads
from aoq.runs.directory import RunDirectory
from aoq.storage import read_json_lines
from aoq.threads import ThreadChoice, using_threads
from aoq.training import round as round_module
from aoq.training import step as step_module
from aoq.training.inputs import open_training_data
from aoq.training.two_rounds import train_round
from tests.kills import KilledError
from tests.training.cases import assert_same_weights, small_recipe, validations


@pytest.fixture
def two_cores(monkeypatch):
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(threads, "_numbers_of_torch", lambda: {2})
    with using_threads(2):
        yield


def choose(monkeypatch, number):
    """Let measuring take its steps, and choose this number."""

    def chosen(unit, *, units):
        for _ in range(3):
            unit()
        return ThreadChoice(number)

    monkeypatch.setattr(round_module, "choose_threads", chosen)


def starts(path):
    lines = read_json_lines(RunDirectory(path).events)
    return [line["threads"] for line in lines if line["event"] == "start"]


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.usefixtures("two_cores")
def test_a_measured_round_equals_one_whose_user_set_the_number(
    tmp_path, precomp, monkeypatch, number
):
    recipe = small_recipe(precomp)
    data = open_training_data(recipe)
    choose(monkeypatch, number)
    train_round(tmp_path / "measured", recipe, data, which="one")
    monkeypatch.setenv("OMP_NUM_THREADS", str(number))
    with using_threads(number):
        train_round(tmp_path / "set", recipe, data, which="one")
    assert starts(tmp_path / "measured") == starts(tmp_path / "set") == [number]
    assert_same_weights(tmp_path / "measured", tmp_path / "set")
    assert validations(tmp_path / "measured") == validations(tmp_path / "set")


@pytest.mark.usefixtures("two_cores")
def test_a_round_goes_on_with_the_threads_it_began_with(tmp_path, precomp, monkeypatch):
    recipe = small_recipe(precomp)
    data = open_training_data(recipe)
    choose(monkeypatch, 1)
    real, seen = step_module.update, []

    def update(*args, **options):
        seen.append(torch.get_num_threads())
        if len(seen) == 4:
            raise KilledError
        return real(*args, **options)

    monkeypatch.setattr(round_module, "update", update)
    with pytest.raises(KilledError):
        train_round(tmp_path / "run", recipe, data, which="one")
    choose(monkeypatch, 2)
    train_round(tmp_path / "run", recipe, data, which="one")
    assert starts(tmp_path / "run") == [1, 1]
    assert set(seen) == {1}


@pytest.mark.usefixtures("two_cores")
def test_the_user_s_number_wins_over_the_one_a_round_began_with(tmp_path, precomp, monkeypatch):
    recipe = small_recipe(precomp)
    data = open_training_data(recipe)
    choose(monkeypatch, 1)
    with monkeypatch.context() as dying:
        dying.setattr(
            round_module.Round, "_end_epoch", lambda *_: (_ for _ in ()).throw(KilledError)
        )
        with pytest.raises(KilledError):
            train_round(tmp_path / "run", recipe, data, which="one")
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    train_round(tmp_path / "run", recipe, data, which="one")
    assert starts(tmp_path / "run") == [1, 2]


@pytest.mark.usefixtures("two_cores")
def test_where_steps_become_slow_the_threads_are_measured_again(
    tmp_path, precomp, monkeypatch, capsys
):
    """The clock says that every step from the fourth on takes ten times as long."""
    recipe = small_recipe(precomp)
    recipe = replace(recipe, round_one=replace(recipe.round_one, epochs=4))
    data = open_training_data(recipe)
    monkeypatch.setattr(threads, "_COMPARED", 3)
    choices = [ThreadChoice(2, {1: 1.0, 2: 0.5}), ThreadChoice(1, {1: 1.0, 2: 5.0})]
    monkeypatch.setattr(round_module, "choose_threads", lambda unit, *, units: choices.pop(0))
    real, seen, now = step_module.update, [], [0.0]

    def update(*args, **options):
        seen.append(torch.get_num_threads())
        now[0] += 1.0 if len(seen) < 4 else 10.0
        return real(*args, **options)

    monkeypatch.setattr(round_module, "update", update)
    monkeypatch.setattr(round_module.time, "perf_counter", lambda: now[0])
    state = train_round(tmp_path / "run", recipe, data, which="one")
    assert seen[:6] == [2] * 6
    assert set(seen[6:]) == {1}
    assert state.threads == 1
    lines = read_json_lines(RunDirectory(tmp_path / "run").events)
    (changed,) = [line for line in lines if line["event"] == "threads"]
    assert changed["threads"] == 1
    assert changed["step_seconds"] == {"1": 1.0, "2": 5.0}
    assert "steps have become slow; 1 thread instead of 2" in capsys.readouterr().err
