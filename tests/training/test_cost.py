"""What a recipe will cost: its stages, and the arithmetic from a slice to the whole."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aoq.errors import UserError
from aoq.mining.toplists import TopLists
from aoq.models import vse
from aoq.runs.mine import mine_run
from aoq.training import cost as cost_module
from aoq.training.cost import MiningCost, estimate_cost
from aoq.training.inputs import open_training_data
from aoq.training.two_rounds import train_round
from tests.conftest import write_precomp
from tests.training.cases import GROUPED, small_recipe, with_round_two


@pytest.mark.parametrize(("change", "stages"), [("online", 1), ("", 2), ("candidates", 1)])
def test_an_estimate_has_the_stages_of_its_recipe(tmp_path, precomp, change, stages):
    recipe = small_recipe(precomp)
    if change == "online":
        recipe = replace(recipe, rounds="one")
    if change == "candidates":
        train_round(tmp_path / "run", recipe, open_training_data(recipe), which="one")
        mine_run(tmp_path / "run", tmp_path / "lists.safetensors")
        recipe = replace(recipe, candidates=str(tmp_path / "lists.safetensors"))
    cost = estimate_cost(recipe)
    names = [name for name, _ in cost.rows()]
    kept = 4 * 4 * cost.parameters * stages
    assert (cost.disk_bytes > kept) == (change == "")  # encodings and lists
    assert cost.disk_bytes >= kept
    assert sum(name.startswith("round") for name in names) == stages
    assert ("mining" in names) == (change == "")
    parts = replace(recipe, round_one=replace(recipe.round_one, accumulate=8))
    estimate_cost(parts)


def test_grouped_batches_are_mined_for_and_cost_steps_without_offline_negatives(
    precomp, monkeypatch
):
    taken, real = [], cost_module.make_batches

    def make_batches(*args, **options):
        batches = real(*args, **options)
        taken.extend(batches)
        return batches

    monkeypatch.setattr(cost_module, "make_batches", make_batches)
    cost = estimate_cost(with_round_two(small_recipe(precomp), **GROUPED))
    assert cost.mining is not None
    assert cost.round_two.steps == cost.round_one.steps
    assert taken
    assert all(batch.offline is None and batch.partners is None for batch in taken)


@pytest.mark.parametrize("is_given", [False, True])
def test_mining_while_a_round_trains_is_counted_as_often_as_it_happens(
    tmp_path, precomp, monkeypatch, is_given
):
    monkeypatch.setattr(
        cost_module, "_time_mining", lambda *_: MiningCost(7.0, disk_bytes=1000, memory_bytes=1)
    )
    recipe = with_round_two(small_recipe(precomp), epochs=5, warmup_epochs=1, remine_every=1)
    if is_given:
        train_round(tmp_path / "run", recipe, open_training_data(recipe), which="one")
        mine_run(tmp_path / "run", tmp_path / "lists.safetensors")
        recipe = replace(recipe, candidates=str(tmp_path / "lists.safetensors"))
    cost = estimate_cost(recipe)
    assert (cost.mining is None) == is_given
    assert (cost.remining.times, cost.remining.seconds) == (3, 21.0)  # not before the first of four
    assert dict(cost.rows())["mining while it trains"] == "3 times: about 21 s"


def test_an_estimate_refuses_lists_that_a_run_would(tmp_path, precomp):
    recipe = replace(small_recipe(precomp), candidates=str(tmp_path / "lists.safetensors"))
    with pytest.raises(UserError, match=r"lists\.safetensors"):
        estimate_cost(recipe)


def test_an_estimate_warns_of_rules_by_the_whole_set_and_not_by_the_slice_it_mines(
    precomp, monkeypatch, capsys
):
    monkeypatch.setattr(cost_module, "_SLICE", 4)
    rules = {"skip_first": 5, "score_share": 0.9, "equal_captions": True, "near_captions": 0.8}
    recipe = small_recipe(precomp)
    cost = estimate_cost(replace(recipe, mining=replace(recipe.mining, **rules)))
    assert cost.mining.seconds > 0
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
    monkeypatch.setattr(cost_module.time, "perf_counter", lambda: clock)
    cost = estimate_cost(recipe)
    assert cost.mining.seconds == pytest.approx(600 * 3000 * 1e-6)


def test_the_memory_of_a_recipe_holds_the_lists_that_are_filled(tmp_path, monkeypatch):
    data = write_precomp(tmp_path / "precomp", images=200)
    recipe = small_recipe(data)
    monkeypatch.setattr(cost_module, "_peak_memory", lambda: 0)
    width, positives = recipe.model.joint_width, open_training_data(recipe).train.dataset.positives
    encodings = 4 * width * (positives.n_images + positives.n_texts)
    lists = 8 * (200 * TopLists.capacity(300) + 1000 * TopLists.capacity(60))
    assert estimate_cost(recipe).mining.memory_bytes == encodings + lists


@pytest.mark.parametrize(("load", "is_reported"), [(0.2, False), (9.0, True)])
def test_other_work_on_the_machine_is_reported(precomp, monkeypatch, capsys, load, is_reported):
    monkeypatch.setattr("os.getloadavg", lambda: (load, load, load))
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    estimate_cost(replace(small_recipe(precomp), rounds="one"))
    told = " ".join(capsys.readouterr().err.split())
    assert ("load 9.0 on 2 cores" in told) == is_reported
