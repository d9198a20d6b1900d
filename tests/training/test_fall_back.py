"""Rounds that go back to the end of their warm-up where the hardest negatives do harm."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from aoq.config import LossConfig
from aoq.runs.best_round import best_round
from aoq.runs.checkpoint import load_run
from aoq.runs.directory import RunDirectory
from aoq.training import round as round_module
from aoq.training import step as step_module
from aoq.training.inputs import open_training_data
from aoq.training.two_rounds import run_recipe, train_round
from tests.kills import KilledError
from tests.training.cases import assert_same_weights, events, small_recipe, validations


def recipe_of(precomp, *, fall_back_after=2, loss="online", **changes):
    recipe = small_recipe(precomp, rounds="one")
    settings = replace(
        recipe.round_one,
        loss=LossConfig(name=loss),
        epochs=5,
        warmup_epochs=2,
        fall_back_after=fall_back_after,
        **changes,
    )
    return replace(recipe, model=replace(recipe.model, name="vse"), round_one=settings)


@pytest.fixture
def falls(monkeypatch):
    """Dev falls as soon as a round learns from the hardest negatives."""
    real = round_module.Round._judge_weights

    def judge(self, epoch):
        evaluate = round_module.evaluate

        def lower(*args, **options):
            metrics = evaluate(*args, **options)
            falls = self.settings.loss_at(epoch).name == "online"
            return replace(metrics, t2i=replace(metrics.t2i, r1=-500.0)) if falls else metrics

        with monkeypatch.context() as patch:
            patch.setattr(round_module, "evaluate", lower)
            return real(self, epoch)

    monkeypatch.setattr(round_module.Round, "_judge_weights", judge)


def train(path, recipe):
    return train_round(path, recipe, open_training_data(recipe), which="one")


def last_weights(path):
    return torch.load(RunDirectory(path).trainer, weights_only=True)["model"]


@pytest.mark.parametrize("changes", [{}, {"ema": 0.9, "optimizer": "adamw"}, {"accumulate": 2}])
def test_a_round_that_falls_ends_as_eq_1_does(tmp_path, precomp, falls, changes, capsys):
    state = train(tmp_path / "fallen", recipe_of(precomp, **changes))
    train(tmp_path / "eq-1", recipe_of(precomp, fall_back_after=None, loss="standard", **changes))
    assert state.fell_back
    one, other = last_weights(tmp_path / "fallen"), last_weights(tmp_path / "eq-1")
    assert all(torch.equal(one[name], other[name]) for name in other)
    lines = validations(tmp_path / "fallen")
    assert [line["epoch"] for line in lines] == [1, 2, 3, 4, 3, 4, 5]
    (fell,) = events(tmp_path / "fallen", "fell_back")
    assert fell["epoch"] == 4
    assert state.best == max(line["rsum"] for line in lines)
    assert "goes on with Eq. 1" in capsys.readouterr().err
    load_run(tmp_path / "fallen")


def test_the_last_epochs_count_even_if_they_are_fewer(tmp_path, precomp, falls):
    state = train(tmp_path / "run", recipe_of(precomp, fall_back_after=10))
    assert state.fell_back
    assert state.epoch == 5
    assert [line["epoch"] for line in validations(tmp_path / "run")] == [1, 2, 3, 4, 5, 3, 4, 5]


def test_a_round_that_does_not_fall_is_left_alone(tmp_path, precomp, monkeypatch):
    """The warm-up counts, and a later epoch is above it."""
    real = round_module.Round._judge_weights

    def judge(self, epoch):
        with monkeypatch.context() as patch:
            evaluate = round_module.evaluate

            def rising(*args, **options):
                metrics = evaluate(*args, **options)
                return replace(metrics, t2i=replace(metrics.t2i, r1=100.0 * epoch))

            patch.setattr(round_module, "evaluate", rising)
            return real(self, epoch)

    monkeypatch.setattr(round_module.Round, "_judge_weights", judge)
    state = train(tmp_path / "run", recipe_of(precomp))
    train(tmp_path / "plain", recipe_of(precomp, fall_back_after=None))
    assert not state.fell_back
    assert_same_weights(tmp_path / "run", tmp_path / "plain")


@pytest.mark.parametrize("calls", [14, 21])
def test_a_round_killed_before_or_after_its_fall_ends_the_same(
    tmp_path, precomp, falls, monkeypatch, calls
):
    """With four steps an epoch the round falls after step 16."""
    recipe = recipe_of(precomp)
    whole = train(tmp_path / "whole", recipe)
    real, count = step_module.step_loss, 0

    def dying(*args, **options):
        nonlocal count
        count += 1
        if count == calls:
            raise KilledError
        return real(*args, **options)

    monkeypatch.setattr(step_module, "step_loss", dying)
    with pytest.raises(KilledError):
        train(tmp_path / "killed", recipe)
    assert train(tmp_path / "killed", recipe) == whole
    assert_same_weights(tmp_path / "whole", tmp_path / "killed")
    assert validations(tmp_path / "whole") == validations(tmp_path / "killed")


@pytest.mark.parametrize("fall_back_after", [2, 10])
def test_a_round_killed_right_before_its_fall_ends_the_same(
    tmp_path, precomp, falls, monkeypatch, fall_back_after
):
    """All its epochs may be done, and saved, by then."""
    recipe = recipe_of(precomp, fall_back_after=fall_back_after)
    whole = train(tmp_path / "whole", recipe)

    def die(self):
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(round_module.Round, "_fall_back", die)
        with pytest.raises(KilledError):
            train(tmp_path / "killed", recipe)
    assert train(tmp_path / "killed", recipe) == whole
    assert whole.fell_back
    assert_same_weights(tmp_path / "whole", tmp_path / "killed")
    assert validations(tmp_path / "whole") == validations(tmp_path / "killed")


def test_a_round_that_loses_patience_within_an_epoch_falls_too(tmp_path, precomp, monkeypatch):
    real = round_module.Round._judge_weights

    def judge(self, epoch):
        is_low = self.settings.loss_at(epoch).name == "online"
        r1 = -500.0 if is_low else float(self._steps_done)
        evaluate = round_module.evaluate

        def made_up(*args, **options):
            metrics = evaluate(*args, **options)
            none = replace(metrics.i2t, r1=0.0, r5=0.0, r10=0.0)
            return replace(metrics, i2t=none, t2i=replace(none, r1=r1))

        with monkeypatch.context() as patch:
            patch.setattr(round_module, "evaluate", made_up)
            return real(self, epoch)

    monkeypatch.setattr(round_module.Round, "_judge_weights", judge)
    state = train(tmp_path / "run", recipe_of(precomp, patience=1, validate_every=2))
    (fell,) = events(tmp_path / "run", "fell_back")
    assert fell["epoch"] == 2  # in the third
    assert state.fell_back
    assert state.epoch == 5


def test_a_round_that_ends_with_its_warm_up_is_compared_by_it(tmp_path, precomp, falls):
    recipe = replace(recipe_of(precomp), rounds="both")
    two = replace(recipe.round_one, loss=LossConfig(name="off_tri"), fall_back_after=None)
    recipe = replace(recipe, round_two=replace(two, warmup_epochs=0))
    run_recipe(tmp_path / "run", recipe)
    chosen = best_round(tmp_path / "run")
    assert chosen.dev["one"] == max(
        line["rsum"] for line in validations(tmp_path / "run" / "round-one")
    )


def test_a_round_without_a_warm_up_has_nothing_to_go_back_to(tmp_path, precomp, falls):
    recipe = recipe_of(precomp)
    recipe = replace(recipe, round_one=replace(recipe.round_one, warmup_epochs=0))
    state = train(tmp_path / "run", recipe)
    assert not state.fell_back
    assert not RunDirectory(tmp_path / "run").warm_up.exists()
