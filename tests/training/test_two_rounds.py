"""The stages of a recipe, what it leaves out, and models and data from elsewhere."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from aoq.config import LossConfig
from aoq.data.collate import Collator
from aoq.data.splits import open_dataset
from aoq.errors import UserError
from aoq.runs.checkpoint import load_own_model, load_run, load_weights, save_weights
from aoq.runs.directory import RunDirectory
from aoq.runs.judge import evaluate_run
from aoq.runs.mine import mine_run
from aoq.training.inputs import TrainingData, open_training_data
from aoq.training.two_rounds import run_recipe, train_round
from aoq.types import Encoding
from tests.training.cases import assert_same_weights, small_recipe, weights, with_round_two


def test_the_online_baseline_is_round_one_alone(tmp_path, precomp):
    recipe = replace(small_recipe(precomp), rounds="one")
    result = run_recipe(tmp_path / "run", recipe)
    assert result["split"] == "test"
    assert not (tmp_path / "run" / "round-two").exists()
    assert not RunDirectory(tmp_path / "run").candidates.exists()
    both = small_recipe(precomp)
    run_recipe(tmp_path / "both", both)
    assert_same_weights(tmp_path / "run" / "round-one", tmp_path / "both" / "round-one")


def test_with_a_teacher_s_lists_there_is_no_round_one(tmp_path, precomp):
    recipe = small_recipe(precomp)
    run_recipe(tmp_path / "teacher", recipe)
    lists = RunDirectory(tmp_path / "teacher").candidates
    student = replace(
        recipe, candidates=str(lists), model=replace(recipe.model, name="bfan", focal="equal")
    )
    run_recipe(tmp_path / "student", student)
    assert not (tmp_path / "student" / "round-one").exists()
    assert (tmp_path / "student" / "round-two" / "model.safetensors").is_file()
    own = replace(recipe, candidates=str(lists))
    run_recipe(tmp_path / "own", own)
    assert_same_weights(tmp_path / "own" / "round-two", tmp_path / "teacher" / "round-two")


def test_fine_tuning_starts_from_the_best_weights_of_round_one(tmp_path, precomp):
    recipe = with_round_two(small_recipe(precomp), start_from="round_one", learning_rate=1e-12)
    run_recipe(tmp_path / "run", recipe)
    one = load_run(tmp_path / "run" / "round-one").model.state_dict()
    two = load_run(tmp_path / "run" / "round-two").model.state_dict()
    for name, value in one.items():
        if "running" not in name and "tracked" not in name:
            torch.testing.assert_close(two[name], value, atol=1e-6, rtol=0)
    data = open_training_data(recipe)
    with pytest.raises(UserError, match="--start"):
        train_round(
            tmp_path / "alone",
            recipe,
            data,
            which="two",
            candidates=RunDirectory(tmp_path / "run").candidates,
        )


def test_parts_of_a_step_add_up_to_its_gradient(tmp_path, precomp):
    """Without in-batch negatives, the parts know all that the whole knows."""
    recipe = small_recipe(precomp)
    recipe = replace(recipe, model=replace(recipe.model, name="vse"))
    data = open_training_data(recipe)
    train_round(tmp_path / "teacher", recipe, data, which="one")
    mine_run(tmp_path / "teacher", tmp_path / "lists.safetensors")
    final = []
    for parts in (1, 3):
        settings = {"loss": LossConfig(name="only_offline"), "accumulate": parts, "epochs": 1}
        train_round(
            tmp_path / f"{parts}",
            with_round_two(recipe, **settings),
            data,
            which="two",
            candidates=tmp_path / "lists.safetensors",
        )
        final.append(weights(tmp_path / f"{parts}"))
    for name, value in final[0].items():
        torch.testing.assert_close(final[1][name], value, atol=1e-5, rtol=1e-4)


def test_a_run_of_one_s_own_model_can_only_be_opened_by_who_brings_it(tmp_path, precomp):
    recipe = replace(small_recipe(precomp), rounds="one")
    data = open_training_data(recipe)
    build = data.builder(recipe.model)
    run_recipe(tmp_path / "run", recipe, data=data, make_model=build)
    with pytest.raises(UserError, match="make_model"):
        load_run(tmp_path / "run" / "round-one")
    model = load_own_model(tmp_path / "run" / "round-one", build)
    assert not model.training
    plain = run_recipe(tmp_path / "plain", recipe)
    own = run_recipe(tmp_path / "run", recipe, data=data, make_model=build)
    assert own["rsum"] == plain["rsum"]


def test_data_that_no_model_of_the_library_reads_ask_for_one_that_does(tmp_path, precomp):
    recipe = small_recipe(precomp)
    data = open_training_data(recipe)
    bare = TrainingData(
        train=Collator(data.train.dataset, lambda caption: [1, 2]),
        dev=Collator(data.dev.dataset, lambda caption: [1, 2]),
    )
    with pytest.raises(UserError, match="make_model"):
        run_recipe(tmp_path / "run", recipe, data=bare)


def test_weights_that_are_shared_or_turned_are_kept(tmp_path):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(4, 3)
            self.output = nn.Linear(3, 4, bias=False)
            self.output.weight = self.words.weight
            self.turned = nn.Parameter(torch.randn(2, 3).T)

    first, second = Tied(), Tied()
    save_weights(tmp_path / "model.safetensors", first, feature_width=None)
    load_weights(tmp_path / "model.safetensors", second)
    for name, value in first.state_dict().items():
        assert torch.equal(second.state_dict()[name], value)
    assert second.output.weight is second.words.weight


def test_folders_and_files_may_be_named_by_text(tmp_path, precomp):
    recipe = replace(small_recipe(precomp), rounds="one")
    data = open_training_data(recipe)
    run, last = str(tmp_path / "run"), str(tmp_path / "run" / "round-one")
    result = run_recipe(run, recipe)
    assert evaluate_run(run, data=str(precomp)).rsum == pytest.approx(result["rsum"])
    expected = load_run(tmp_path / "run" / "round-one").model.state_dict()
    own = load_own_model(last, data.builder(recipe.model)).state_dict()
    for state in (load_run(last).model.state_dict(), own):
        assert all(torch.equal(state[name], value) for name, value in expected.items())
    lists = mine_run(run, str(tmp_path / "lists.safetensors"))
    again = mine_run([last], tmp_path / "again", proposals=str(tmp_path / "lists.safetensors"))
    np.testing.assert_array_equal(again.i2t, lists.i2t)
    opened = open_dataset(str(precomp), "train")
    assert opened.fingerprint == data.train.dataset.fingerprint


def test_scores_are_float32_where_encoders_are_not(tmp_path, precomp):
    seen = set()

    class Careless(nn.Module):
        """Scores in whatever precision it is given."""

        def __init__(self):
            super().__init__()
            self.images, self.words = nn.Linear(6, 4), nn.Embedding(40, 4)

        def encode_images(self, regions):
            return Encoding(self.images(regions.mean(dim=1)))

        def encode_texts(self, texts):
            return Encoding(self.images.weight.new_zeros(1) + self.words(texts.tokens).mean(dim=1))

        def score_matrix(self, images, texts):
            matrix = images.vectors @ texts.vectors.T
            seen.add(matrix.dtype)
            return matrix

        def score_pairs(self, images, texts):
            return (images.vectors * texts.vectors).sum(dim=1)

    recipe = small_recipe(precomp)
    recipe = replace(recipe, round_one=replace(recipe.round_one, epochs=1, precision="bfloat16"))
    recipe = replace(recipe, model=replace(recipe.model, name="own"))
    train_round(
        tmp_path / "run", recipe, open_training_data(recipe), which="one", make_model=Careless
    )
    assert seen == {torch.float32}
