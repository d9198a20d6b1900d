"""Settings are of their declared types as soon as they are made."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from aoq.config import (
    LossConfig,
    MiningConfig,
    ModelConfig,
    Recipe,
    RoundConfig,
    SamplingConfig,
)
from aoq.errors import UserError
from aoq.recipes import load_recipe, save_recipe

KINDS = [LossConfig, MiningConfig, ModelConfig, Recipe, RoundConfig, SamplingConfig]


@pytest.mark.parametrize(
    ("kind", "settings", "sentence"),
    [
        (LossConfig, {"name": "bogus"}, r"name is 'bogus'; expected one of: standard, online"),
        (LossConfig, {"name": ["online"]}, r"name is \['online'\]; expected one of"),
        (LossConfig, {"alpha": "0.3"}, r"alpha is '0.3'; expected float"),
        (LossConfig, {"beta": True}, r"beta is True; expected float"),
        (LossConfig, {"beta": None}, r"beta is None; expected float"),
        (LossConfig, {"squared": 1}, r"squared is 1; expected true or false"),
        (RoundConfig, {"epochs": 2.5}, r"epochs is 2.5; expected int \(RoundConfig.epochs\)"),
        (RoundConfig, {"epochs": 2.0}, r"epochs is 2.0; expected int"),
        (RoundConfig, {"epochs": True}, r"epochs is True; expected int"),
        (RoundConfig, {"patience": "3"}, r"patience is '3'; expected int or None"),
        (RoundConfig, {"loss": "online"}, r"loss is 'online'; expected a LossConfig"),
        (ModelConfig, {"temperature": "hot"}, r"temperature is 'hot'; expected float .* or None"),
        (MiningConfig, {"memory": 4}, r"memory is 4; expected str .* or None"),
        (SamplingConfig, {"redraw": np.int64(1)}, r"redraw is .*; expected true or false"),
        (Recipe, {"data": 3}, r"data is 3; expected str"),
        (Recipe, {"rounds": 1}, r"rounds is 1; expected one of: one, both"),
    ],
)
def test_a_field_of_another_type_is_one_sentence(kind, settings, sentence):
    with pytest.raises(UserError, match=sentence) as caught:
        kind(**settings)
    assert len(caught.value.problems) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_settings_looks_at_its_fields(kind):
    name = next(iter(kind.__dataclass_fields__))
    with pytest.raises(UserError, match=rf"\({kind.__name__}\.{name}\)"):
        kind(**{name: object()})


def test_several_wrong_fields_are_reported_together():
    with pytest.raises(UserError) as caught:
        RoundConfig(epochs=1.5, batch_size="8")
    assert [problem.split()[0] for problem in caught.value.problems] == ["epochs", "batch_size"]


def test_numbers_of_numpy_become_python_s_and_can_be_stored(tmp_path):
    recipe = Recipe(
        seed=np.int64(3),
        data=Path("data"),
        round_one=RoundConfig(
            epochs=np.int32(2), learning_rate=np.float32(0.5), diagonal_only=np.True_
        ),
        round_two=RoundConfig(loss=LossConfig(name="off_tri", alpha=np.float64(0.25), beta=1)),
    )
    settings = recipe.round_one
    values = (recipe.seed, settings.epochs, settings.learning_rate, settings.diagonal_only)
    assert [type(value) for value in values] == [int, int, float, bool]
    assert [type(recipe.round_two.loss.alpha), type(recipe.round_two.loss.beta)] == [float, float]
    assert recipe.data == "data"
    save_recipe(recipe, str(tmp_path / "recipe.toml"))
    assert load_recipe(tmp_path / "recipe.toml") == recipe
