"""Results, ranks and lists belong to the model that was loaded, with its words and settings."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest

from aoq.data.splits import open_dataset
from aoq.errors import UserError
from aoq.manifest import record
from aoq.mining.candidates import CandidateLists
from aoq.recipes import load_recipe, save_recipe
from aoq.runs import checkpoint
from aoq.runs.checkpoint import hash_model, load_run, load_weights
from aoq.runs.directory import RunDirectory
from aoq.runs.encodings import open_splits
from aoq.runs.judge import evaluate_run, evaluate_runs, judge_split, ranks_of, result_on
from aoq.runs.mine import mine_run
from aoq.storage import locked, read_json_lines
from aoq.training.inputs import open_training_data
from aoq.training.two_rounds import train_round
from tests.conftest import write_precomp
from tests.training.cases import assert_same_weights, small_recipe


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Two rounds of SCAN on the same data."""
    folder = tmp_path_factory.mktemp("trained")
    recipe = small_recipe(write_precomp(folder / "precomp"))
    recipe = replace(recipe, model=replace(recipe.model, name="scan"))
    for seed in (0, 1):
        data = open_training_data(recipe)
        train_round(folder / f"run-{seed}", replace(recipe, seed=seed), data, which="one")
    return folder


@pytest.fixture
def runs(trained, tmp_path):
    copied = shutil.copytree(trained, tmp_path / "copy")
    return copied / "run-0", copied / "run-1"


def test_weights_that_are_replaced_meanwhile_do_not_take_the_result(runs):
    """As a round does that is evaluated while it trains."""
    one, two = runs
    (part,) = open_splits([one], split="dev")
    before = hash_model(one)
    shutil.copy(RunDirectory(two).model, RunDirectory(one).model)
    judge_split(part)
    (line,) = read_json_lines(RunDirectory(one).results)
    assert line["model"] == before
    assert result_on(one, part.dataset) is None


def test_a_model_that_is_replaced_while_it_is_read_is_read_again(runs, monkeypatch):
    one, two = runs
    copies = [RunDirectory(two).model]

    def replaced(path, model):
        load_weights(path, model)
        while copies:
            path.unlink()
            shutil.copy(copies.pop(), path)
            record(path)

    monkeypatch.setattr(checkpoint, "load_weights", replaced)
    found = load_run(one)
    assert found.model_hash == hash_model(one)
    assert_same_weights(one, two)
    expected = load_run(two).model.state_dict()
    assert all((found.model.state_dict()[name] == expected[name]).all() for name in expected)


def test_settings_that_are_corrected_make_another_model_of_the_same_weights(runs, tmp_path):
    one, _ = runs
    dataset = open_dataset(load_recipe(one / "config.toml").data, "dev")
    before = evaluate_run(one, split="dev")
    old = ranks_of([one], dataset, data=None)
    mine_run(one, tmp_path / "before.safetensors")
    recipe = load_recipe(one / "config.toml")
    save_recipe(replace(recipe, model=replace(recipe.model, direction="i2t")), one / "config.toml")
    assert result_on(one, dataset) is None
    assert (ranks_of([one], dataset, data=None).ranks.i2t != old.ranks.i2t).any()
    assert evaluate_run(one, split="dev") != before
    mine_run(one, tmp_path / "after.safetensors")
    teachers = {
        CandidateLists.load(tmp_path / f"{name}.safetensors").provenance.teacher
        for name in ("before", "after")
    }
    assert len(teachers) == 2


def test_encodings_are_made_by_one_program_at_a_time(runs, tmp_path):
    """Each removes what it takes for the leftovers of another."""
    one, _ = runs
    mine_run(one, tmp_path / "first.safetensors")
    (folder,) = RunDirectory(one).encodings.iterdir()
    with (
        locked(folder, doing="encoded"),
        pytest.raises(UserError, match="is being encoded by another process"),
    ):
        mine_run(one, tmp_path / "second.safetensors")
    mine_run(one, tmp_path / "second.safetensors")


def test_models_of_different_data_are_judged_together_only_on_data_that_are_named(runs, tmp_path):
    one, two = runs
    other = write_precomp(tmp_path / "other", seed=3)
    recipe = load_recipe(two / "config.toml")
    save_recipe(replace(recipe, data=str(other)), two / "config.toml")
    with pytest.raises(UserError, match="name the data set for all of them with --data"):
        evaluate_runs([one, two])
    assert len(evaluate_runs([one, two], data=other)) == 3
