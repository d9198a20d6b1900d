"""Continuing a run, replacing it with force, and refusing what does not fit it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aoq.config import LossConfig
from aoq.data.vocabulary import Vocabulary
from aoq.errors import UserError
from aoq.recipes import load_recipe
from aoq.runs.directory import RunDirectory
from aoq.runs.judge import evaluate_run
from aoq.storage import locked
from aoq.training.inputs import open_training_data
from aoq.training.two_rounds import run_recipe, train_round
from tests.conftest import write_precomp
from tests.training.cases import small_recipe, with_round_two


def test_a_fine_tuned_round_is_not_continued_from_other_weights(tmp_path, precomp):
    recipe = with_round_two(small_recipe(precomp), start_from="round_one")
    run_recipe(tmp_path / "run", recipe)
    run_recipe(tmp_path / "other", replace(recipe, seed=5))
    with pytest.raises(UserError, match="started with another weights"):
        train_round(
            tmp_path / "run" / "round-two",
            recipe,
            open_training_data(recipe),
            which="two",
            candidates=RunDirectory(tmp_path / "run").candidates,
            start=tmp_path / "other" / "round-one",
        )


def test_a_round_does_not_go_on_with_other_words(tmp_path, precomp):
    """As another version of the tokenizer would give."""
    recipe = small_recipe(precomp)
    data = open_training_data(recipe)
    train_round(tmp_path / "run", recipe, data, which="one")
    other = replace(data, vocabulary=Vocabulary(data.vocabulary.words[::-1]))
    with pytest.raises(UserError, match="started with another vocabulary"):
        train_round(tmp_path / "run", recipe, other, which="one")


def test_force_looks_at_what_a_run_reads_before_it_removes_anything(tmp_path, precomp):
    recipe = small_recipe(precomp)
    run_recipe(tmp_path / "run", recipe)
    lists = tmp_path / "other" / ".." / "run" / "candidates.safetensors"
    (tmp_path / "other").mkdir()
    with pytest.raises(UserError, match="which is an input"):
        run_recipe(tmp_path / "run", replace(recipe, candidates=str(lists)), force=True)
    elsewhere = write_precomp(tmp_path / "elsewhere", seed=9)
    wrong = replace(small_recipe(elsewhere), candidates=str(lists.resolve()))
    run_recipe(tmp_path / "victim", recipe)
    with pytest.raises(UserError, match="another data set"):
        run_recipe(tmp_path / "victim", wrong, force=True)
    assert (tmp_path / "victim" / "round-two" / "model.safetensors").is_file()
    with pytest.raises(UserError, match="another data set"):
        run_recipe(tmp_path / "fresh", wrong)
    assert not (tmp_path / "fresh").exists()


def test_force_removes_nothing_for_a_run_that_cannot_be(tmp_path, precomp):
    recipe = small_recipe(precomp)
    run_recipe(tmp_path / "run", recipe)
    data = replace(open_training_data(recipe), vocabulary=None)
    with pytest.raises(UserError, match="bring a model that reads them"):
        run_recipe(tmp_path / "run", recipe, data=data, force=True)
    own = replace(recipe, model=replace(recipe.model, name="own"))
    with pytest.raises(UserError, match="built by your own program"):
        run_recipe(tmp_path / "run", own, force=True)
    round_one = tmp_path / "run" / "round-one"
    with pytest.raises(UserError, match="built by your own program"):
        train_round(round_one, own, open_training_data(recipe), which="one", force=True)
    for name in ("round-one", "round-two"):
        assert (tmp_path / "run" / name / "model.safetensors").is_file()


def test_force_does_not_take_a_run_from_who_is_training_it(tmp_path, precomp):
    recipe = small_recipe(precomp)
    run_recipe(tmp_path / "run", recipe)
    with locked(tmp_path / "run"), pytest.raises(UserError, match="by another process"):
        run_recipe(tmp_path / "run", recipe, force=True)
    assert (tmp_path / "run" / "round-two" / "model.safetensors").is_file()
    run_recipe(tmp_path / "run", recipe, force=True)


def test_harmless_changes_continue_a_run_and_others_are_named(tmp_path, precomp):
    recipe = small_recipe(precomp)
    result = run_recipe(tmp_path / "run", recipe)
    moved = precomp.rename(tmp_path / "moved")
    later = replace(
        recipe,
        data=str(moved),
        mining=replace(recipe.mining, memory="1GiB"),
        round_one=replace(recipe.round_one, log_every=3, checkpoint_every=2),
    )
    assert run_recipe(tmp_path / "run", later) == result
    other = with_round_two(later, epochs=4, loss=LossConfig(name="adap_off_quin", alpha=0.4))
    with pytest.raises(UserError, match=r"round_two\.loss\.alpha, round_two\.epochs") as error:
        run_recipe(tmp_path / "run", other)
    assert "log_every" not in str(error.value)


def configs(run):
    return [load_recipe(config) for config in sorted(run.rglob("config.toml"))]


def test_a_run_that_goes_on_knows_where_its_data_are_now(tmp_path, precomp):
    recipe = small_recipe(precomp)
    run_recipe(tmp_path / "run", recipe)
    train_round(tmp_path / "round", recipe, open_training_data(recipe), which="one")
    moved = precomp.rename(tmp_path / "moved")
    later = replace(recipe, data=str(moved))
    run_recipe(tmp_path / "run", later)
    train_round(tmp_path / "round", later, open_training_data(later), which="one")
    assert configs(tmp_path / "run") == [later] * 3
    assert configs(tmp_path / "round") == [later]
    for run in ("run", "round"):
        assert evaluate_run(tmp_path / run).rsum > 0


def test_other_data_are_refused_and_leave_no_trace_in_the_recipe(tmp_path, precomp):
    recipe = replace(small_recipe(precomp), rounds="one")
    run_recipe(tmp_path / "run", recipe)
    before = configs(tmp_path / "run")
    other = replace(recipe, data=str(write_precomp(tmp_path / "other", seed=9)))
    with pytest.raises(UserError, match="started with another data"):
        run_recipe(tmp_path / "run", other)
    assert configs(tmp_path / "run") == before


def test_a_folder_is_never_a_round_and_a_run_at_once(tmp_path, precomp):
    recipe = small_recipe(precomp)
    data = open_training_data(recipe)
    train_round(tmp_path / "round", recipe, data, which="one")
    with pytest.raises(UserError, match=r"round holds a single round, .* add --force"):
        run_recipe(tmp_path / "round", recipe)
    assert not (tmp_path / "round" / "round-one").exists()
    run_recipe(tmp_path / "run", recipe)
    with pytest.raises(UserError, match=r"a run of a whole recipe, .* add --force"):
        train_round(tmp_path / "run", recipe, data, which="one")
    assert not RunDirectory(tmp_path / "run").model.exists()
    train_round(tmp_path / "run", recipe, data, which="one", force=True)
    assert not (tmp_path / "run" / "round-two").exists()


def test_a_run_that_mines_does_not_go_on_with_given_lists_nor_the_other_way_round(
    tmp_path, precomp
):
    recipe = small_recipe(precomp)
    run_recipe(tmp_path / "mines", recipe)
    lists = RunDirectory(tmp_path / "mines").candidates
    given = replace(recipe, candidates=str(lists))
    with pytest.raises(UserError, match=r"other settings \(candidates;"):
        run_recipe(tmp_path / "mines", given)
    run_recipe(tmp_path / "given", given)
    with pytest.raises(UserError, match=r"other settings \(candidates;"):
        run_recipe(tmp_path / "given", recipe)
    moved = lists.rename(tmp_path / "moved.safetensors")
    run_recipe(tmp_path / "given", replace(recipe, candidates=str(moved)))


def test_a_round_goes_on_with_the_same_lists_whoever_names_them(tmp_path, precomp):
    recipe = small_recipe(precomp)
    run_recipe(tmp_path / "run", recipe)
    lists = RunDirectory(tmp_path / "run").candidates
    data = open_training_data(recipe)
    state = train_round(tmp_path / "two", recipe, data, which="two", candidates=lists)
    named = replace(recipe, candidates=str(lists))
    assert train_round(tmp_path / "two", named, data, which="two") == state


def test_a_finished_run_is_left_as_it_is(tmp_path, precomp):
    recipe = small_recipe(precomp)
    run_recipe(tmp_path / "run", recipe)

    def files():
        paths = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
        return {path: path.read_bytes() for path in paths}

    before = files()
    run_recipe(tmp_path / "run", recipe)
    assert files() == before


def test_a_folder_is_trained_by_one_program_at_a_time(tmp_path, precomp):
    recipe = small_recipe(precomp)
    data = open_training_data(recipe)
    train_round(tmp_path / "run", recipe, data, which="one")
    with locked(tmp_path / "run"), pytest.raises(UserError, match="by another process"):
        train_round(tmp_path / "run", recipe, data, which="one")
    train_round(tmp_path / "run", recipe, data, which="one")
