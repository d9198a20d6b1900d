"""What a recipe will cost: its stages, and the arithmetic from a slice to the whole."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aoq.errors import UserError
from aoq.mining.toplists import TopLists
from aoq.models import vse
from aoq.training import plan as plan_module
from aoq.training.inputs import open_training_data
from aoq.training.plan import make_plan
from aoq.training.trained import mine_run
from aoq.training.two_rounds import train_round
from tests.conftest import write_precomp
from tests.training.cases import small_recipe


@pytest.mark.parametrize(("change", "stages"), [("online", 1), ("", 2), ("candidates", 1)])
def test_a_plan_has_the_stages_of_its_recipe(tmp_path, precomp, change, stages):
    recipe = small_recipe(precomp)
    if change == "online":
        recipe = replace(recipe, rounds="one")
    if change == "candidates":
        train_round(tmp_path / "run", recipe, open_training_data(recipe), which="one")
        mine_run(tmp_path / "run", tmp_path / "lists.safetensors")
        recipe = replace(recipe, candidates=str(tmp_path / "lists.safetensors"))
    plan = make_plan(recipe)
    names = [name for name, _ in plan.rows()]
    kept = 4 * 4 * plan.parameters * stages
    assert (plan.disk_bytes > kept) == (change == "")  # encodings and lists
    assert plan.disk_bytes >= kept
    assert sum(name.startswith("round") for name in names) == stages
    assert ("mining" in names) == (change == "")
    parts = replace(recipe, round_one=replace(recipe.round_one, accumulate=8))
    make_plan(parts)


def test_a_plan_refuses_lists_that_a_run_would(tmp_path, precomp):
    recipe = replace(small_recipe(precomp), candidates=str(tmp_path / "lists.safetensors"))
    with pytest.raises(UserError, match=r"lists\.safetensors"):
        make_plan(recipe)


def test_a_plan_warns_of_rules_by_the_whole_set_and_not_by_the_slice_it_mines(
    precomp, monkeypatch, capsys
):
    monkeypatch.setattr(plan_module, "_SLICE", 4)
    rules = {"skip_first": 5, "score_share": 0.9, "equal_captions": True, "near_captions": 0.8}
    recipe = small_recipe(precomp)
    plan = make_plan(replace(recipe, mining=replace(recipe.mining, **rules)))
    assert plan.mining.seconds > 0
    told = " ".join(capsys.readouterr().err.split())
    assert told.count("instead of") == 2
    assert "50 texts deep instead of 300" in told
    assert "6 images deep instead of 60" in told


def test_what_is_slow_once_is_not_multiplied(tmp_path, monkeypatch):
    """A score takes a microsecond, and the first of all ten seconds: code that is compiled."""
    data = write_precomp(tmp_path / "precomp", images=600)
    recipe = small_recipe(data)
    recipe = replace(recipe, model=replace(recipe.model, name="vse"))
    clock, cold = 0.0, 10.0
    real = vse.VSE.score_matrix

    def score_matrix(self, images, texts):
        nonlocal clock, cold
        clock, cold = clock + cold + 1e-6 * len(images) * len(texts), 0.0
        return real(self, images, texts)

    monkeypatch.setattr(vse.VSE, "score_matrix", score_matrix)
    monkeypatch.setattr(plan_module.time, "perf_counter", lambda: clock)
    plan = make_plan(recipe)
    assert plan.mining.seconds == pytest.approx(600 * 3000 * 1e-6)


def test_the_memory_of_a_plan_holds_the_lists_that_are_filled(tmp_path, monkeypatch):
    data = write_precomp(tmp_path / "precomp", images=200)
    recipe = small_recipe(data)
    monkeypatch.setattr(plan_module, "_peak_memory", lambda: 0)
    width, positives = recipe.model.joint_width, open_training_data(recipe).train.dataset.positives
    encodings = 4 * width * (positives.n_images + positives.n_texts)
    lists = 8 * (200 * TopLists.capacity(300) + 1000 * TopLists.capacity(60))
    assert make_plan(recipe).mining.memory_bytes == encodings + lists


@pytest.mark.parametrize(("load", "is_told"), [(0.2, False), (9.0, True)])
def test_a_plan_tells_of_other_work_beside_it(precomp, monkeypatch, capsys, load, is_told):
    monkeypatch.setattr("os.getloadavg", lambda: (load, load, load))
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    make_plan(replace(small_recipe(precomp), rounds="one"))
    told = " ".join(capsys.readouterr().err.split())
    assert ("load 9.0 on 2 cores" in told) == is_told
