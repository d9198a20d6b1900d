"""Rounds: same seed, same numbers; continued equals uninterrupted; what bad input gets."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from aoq.config import (
    LossConfig,
    as_published,
)
from aoq.errors import UserError
from aoq.manifest import record
from aoq.mining.candidates import CandidateLists
from aoq.recipes import save_recipe
from aoq.runs.checkpoint import load_run
from aoq.runs.directory import RunDirectory
from aoq.runs.judge import evaluate_run, evaluate_runs, stored_result
from aoq.runs.mine import mine_run
from aoq.training import step as step_module
from aoq.training.inputs import open_training_data
from aoq.training.two_rounds import run_recipe, train_round
from tests.conftest import write_precomp
from tests.kills import KilledError
from tests.training.cases import (
    GROUPED,
    ROUND,
    assert_same_weights,
    small_recipe,
    validations,
    weights,
    with_round_two,
)


def test_a_recipe_runs_both_rounds_and_the_same_seed_gives_the_same_numbers(tmp_path, precomp):
    recipe = small_recipe(precomp)
    first = run_recipe(tmp_path / "a", recipe)
    second = run_recipe(tmp_path / "b", recipe)
    assert first == second
    assert_same_weights(tmp_path / "a" / "round-two", tmp_path / "b" / "round-two")
    assert validations(tmp_path / "a" / "round-two") == validations(tmp_path / "b" / "round-two")
    other = run_recipe(tmp_path / "c", replace(recipe, seed=1))
    assert other != first


def test_running_a_finished_recipe_again_does_nothing(tmp_path, precomp):
    recipe = small_recipe(precomp)
    result = run_recipe(tmp_path / "run", recipe)
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("model.*")}
    assert run_recipe(tmp_path / "run", recipe) == result
    assert files == {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("model.*")}


@pytest.mark.parametrize("calls", [1, 4, 6, 11])
@pytest.mark.parametrize(
    ("which", "changes"),
    [("one", {}), ("two", {}), ("two", GROUPED)],
    ids=["one", "two", "grouped"],
)
def test_a_killed_round_ends_like_one_that_was_not(
    tmp_path, precomp, monkeypatch, calls, which, changes
):
    recipe = with_round_two(small_recipe(precomp), **changes)
    data = open_training_data(recipe)
    train_round(tmp_path / "teacher", recipe, data, which="one")
    lists = tmp_path / "lists.safetensors"
    mine_run(tmp_path / "teacher", lists)
    train_round(tmp_path / "whole", recipe, data, which=which, candidates=lists)

    real, count = step_module.step_loss, 0

    def dying(*args, **options):
        nonlocal count
        count += 1
        if count == calls:
            raise KilledError
        return real(*args, **options)

    monkeypatch.setattr(step_module, "step_loss", dying)
    with pytest.raises(KilledError):
        train_round(tmp_path / "killed", recipe, data, which=which, candidates=lists)
    train_round(tmp_path / "killed", recipe, data, which=which, candidates=lists)
    assert_same_weights(tmp_path / "whole", tmp_path / "killed")
    assert validations(tmp_path / "whole") == validations(tmp_path / "killed")


def test_round_two_starts_from_the_weights_of_round_one_s_start_not_its_end(tmp_path, precomp):
    """From scratch: with no epochs in between, both rounds hold the same initial weights."""
    recipe = small_recipe(precomp)
    data = open_training_data(recipe)
    online = replace(recipe, round_two=replace(ROUND, loss=LossConfig(name="online")))
    train_round(tmp_path / "one", recipe, data, which="one")
    train_round(tmp_path / "two", online, data, which="two")
    assert_same_weights(tmp_path / "one", tmp_path / "two")


def test_the_best_epoch_on_dev_is_the_one_that_is_kept(tmp_path, precomp):
    recipe = small_recipe(precomp)
    train_round(tmp_path / "run", recipe, open_training_data(recipe), which="one")
    best = max(line["rsum"] for line in validations(tmp_path / "run"))
    assert evaluate_run(tmp_path / "run", split="dev").rsum == pytest.approx(best, abs=1e-3)
    assert stored_result(tmp_path / "run", split="dev")["rsum"] == pytest.approx(best, abs=1e-3)


def test_official_behaviour_trains_on_the_first_dev_captions_with_coupled_draws(tmp_path, precomp):
    recipe = as_published(small_recipe(precomp))
    assert math.isfinite(run_recipe(tmp_path / "run", recipe)["rsum"])


def test_a_run_started_with_other_settings_is_not_continued(tmp_path, precomp):
    recipe = small_recipe(precomp)
    data = open_training_data(recipe)
    train_round(tmp_path / "run", recipe, data, which="one")
    with pytest.raises(UserError, match="other settings"):
        train_round(tmp_path / "run", replace(recipe, seed=5), data, which="one")


def test_a_folder_that_is_not_a_run_is_left_alone(tmp_path, precomp):
    recipe = small_recipe(precomp)
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "dear.txt").write_text("dear")
    with pytest.raises(UserError, match="aoq did not write it as its run"):
        train_round(tmp_path / "letters", recipe, open_training_data(recipe), which="one")
    assert [path.name for path in (tmp_path / "letters").iterdir()] == ["dear.txt"]


@pytest.mark.parametrize(
    ("changes", "what"), [({}, "loss adap_off_quin"), (GROUPED, "grouped batches")]
)
def test_a_round_without_the_lists_it_draws_from_is_refused_before_anything_is_written(
    tmp_path, precomp, changes, what
):
    recipe = with_round_two(small_recipe(precomp), **changes)
    with pytest.raises(UserError, match=rf"{what} are drawn from mined lists.* --candidates"):
        train_round(tmp_path / "run", recipe, open_training_data(recipe), which="two")
    assert not (tmp_path / "run").exists()


def test_lists_of_another_data_set_are_refused(tmp_path, precomp):
    recipe = small_recipe(precomp)
    train_round(tmp_path / "teacher", recipe, open_training_data(recipe), which="one")
    lists = tmp_path / "lists.safetensors"
    mine_run(tmp_path / "teacher", lists)
    other = small_recipe(write_precomp(tmp_path / "other", seed=1))
    with pytest.raises(UserError, match="another data set"):
        train_round(
            tmp_path / "run", other, open_training_data(other), which="two", candidates=lists
        )
    assert not (tmp_path / "run").exists()


def test_features_of_another_width_are_refused_by_a_trained_model(tmp_path, precomp):
    recipe = small_recipe(precomp)
    train_round(tmp_path / "run", recipe, open_training_data(recipe), which="one")
    other = write_precomp(tmp_path / "other")
    np.save(other / "test_ims.npy", np.ones((6, 4, 9), np.float32))
    with pytest.raises(UserError, match="width 9; the model was trained on width 6"):
        evaluate_run(tmp_path / "run", data=other)


def test_a_loss_that_is_no_longer_finite_stops_the_round_and_keeps_the_last_state(
    tmp_path, precomp, monkeypatch
):
    recipe = small_recipe(precomp)
    data = open_training_data(recipe)
    real, count = step_module.step_loss, 0

    def broken(*args, **options):
        nonlocal count
        count += 1
        outcome = real(*args, **options)
        if count == 3:
            outcome.loss.terms["i2t_online"] *= float("nan")
        return outcome

    monkeypatch.setattr(step_module, "step_loss", broken)
    with pytest.raises(UserError, match="epoch 1, step 3"):
        train_round(tmp_path / "run", recipe, data, which="one")
    assert RunDirectory(tmp_path / "run").trainer.is_file()


def test_mined_lists_know_their_teacher_and_their_data(tmp_path, precomp):
    recipe = small_recipe(precomp)
    data = open_training_data(recipe)
    train_round(tmp_path / "teacher", recipe, data, which="one")
    mine_run(tmp_path / "teacher", tmp_path / "lists.safetensors")
    lists = CandidateLists.load(tmp_path / "lists.safetensors")
    assert lists.provenance.data == data.train.dataset.fingerprint
    assert len(lists.provenance.teacher) == 64


def test_a_folder_of_round_one_is_not_continued_as_round_two(tmp_path, precomp):
    recipe = small_recipe(precomp)
    data = open_training_data(recipe)
    train_round(tmp_path / "run", recipe, data, which="one")
    mine_run(tmp_path / "run", tmp_path / "lists.safetensors")
    with pytest.raises(UserError, match="another round and another candidates"):
        train_round(
            tmp_path / "run",
            recipe,
            data,
            which="two",
            candidates=tmp_path / "lists.safetensors",
        )


def test_a_run_is_not_continued_on_data_that_has_changed(tmp_path, precomp):
    recipe = small_recipe(precomp)
    train_round(tmp_path / "run", recipe, open_training_data(recipe), which="one")
    words = (tmp_path / "run" / "vocabulary.json").read_bytes()
    captions = precomp / "train_caps.txt"
    captions.write_text(captions.read_text().replace("ball", "balloon"))
    with pytest.raises(UserError, match="another data"):
        train_round(tmp_path / "run", recipe, open_training_data(recipe), which="one")
    assert (tmp_path / "run" / "vocabulary.json").read_bytes() == words


def test_a_result_counts_only_for_the_model_and_the_data_it_was_measured_with(tmp_path, precomp):
    recipe = small_recipe(precomp)
    run = tmp_path / "run"
    train_round(run, recipe, open_training_data(recipe), which="one")
    evaluate_run(run, data=write_precomp(tmp_path / "other", seed=3))
    assert stored_result(run, split="test") is None
    evaluate_run(run)
    assert stored_result(run, split="test") is not None
    tensors = {name: value + 1 for name, value in weights(run).items()}
    save_file(tensors, RunDirectory(run).model, metadata={"feature_width": "6"})
    assert stored_result(run, split="test") is None


def test_validation_can_come_between_epochs_and_a_kill_does_not_change_its_choice(
    tmp_path, precomp, monkeypatch
):
    settings = replace(ROUND, validate_every=3, checkpoint_every=2)
    recipe = small_recipe(precomp, round_one=settings)
    data = open_training_data(recipe)
    train_round(tmp_path / "whole", recipe, data, which="one")
    steps = [(line["epoch"], line["step"]) for line in validations(tmp_path / "whole")]
    assert steps == [(1, 3), (1, 4), (2, 2), (2, 4), (3, 1), (3, 4)]

    real, count = step_module.step_loss, 0

    def dying(*args, **options):
        nonlocal count
        count += 1
        if count == 8:
            raise KilledError
        return real(*args, **options)

    monkeypatch.setattr(step_module, "step_loss", dying)
    with pytest.raises(KilledError):
        train_round(tmp_path / "killed", recipe, data, which="one")
    train_round(tmp_path / "killed", recipe, data, which="one")
    assert_same_weights(tmp_path / "whole", tmp_path / "killed")


def test_force_removes_a_run_but_never_what_the_new_one_reads_nor_another_folder(tmp_path, precomp):
    recipe = small_recipe(precomp)
    data = open_training_data(recipe)
    train_round(tmp_path / "run", recipe, data, which="one")
    train_round(tmp_path / "run", replace(recipe, seed=2), data, which="one", force=True)
    save_recipe(recipe, tmp_path / "config.toml")
    with pytest.raises(UserError, match="which is an input"):
        train_round(tmp_path, recipe, data, which="one", force=True)
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "dear.txt").write_text("dear")
    with pytest.raises(UserError, match="aoq did not write it as its run"):
        train_round(tmp_path / "letters", recipe, data, which="one", force=True)
    assert (tmp_path / "letters" / "dear.txt").is_file()


def test_a_model_that_gives_no_numbers_is_refused_and_never_perfect(tmp_path, precomp):
    recipe = small_recipe(precomp)
    train_round(tmp_path / "run", recipe, open_training_data(recipe), which="one")
    broken = {name: value * float("nan") for name, value in weights(tmp_path / "run").items()}
    save_file(broken, RunDirectory(tmp_path / "run").model, metadata={"feature_width": "6"})
    record(RunDirectory(tmp_path / "run").model)
    with pytest.raises(UserError, match="not finite"):
        evaluate_run(tmp_path / "run")


@pytest.mark.parametrize("name", ["model.safetensors", "vocabulary.json", "config.toml"])
def test_a_run_with_a_missing_file_says_which(tmp_path, precomp, name):
    recipe = small_recipe(precomp)
    train_round(tmp_path / "run", recipe, open_training_data(recipe), which="one")
    (tmp_path / "run" / name).unlink()
    with pytest.raises(UserError, match=name):
        load_run(tmp_path / "run")


def test_a_pickle_that_could_run_code_is_refused_as_trainer_state(tmp_path, precomp):
    recipe = small_recipe(precomp)
    data = open_training_data(recipe)
    train_round(tmp_path / "run", recipe, data, which="one")
    torch.save({"state": print}, RunDirectory(tmp_path / "run").trainer)
    record(RunDirectory(tmp_path / "run").trainer)
    with pytest.raises(UserError, match="not a trainer state"):
        train_round(tmp_path / "run", recipe, data, which="one")


@pytest.mark.parametrize("name", ["scan", "bfan", "vse"])
def test_every_model_runs_both_rounds_and_repeats_itself(tmp_path, precomp, name):
    recipe = small_recipe(precomp)
    recipe = replace(recipe, model=replace(recipe.model, name=name))
    first = run_recipe(tmp_path / "a", recipe)
    second = run_recipe(tmp_path / "b", recipe)
    assert first == second
    assert_same_weights(tmp_path / "a" / "round-two", tmp_path / "b" / "round-two")


def test_a_model_learns_from_the_lists_of_another(tmp_path, precomp):
    """SCAN and BFAN are slow to mine with; VSRN is their teacher."""
    recipe = small_recipe(precomp)
    data = open_training_data(recipe)
    train_round(tmp_path / "teacher", recipe, data, which="one")
    lists = tmp_path / "lists.safetensors"
    mine_run(tmp_path / "teacher", lists)
    student = replace(recipe, model=replace(recipe.model, name="bfan"))
    train_round(tmp_path / "student", student, data, which="two", candidates=lists)
    assert evaluate_run(tmp_path / "student").rsum > 0


def test_an_ensemble_is_judged_and_mines_like_one_model(tmp_path, precomp):
    recipe = small_recipe(precomp)
    runs = []
    for name in ("vse", "scan"):
        runs.append(tmp_path / name)
        other = replace(recipe, model=replace(recipe.model, name=name))
        train_round(runs[-1], other, open_training_data(other), which="one")
    alone = [evaluate_run(run) for run in runs]
    results = dict(evaluate_runs(runs))
    assert [results[str(run)] for run in runs] == alone
    assert results["ensemble"] not in alone
    assert evaluate_runs([runs[0], runs[0]])[-1] == ("ensemble", alone[0])
    lists = mine_run(runs, tmp_path / "lists.safetensors")
    assert lists.provenance.teacher.count("+") == 1
    assert stored_result(runs[0], split="test") == {
        **stored_result(runs[0], split="test"),
        **alone[0].as_dict(),
    }
