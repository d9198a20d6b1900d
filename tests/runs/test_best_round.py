"""Which round of a run is used, in constructed run folders."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from aoq.config import RoundConfig
from aoq.errors import UserError
from aoq.recipes import save_recipe
from aoq.runs.best_round import best_round
from aoq.runs.directory import ROUNDS, RunDirectory
from aoq.storage import append_json_line, write_json
from tests.training.cases import small_recipe

METRICS = ("i2t_r1", "i2t_r5", "i2t_r10", "t2i_r1", "t2i_r5", "t2i_r10")


def write_round(folder, recipe, which, validations, *, dev="dev"):
    """A trained round; `validations` are (epoch, rsum, best)."""
    run = RunDirectory(folder)
    folder.mkdir(parents=True)
    save_recipe(recipe, run.config)
    run.model.write_bytes(b"")
    write_json(run.origin, {"round": which, "dev": dev})
    for epoch, rsum, best in validations:
        figures = dict.fromkeys(METRICS, rsum / 6)
        line = {"event": "validation", "time": 0.0, "epoch": epoch, "best": best, "rsum": rsum}
        append_json_line(run.events, line | figures)


def write_run(path, one, two, *, recipe=None, **options):
    recipe = recipe or small_recipe("data")
    path.mkdir()
    save_recipe(recipe, RunDirectory(path).config)
    write_round(path / ROUNDS["one"], recipe, "one", [(1, one, True)])
    if two is not None:
        write_round(path / ROUNDS["two"], recipe, "two", [(1, two, True)], **options)
    return path


@pytest.mark.parametrize(
    ("one", "two", "used"), [(268.1, 194.3, "one"), (194.3, 268.1, "two"), (200, 200, "two")]
)
def test_the_better_round_on_dev_is_used_and_the_last_where_both_are_equal(
    tmp_path, one, two, used
):
    choice = best_round(write_run(tmp_path / "run", one, two))
    assert (choice.used, choice.best) == (used, used)
    assert choice.path == tmp_path / "run" / ROUNDS[used]


def test_one_line_shows_both_figures_and_how_to_take_the_other(tmp_path):
    run = write_run(tmp_path / "run", 268.1, 194.3)
    assert best_round(run).sentence == (
        f"{run}: round one is used (dev rsum 268.1; round two 194.3); --round two takes the other"
    )
    assert "(dev rsum 194.3; round one 268.1)" in best_round(run, "two").sentence
    assert best_round(run / "round-two").sentence == ""


def test_a_round_that_is_asked_for_is_used_and_the_better_one_stays_known(tmp_path):
    choice = best_round(write_run(tmp_path / "run", 268.1, 194.3), "two")
    assert (choice.used, choice.best) == ("two", "one")


def test_the_validation_that_chose_the_weights_counts_and_not_the_last(tmp_path):
    run = write_run(tmp_path / "run", 250.0, 260.0)
    later = {"event": "validation", "time": 0.0, "epoch": 2, "best": False, "rsum": 100.0}
    append_json_line(RunDirectory(run / "round-two").events, later)
    assert best_round(run).used == "two"


def test_a_warm_up_never_counts_as_best(tmp_path):
    recipe = small_recipe("data")
    warm = replace(recipe, round_two=replace(recipe.round_two, warmup_epochs=1))
    choice = best_round(write_run(tmp_path / "run", 100.0, 300.0, recipe=warm))
    assert choice.used == "one"
    assert "round two has none after its warm-up" in choice.sentence


def test_a_run_without_round_two_yet_uses_round_one_without_a_choice(tmp_path):
    choice = best_round(write_run(tmp_path / "run", 200.0, None))
    assert (choice.used, choice.best, choice.sentence) == ("one", None, "")
    with pytest.raises(UserError, match="no trained round two"):
        best_round(choice.run, "two")


def test_lists_of_a_teacher_leave_round_two_alone(tmp_path):
    write_round(tmp_path / "run" / "round-two", small_recipe("data"), "two", [(1, 9.0, True)])
    assert best_round(tmp_path / "run").used == "two"


@pytest.mark.parametrize("change", [{"select_by": "r1+r5"}, {"validation_texts": 5}])
def test_rounds_that_are_validated_differently_are_not_compared(tmp_path, change):
    recipe = small_recipe("data")
    settings: RoundConfig = replace(recipe.round_two, **change)
    run = write_run(tmp_path / "run", 268.0, 194.0, recipe=replace(recipe, round_two=settings))
    choice = best_round(run)
    assert (choice.used, choice.best) == ("two", None)
    assert next(iter(change)) in choice.sentence


def test_rounds_of_different_dev_sets_are_not_compared(tmp_path):
    choice = best_round(write_run(tmp_path / "run", 268.0, 194.0, dev="another"))
    assert (choice.used, choice.best) == ("two", None)
    assert "different dev sets" in choice.sentence


def test_a_lost_log_is_replaced_by_the_state_of_the_trainer(tmp_path):
    run = write_run(tmp_path / "run", 268.0, 194.0)
    one = RunDirectory(run / "round-one")
    one.events.unlink()
    torch.save({"state": {"best": 268.0}}, one.trainer)
    assert best_round(run).dev == {"one": 268.0, "two": pytest.approx(194.0)}
    assert best_round(run).used == "one"


def test_a_round_whose_figure_is_lost_is_said_to_have_none_and_the_run_still_opens(tmp_path):
    run = write_run(tmp_path / "run", 268.0, 194.0)
    for name in ROUNDS.values():
        RunDirectory(run / name).events.unlink()
    choice = best_round(run)
    assert (choice.used, choice.best) == ("two", None)
    assert "neither round has a validation on record" in choice.sentence


def test_a_single_round_has_no_other_to_ask_for(tmp_path):
    run = write_run(tmp_path / "run", 268.0, 194.0) / "round-one"
    assert best_round(run, "one").path == run
    with pytest.raises(UserError, match="leave --round out"):
        best_round(run, "two")
