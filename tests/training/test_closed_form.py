"""A model in closed form is a run like any other: judged, continued, mined with, never stepped."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from aoq.errors import UserError
from aoq.mining.candidates import CandidateLists
from aoq.models.cca import CCA
from aoq.retrieval.build import build_index
from aoq.retrieval.matcher import Matcher
from aoq.runs.checkpoint import load_run
from aoq.runs.directory import RunDirectory
from aoq.runs.judge import evaluate_run
from aoq.runs.mine import mine_run
from aoq.runs.summary import RunSummary
from aoq.training.cost import estimate_cost
from aoq.training.inputs import open_training_data
from aoq.training.two_rounds import run_recipe, train_round
from tests.kills import KilledError
from tests.training.cases import (
    assert_same_weights,
    cca_recipe,
    events,
    small_recipe,
    validations,
    weights,
)


def test_each_epoch_has_its_ridge_and_the_best_on_dev_is_kept(tmp_path, precomp, monkeypatch):
    ridges, kept = [], []
    real = CCA.fit

    def told(self, pairs, *, epoch):
        real(self, pairs, epoch=epoch)
        ridges.append(self.config.ridge * self.config.ridge_factor**epoch)
        kept.append(self.image_map.detach().clone())

    monkeypatch.setattr(CCA, "fit", told)
    recipe = cca_recipe(precomp)
    run_recipe(tmp_path / "run", recipe)
    run = tmp_path / "run" / "round-one"
    assert ridges == [0.1, 0.2, 0.4]
    figures = [line["rsum"] for line in validations(run)]
    best = int(np.argmax(figures))
    assert [line["best"] for line in validations(run)][best]
    assert weights(run)["image_map"].equal(kept[best])
    assert RunSummary.read(tmp_path / "run").stage == "finished"
    assert not events(run, "steps")


def test_a_killed_computation_is_repeated(tmp_path, precomp, monkeypatch):
    recipe = cca_recipe(precomp)
    data = open_training_data(recipe)
    train_round(tmp_path / "whole", recipe, data, which="one")
    real, calls = CCA.fit, 0

    def dying(self, pairs, *, epoch):
        nonlocal calls
        calls += 1
        if calls == 2:
            next(iter(pairs))
            raise KilledError
        real(self, pairs, epoch=epoch)

    monkeypatch.setattr(CCA, "fit", dying)
    with pytest.raises(KilledError):
        train_round(tmp_path / "killed", recipe, data, which="one")
    train_round(tmp_path / "killed", recipe, data, which="one")
    assert calls == 4
    assert_same_weights(tmp_path / "whole", tmp_path / "killed")
    assert validations(tmp_path / "whole") == validations(tmp_path / "killed")


def test_a_finished_run_is_left_as_it_is_and_patience_ends_it(tmp_path, precomp):
    recipe = cca_recipe(precomp, patience=1)
    recipe = replace(recipe, model=replace(recipe.model, ridge_factor=1.0))
    result = run_recipe(tmp_path / "run", recipe)
    assert len(validations(tmp_path / "run" / "round-one")) == 2  # the second is no better
    assert run_recipe(tmp_path / "run", recipe) == result


def test_a_run_is_judged_mined_with_indexed_and_searched(tmp_path, precomp):
    recipe = cca_recipe(precomp)
    run_recipe(tmp_path / "run", recipe)
    assert evaluate_run(tmp_path / "run").rsum > 0
    assert isinstance(load_run(tmp_path / "run").model, CCA)
    lists = tmp_path / "lists.safetensors"
    mine_run(tmp_path / "run", lists)
    assert CandidateLists.load(lists).i2t.shape[0] == 12
    build_index(tmp_path / "run")
    assert len(Matcher.load(tmp_path / "run").search("red ball", top=3).hits) == 3


def test_cca_is_a_teacher_of_other_models(tmp_path, precomp):
    run_recipe(tmp_path / "teacher", cca_recipe(precomp))
    lists = tmp_path / "lists.safetensors"
    mine_run(tmp_path / "teacher", lists)
    student = small_recipe(precomp, candidates=str(lists))
    student = replace(student, model=replace(student.model, name="bow", head_width=5))
    assert run_recipe(tmp_path / "student", student)["rsum"] > 0


def test_what_needs_steps_is_refused(tmp_path, precomp):
    with pytest.raises(UserError, match="no use for mined negatives; set rounds to one"):
        replace(cca_recipe(precomp), rounds="both")
    with pytest.raises(UserError, match="ema is for steps"):
        run_recipe(tmp_path / "run", cca_recipe(precomp, ema=0.9))
    run_recipe(tmp_path / "teacher", cca_recipe(precomp))
    lists = tmp_path / "lists.safetensors"
    mine_run(tmp_path / "teacher", lists)
    recipe = cca_recipe(precomp)
    with pytest.raises(UserError, match="the loss adap_off_quin are for steps"):
        train_round(
            tmp_path / "run", recipe, open_training_data(recipe), which="two", candidates=lists
        )
    assert not RunDirectory(tmp_path / "run").config.exists()


def test_a_plan_counts_computations_and_leaves_nothing(tmp_path, precomp):
    cost = estimate_cost(cca_recipe(precomp))
    assert cost.round_one is not None
    assert cost.round_one.steps == 3
    assert cost.round_one.seconds > 0
    assert cost.mining is None
    assert not (tmp_path / "run").exists()
