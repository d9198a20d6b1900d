"""Which recipe `aoq run` takes without one, and the command that it prints for it."""

from __future__ import annotations

import shlex
from dataclasses import replace

import numpy as np
import pytest

import aoq.training.choice as choice_module
from aoq.cli.base import app
from aoq.config import Recipe
from aoq.recipes import load_recipe, shipped_recipes
from aoq.runs.directory import RunDirectory
from aoq.training.choice import Choice, choose_recipe
from aoq.types import Positives
from tests.commands import aoq, assert_refused


class Set:
    """A training split of which the number of pairs matters, and how many captions there are."""

    def __init__(self, pairs: int, captions: int | None = None) -> None:
        numbers = np.arange(pairs)
        self.positives = Positives.from_pairs(
            np.stack([numbers, numbers], axis=1), n_images=pairs, n_texts=pairs
        )
        self.captions = [f"caption {number % (captions or pairs)}" for number in range(pairs)]


@pytest.mark.parametrize(
    ("pairs", "device", "image", "recipe"),
    [
        (4_000, "cpu", "", "cca"),
        (4_000, "cuda", "", "cca"),
        (30_000, "cpu", "", "vse-small+fall-back"),
        (30_000, "cuda", "", "vse-small+fall-back"),
        (145_000, "cuda", "", "vsrn-f30k"),
        (145_000, "cpu", "", "bow-small"),
        (566_000, "cuda", "", "vsrn-coco"),
        (30_000, "cpu", "some/clip", "towers"),
    ],
)
def test_the_choice_follows_pairs_towers_and_the_gpu(monkeypatch, pairs, device, image, recipe):
    monkeypatch.setattr(choice_module, "open_dataset", lambda data, split: Set(pairs))
    monkeypatch.setattr(choice_module, "default_device", lambda: device)
    choice = choose_recipe("data", image=image)
    assert choice.recipe == recipe
    assert choice.recipe.partition("+")[0] in shipped_recipes()
    load_recipe(choice.recipe)
    assert (image or f"{pairs:,}") in choice.reason


def test_without_a_gpu_images_that_share_a_caption_are_learned_by_a_softmax(monkeypatch):
    monkeypatch.setattr(choice_module, "open_dataset", lambda data, split: Set(30_000, 500))
    monkeypatch.setattr(choice_module, "default_device", lambda: "cpu")
    choice = choose_recipe("data")
    assert "0.25 other captions say the same" in choice.reason
    assert load_recipe(choice.recipe).round_one.loss.name == "infonce"


@pytest.mark.parametrize("pairs", [30_000, 145_000])
def test_many_images_that_share_a_caption_are_not_learned_by_their_hardest_negatives(
    monkeypatch, pairs
):
    monkeypatch.setattr(choice_module, "open_dataset", lambda data, split: Set(pairs, 500))
    monkeypatch.setattr(choice_module, "default_device", lambda: "cuda")
    choice = choose_recipe("data")
    assert "0.25 other captions say the same" in choice.reason
    recipe = load_recipe(choice.recipe)
    assert recipe.round_one.loss.name == "infonce"
    assert recipe.round_two.loss.weigh_matches
    assert recipe.mining.equal_captions


def parsed(words: list[str]) -> Recipe:
    """The settings that a command line gives."""
    _, bound, _ = app.parse_args(["run", *words], exit_on_error=False, print_error=False)
    return bound.kwargs["settings"]


def test_the_printed_command_gives_the_same_settings():
    usual = load_recipe("bow-small")
    other = replace(
        usual,
        data="my data",
        seed=3,
        model=replace(usual.model, standardise=True, temperature=2.5),
        round_one=replace(usual.round_one, augment=False, patience=4, learning_rate=1e-4),
    )
    words = [*Choice("bow-small", "").arguments(other), "--out", "runs/a"]
    assert parsed(shlex.split(shlex.join(words))) == other


def test_what_a_recipe_sets_can_be_unset_by_the_command():
    usual = load_recipe("vse-small")
    other = replace(usual, round_one=replace(usual.round_one, ema=None))
    assert parsed([*Choice("vse-small", "").arguments(other), "--out", "runs/a"]) == other


def test_a_run_without_a_recipe_says_what_it_runs(tmp_path, precomp):
    out = tmp_path / "run"
    done = aoq("run", "--data", precomp, "--out", out, "--model.joint-width", 3)
    assert done.returncode == 0, done.stderr
    assert "60 pairs of photos and captions" in done.stderr
    (line,) = (line for line in done.stderr.splitlines() if "the same: " in line)
    words = shlex.split(line.partition("the same: ")[2])
    assert words[:3] == ["aoq", "run", "cca"]
    recipe = load_recipe(RunDirectory(out).config)
    assert (recipe.model.name, recipe.model.joint_width) == ("cca", 3)
    assert replace(parsed(words[2:]).resolved(), min_word_count=1) == recipe


def test_a_run_of_nothing_is_refused(tmp_path):
    assert_refused(aoq("run", "--out", tmp_path / "run"), "neither a recipe nor a data set")
