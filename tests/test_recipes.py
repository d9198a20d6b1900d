"""Recipes: shipped ones, inheritance, bad ones, and the published behaviours by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from aoq.config import LossConfig, Recipe, RoundConfig, as_published
from aoq.errors import UserError
from aoq.recipes import load_recipe, save_recipe, shipped_recipes


@pytest.mark.parametrize("name", shipped_recipes())
def test_every_shipped_recipe_loads_and_survives_being_stored(name, tmp_path):
    recipe = load_recipe(name).resolved()
    save_recipe(recipe, tmp_path / "config.toml")
    assert load_recipe(tmp_path / "config.toml") == recipe
    assert recipe.round_two.loss.needs_candidates
    assert not recipe.round_one.loss.needs_candidates


def test_the_defaults_are_those_of_the_paper():
    recipe = Recipe()
    assert recipe.round_two.loss == LossConfig(
        name="adap_off_quin", margin_online=0.2, margin_offline=0.0, alpha=0.3, beta=1.5
    )
    assert (recipe.sampling.depth_texts, recipe.sampling.depth_images) == (300, 60)
    assert recipe.round_one.learning_rate == 2e-4
    assert recipe.round_one.batch_size == 128


def test_a_recipe_that_extends_another_changes_only_what_it_states(tmp_path):
    (tmp_path / "base.toml").write_text('[round_two]\nepochs = 7\nloss.name = "off_tri"\n')
    (tmp_path / "child.toml").write_text('extends = "base"\n[round_two.loss]\nalpha = 0.5\n')
    recipe = load_recipe(tmp_path / "child.toml")
    assert recipe.round_two.epochs == 7
    assert recipe.round_two.loss == LossConfig(name="off_tri", alpha=0.5)


def test_a_table_keeps_the_defaults_of_its_round(tmp_path):
    (tmp_path / "short.toml").write_text("[round_two]\nepochs = 3\n")
    assert load_recipe(tmp_path / "short.toml").round_two.loss.name == "adap_off_quin"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("epochs = 3", "no setting 'epochs'"),
        ("[model]\nwidth = 3", "no setting 'width'"),
        ("model = 3", "expected a table"),
        ("seed = 1.5", "seed is 1.5; expected int"),
        ('[round_one.loss]\nname = "best"', "expected one of: standard, online"),
        ("[round_one]\nepochs = 0", "at least 1"),
        ("[round_one]\nbatch_size = 1", "at least 2 pairs"),
        ("[round_one.loss]\nalpha = 0", "has to be positive"),
        ("[model]\ncaption_dropout = 1.0", r"\[0, 1\)"),
        ("[round_one]\nwarmup_epochs = 21", "less than epochs"),
        ("seed = ", "is no TOML file"),
        ('extends = "nothing-like-it"', "no recipe 'nothing-like-it'"),
        ('extends = "bad"', "no recipe 'bad'"),
        ("extends = 3", "extends is 3"),
        ("seed = -1", "cannot be negative"),
        ("[model]\ncaption_max_words = 1", "need 2"),
        ("[round_one]\nvalidation_texts = 0", "at least 1"),
    ],
)
def test_a_bad_recipe_is_refused_with_a_sentence(tmp_path, text, sentence):
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(UserError, match=sentence):
        load_recipe(path)


def test_official_behaviour_spells_out_the_departures_of_the_published_program():
    recipe = as_published(Recipe())
    assert recipe.sampling.ranks == "coupled"
    assert not recipe.sampling.redraw
    assert (recipe.mining.depth_texts, recipe.mining.depth_images) == (2000, 400)
    for settings in (recipe.round_one, recipe.round_two):
        assert settings.diagonal_only
        assert settings.validate_every == 1000
        assert settings.select_by == "r1+r5"
        assert settings.validation_texts == 5000


def test_a_behaviour_changes_the_defaults_and_never_what_the_recipe_states(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('behaviour = "official"\n[sampling]\nranks = "independent"\n')
    recipe = load_recipe(path)
    assert recipe.behaviour == "official"
    assert recipe.sampling.ranks == "independent"
    assert not recipe.sampling.redraw
    assert load_recipe(path, behaviour="paper").sampling.redraw
    save_recipe(recipe, tmp_path / "stored.toml")
    assert load_recipe(tmp_path / "stored.toml") == recipe


def test_a_data_set_is_found_from_any_folder():
    assert Path(Recipe(data="somewhere").resolved().data).is_absolute()
    assert Recipe().resolved() == Recipe()


def test_the_learning_rate_is_divided_after_the_set_epochs():
    settings = RoundConfig(epochs=6, decay_after=2, learning_rate=1.0, decay_factor=10.0)
    rates = [settings.learning_rate_at(epoch) for epoch in range(6)]
    assert rates == pytest.approx([1.0, 1.0, 0.1, 0.1, 0.01, 0.01])


def test_warm_up_epochs_learn_from_all_negatives():
    settings = RoundConfig(epochs=3, warmup_epochs=1, loss=LossConfig(name="off_quin"))
    assert [settings.loss_at(epoch).name for epoch in range(3)] == [
        "standard",
        "off_quin",
        "off_quin",
    ]
