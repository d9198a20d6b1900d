"""Rounds that end early: patience, signals and kills."""

from __future__ import annotations

import signal
from dataclasses import replace
from unittest.mock import Mock

import pytest

from aoq.runs.directory import RunDirectory
from aoq.runs.summary import RunSummary
from aoq.storage import append_json_line, read_json_lines
from aoq.training import round as round_module
from aoq.training.inputs import open_training_data
from aoq.training.two_rounds import train_round
from aoq.web.history import curves
from tests.kills import KilledError
from tests.training.cases import assert_same_weights, events, small_recipe, validations


def test_a_round_gives_up_when_validation_no_longer_improves(tmp_path, precomp):
    recipe = small_recipe(precomp)
    settings = replace(recipe.round_one, epochs=30, patience=2, learning_rate=1e-9)
    recipe = replace(recipe, round_one=settings)
    data = open_training_data(recipe)
    state = train_round(tmp_path / "run", recipe, data, which="one")
    rsums = [line["rsum"] for line in validations(tmp_path / "run")]
    assert state.epoch == len(rsums) < 30
    assert max(rsums[-2:]) <= max(rsums[:-2])
    (stopped,) = events(tmp_path / "run", "stopped_early")
    assert stopped["epoch"] == state.epoch
    again = train_round(tmp_path / "run", recipe, data, which="one")
    assert again == state
    assert len(events(tmp_path / "run", "stopped_early")) == 1


def test_a_kill_before_an_early_end_is_logged_does_not_hide_it(tmp_path, precomp):
    recipe = small_recipe(precomp)
    settings = replace(recipe.round_one, epochs=30, patience=1, learning_rate=1e-9)
    recipe = replace(recipe, round_one=settings)
    data = open_training_data(recipe)
    train_round(tmp_path / "run", recipe, data, which="one")
    log = RunDirectory(tmp_path / "run").events
    *lines, last = read_json_lines(log)
    assert last["event"] == "stopped_early"
    log.unlink()
    for line in lines:
        append_json_line(log, line)
    assert RunSummary.read(tmp_path / "run").stage == "training"
    train_round(tmp_path / "run", recipe, data, which="one")
    assert RunSummary.read(tmp_path / "run").stage == "stopped early"


def test_a_signal_in_the_last_validation_does_not_hide_that_the_round_gave_up(
    tmp_path, precomp, monkeypatch
):
    """A stop between the validation and the end waits for what is to be written."""
    recipe = small_recipe(precomp)
    settings = replace(recipe.round_one, epochs=30, patience=1, learning_rate=1e-9)
    recipe = replace(recipe, round_one=replace(settings, validate_every=1))
    data, real = open_training_data(recipe), round_module.save_trainer

    signals = iter([signal.SIGINT])

    def interrupted(path, model, optimizer, state, **options):
        if state.waited:
            for number in signals:
                signal.raise_signal(number)
        real(path, model, optimizer, state, **options)

    monkeypatch.setattr(round_module, "save_trainer", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train_round(tmp_path / "run", recipe, data, which="one")
    assert len(events(tmp_path / "run", "stopped_early")) == 1


def test_a_stop_in_a_validation_does_not_wait_for_it_and_it_is_done_again(
    tmp_path, precomp, monkeypatch
):
    """The scores of dev decide which weights are kept: a validation that is cut off counts."""
    recipe = small_recipe(precomp)
    settings = replace(recipe.round_one, validate_every=2, checkpoint_every=100)
    recipe = replace(recipe, round_one=settings)
    data, real = open_training_data(recipe), round_module.evaluate
    state = train_round(tmp_path / "whole", recipe, data, which="one")
    finished, count = [], 0

    def interrupted(*args, **options):
        nonlocal count
        count += 1
        if count in (1, 4):
            signal.raise_signal(signal.SIGINT)
        finished.append(count)
        return real(*args, **options)

    monkeypatch.setattr(round_module, "evaluate", interrupted)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            train_round(tmp_path / "stopped", recipe, data, which="one")
    assert finished == [2, 3]
    assert train_round(tmp_path / "stopped", recipe, data, which="one") == state
    assert validations(tmp_path / "stopped") == validations(tmp_path / "whole")
    assert_same_weights(tmp_path / "stopped", tmp_path / "whole")


def test_a_stop_between_the_steps_and_the_validation_keeps_the_loss_of_the_epoch(
    tmp_path, precomp, monkeypatch
):
    recipe = small_recipe(precomp)
    data = open_training_data(recipe)
    with monkeypatch.context() as patch:
        patch.setattr(round_module, "evaluate", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            train_round(tmp_path / "run", recipe, data, which="one")
    train_round(tmp_path / "run", recipe, data, which="one")
    first, again, *_ = events(tmp_path / "run", "epoch")
    assert (first["epoch"], again["epoch"], again["steps"]) == (1, 1, 0)
    assert first["loss"]
    assert not again["loss"]
    (curve,) = curves(tmp_path / "run").rounds
    assert all(epoch.loss is not None for epoch in curve.epochs)


def test_patience_within_an_epoch_ends_there_and_a_continued_round_ends_alike(
    tmp_path, precomp, monkeypatch
):
    recipe = small_recipe(precomp)
    settings = replace(
        recipe.round_one, epochs=30, patience=2, validate_every=1, learning_rate=1e-9
    )
    recipe = replace(recipe, round_one=replace(settings, checkpoint_every=1))
    data = open_training_data(recipe)
    state = train_round(tmp_path / "whole", recipe, data, which="one")
    assert state.waited == 2
    assert len(events(tmp_path / "whole", "stopped_early")) == 1

    real, count = round_module.evaluate, 0

    def dying(*args, **options):
        nonlocal count
        count += 1
        if count == 3:
            raise KilledError
        return real(*args, **options)

    monkeypatch.setattr(round_module, "evaluate", dying)
    with pytest.raises(KilledError):
        train_round(tmp_path / "killed", recipe, data, which="one")
    assert train_round(tmp_path / "killed", recipe, data, which="one") == state
    assert_same_weights(tmp_path / "whole", tmp_path / "killed")
