"""Which parameters learn, how, and how fast; and the moving average of the weights."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from aoq.config import RoundConfig
from aoq.errors import UserError
from aoq.manifest import NAME as MANIFEST
from aoq.recipes import load_recipe, save_recipe, settings_that_matter
from aoq.runs.directory import RunDirectory
from aoq.scoring.inner_product import InnerProduct
from aoq.storage import read_json_lines
from aoq.training import round as round_module
from aoq.training import step as step_module
from aoq.training.average import WeightAverage
from aoq.training.callbacks import Callback
from aoq.training.cost import estimate_cost
from aoq.training.inputs import open_training_data
from aoq.training.optimizers import LearningRates, make_optimizer
from aoq.training.two_rounds import run_recipe, train_round
from aoq.types import Encoding
from tests.kills import KilledError
from tests.training.cases import assert_same_weights, small_recipe, validations, weights

MODERN = {
    "optimizer": "adamw",
    "weight_decay": 0.05,
    "schedule": "cosine",
    "rise_epochs": 0.7,
    "ema": 0.9,
    "encode_at_once": 5,
}


class Towers(InnerProduct, nn.Module):
    """A pretrained image tower of which a part is frozen, a text tower that is new, and heads."""

    def __init__(self, words: int = 100) -> None:
        super().__init__()
        self.pretrained = nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.Linear(5, 4))
        self.pretrained[0].requires_grad_(False)
        self.words = nn.Embedding(words, 4)
        self.dropout = nn.Dropout(0.2)
        self.head = nn.Linear(4, 3)

    def pretrained_parameters(self):
        return self.pretrained.parameters()

    def encode_images(self, regions):
        return Encoding(self.head(self.dropout(self.pretrained(regions.mean(dim=1)))))

    def encode_texts(self, texts):
        words = self.words(texts.tokens) * texts.mask[:, :, None]
        return Encoding(self.head(self.dropout(words.sum(dim=1))))


class Fresh(Towers):
    """Such a model without pretrained parameters."""

    pretrained_parameters = None


def with_round_one(recipe, **changes):
    recipe = replace(recipe, model=replace(recipe.model, name="own"))
    return replace(recipe, round_one=replace(recipe.round_one, **changes))


def names_of(model, group):
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {names[id(parameter)] for parameter in group["params"]}


def test_by_default_one_group_of_what_learns_takes_adam_s_steps():
    model = Towers()
    optimizer = make_optimizer(model, RoundConfig())
    assert type(optimizer) is torch.optim.Adam
    (group,) = optimizer.param_groups
    assert names_of(model, group) == {
        "pretrained.1.weight",
        "pretrained.1.bias",
        "pretrained.2.weight",
        "pretrained.2.bias",
        "words.weight",
        "head.weight",
        "head.bias",
    }
    assert (group["lr"], group["weight_decay"]) == (2e-4, 0.0)


def test_towers_learn_at_their_own_rate_and_only_matrices_decay():
    model = Towers()
    settings = RoundConfig(
        optimizer="adamw", weight_decay=0.1, learning_rate=1e-3, tower_learning_rate=1e-5
    )
    optimizer = make_optimizer(model, settings)
    assert type(optimizer) is torch.optim.AdamW
    assert [
        (group["lr"], group["weight_decay"], names_of(model, group))
        for group in optimizer.param_groups
    ] == [
        (1e-3, 0.0, {"head.bias"}),
        (1e-3, 0.1, {"words.weight", "head.weight"}),
        (1e-5, 0.0, {"pretrained.1.weight", "pretrained.1.bias", "pretrained.2.bias"}),
        (1e-5, 0.1, {"pretrained.2.weight"}),
    ]


def test_decay_is_apart_from_the_gradient_in_adamw_and_part_of_it_in_adam():
    for kind in ("adam", "adamw"):
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        with torch.no_grad():
            before = model.weight.clone()
        settings = RoundConfig(optimizer=kind, weight_decay=0.5, learning_rate=0.1)
        optimizer = make_optimizer(model, settings)
        gradient = torch.full_like(before, 1e-3)
        model.weight.grad, model.bias.grad = gradient.clone(), torch.zeros(2)
        optimizer.step()
        if kind == "adamw":
            expected = before - 0.1 * 0.5 * before - 0.1
        else:
            expected = before - 0.1 * (gradient + 0.5 * before).sign()
        torch.testing.assert_close(model.weight.detach(), expected, rtol=1e-3, atol=1e-4)


def test_the_schedule_scales_every_group_from_its_own_rate():
    model = Towers()
    settings = RoundConfig(
        epochs=2, learning_rate=1e-3, tower_learning_rate=1e-5, schedule="cosine", rise_epochs=0.5
    )
    optimizer = make_optimizer(model, settings)
    rates = LearningRates(optimizer, settings, n_steps=8)
    for step in range(16):
        rates.set(step)
        fast, slow = (group["lr"] for group in optimizer.param_groups)
        assert fast == pytest.approx(100 * slow)
        assert fast == rates.at(step) == settings.learning_rate_at(step, n_steps=8)
    assert fast < 2e-5


def test_a_model_of_which_nothing_learns_is_refused():
    model = Towers().requires_grad_(False)
    with pytest.raises(UserError, match="no parameter that learns"):
        make_optimizer(model, RoundConfig())


def test_a_rate_for_towers_is_refused_where_there_are_none(tmp_path, precomp):
    recipe = with_round_one(small_recipe(precomp), tower_learning_rate=1e-5)
    data = open_training_data(recipe)
    with pytest.raises(UserError, match="no pretrained towers"):
        train_round(tmp_path / "run", recipe, data, which="one", make_model=Fresh)
    with pytest.raises(UserError, match="no pretrained towers"):
        run_recipe(tmp_path / "run", recipe, data=data, make_model=Fresh)
    assert not (tmp_path / "run").exists()


def test_the_average_of_the_weights_is_that_of_a_plain_loop():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    model[0].bias.requires_grad_(False)
    learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
    average = WeightAverage(model, decay=0.6)
    plain = [parameter.detach().clone() for parameter in learned]
    for step in range(1, 30):
        model(torch.randn(8, 3))  # which moves the statistics of the batch norm
        decay = min(0.6, (1 + step) / (10 + step))
        with torch.no_grad():
            for parameter, value in zip(learned, plain, strict=True):
                parameter.add_(torch.randn_like(parameter))
                value.copy_(decay * value + (1 - decay) * parameter)
        average.add()
    raw = {name: value.clone() for name, value in model.state_dict().items()}
    with average.in_model():
        for parameter, value in zip(learned, plain, strict=True):
            torch.testing.assert_close(parameter.detach(), value)
        assert torch.equal(model[1].running_mean, raw["1.running_mean"])
    assert all(torch.equal(value, raw[name]) for name, value in model.state_dict().items())


def test_the_average_is_what_is_validated_and_kept(tmp_path, precomp, monkeypatch):
    recipe = with_round_one(small_recipe(precomp), ema=0.9, epochs=2)
    data, models, averages, judged = open_training_data(recipe), [], [], []

    def make_model():
        models.append(Towers())
        averages.append({name: value.clone() for name, value in models[0].named_parameters()})
        return models[-1]

    class Plain(Callback):
        def on_step(self, step):
            decay = min(0.9, (1 + step.step) / (10 + step.step))
            for name, value in models[0].named_parameters():
                averages[0][name] = decay * averages[0][name] + (1 - decay) * value.detach()

    real = round_module.evaluate

    def evaluate(model, *args, **options):
        judged.append({name: value.clone() for name, value in model.named_parameters()})
        torch.testing.assert_close(judged[-1], averages[0])
        return real(model, *args, **options)

    monkeypatch.setattr(round_module, "evaluate", evaluate)
    state = train_round(
        tmp_path / "run", recipe, data, which="one", make_model=make_model, callbacks=[Plain()]
    )
    assert len(judged) == 2
    kept = weights(tmp_path / "run")
    assert all(torch.equal(kept[name], judged[state.best_epoch - 1][name]) for name in kept)
    assert not torch.equal(models[0].head.weight, judged[-1]["head.weight"])


@pytest.mark.parametrize("calls", [1, 4, 6, 11])
@pytest.mark.parametrize("name", ["own", "bfan"])
def test_a_killed_round_with_all_of_it_ends_like_one_that_was_not(
    tmp_path, precomp, monkeypatch, calls, name
):
    recipe = with_round_one(small_recipe(precomp), **MODERN, validate_every=3)
    recipe = replace(recipe, model=replace(recipe.model, name=name))
    if name == "own":
        settings = replace(recipe.round_one, tower_learning_rate=1e-4)
        recipe = replace(recipe, round_one=settings)
    data = open_training_data(recipe)
    options = {"which": "one", "make_model": Towers if name == "own" else None}
    whole = train_round(tmp_path / "whole", recipe, data, **options)

    real, count = step_module.step_loss, 0

    def dying(*args, **options):
        nonlocal count
        count += 1
        if count == calls:
            raise KilledError
        return real(*args, **options)

    monkeypatch.setattr(step_module, "step_loss", dying)
    with pytest.raises(KilledError):
        train_round(tmp_path / "killed", recipe, data, **options)
    assert train_round(tmp_path / "killed", recipe, data, **options) == whole
    assert_same_weights(tmp_path / "whole", tmp_path / "killed")
    assert validations(tmp_path / "whole") == validations(tmp_path / "killed")
    one, two = (
        torch.load(RunDirectory(tmp_path / run).trainer, weights_only=True)
        for run in ("whole", "killed")
    )
    assert one["average"]["steps"] == two["average"]["steps"] == 12
    for name, value in one["model"].items():
        assert torch.equal(value, two["model"][name])
    for first, second in zip(one["average"]["averages"], two["average"]["averages"], strict=True):
        assert torch.equal(first, second)


def test_the_rate_of_an_epoch_s_last_step_is_logged(tmp_path, precomp):
    recipe = with_round_one(small_recipe(precomp), schedule="cosine", rise_epochs=1.0)
    train_round(tmp_path / "run", recipe, open_training_data(recipe), which="one", make_model=Fresh)
    lines = read_json_lines(RunDirectory(tmp_path / "run").events)
    logged = [line["learning_rate"] for line in lines if line["event"] == "epoch"]
    expected = [recipe.round_one.learning_rate_at(step, n_steps=4) for step in (3, 7, 11)]
    assert logged == expected
    assert logged[0] == 1e-3 > logged[1] > logged[2] > 0


def sgd(model, settings):
    groups = [{"params": [parameter]} for parameter in model.parameters()]
    groups[0]["lr"] = 0.5
    return torch.optim.SGD(groups, lr=settings.learning_rate, momentum=0.9)


def test_a_program_s_own_optimizer_takes_the_steps_and_follows_the_schedule(
    tmp_path, precomp, monkeypatch
):
    recipe = with_round_one(small_recipe(precomp), schedule="cosine")
    data, seen, real = open_training_data(recipe), [], round_module.update

    def update(model, optimizer, *args, **options):
        assert type(optimizer) is torch.optim.SGD
        seen.append([group["lr"] for group in optimizer.param_groups])
        return real(model, optimizer, *args, **options)

    monkeypatch.setattr(round_module, "update", update)
    recipe = replace(recipe, rounds="one")
    run_recipe(tmp_path / "run", recipe, data=data, make_model=Towers, make_optimizer=sgd)
    assert len(seen) == 12
    for step, (first, *others) in enumerate(seen):
        factor = recipe.round_one.learning_rate_at(step, n_steps=4, initial=1.0)
        assert first == pytest.approx(0.5 * factor)
        assert others == pytest.approx([1e-3 * factor] * len(others))


def test_a_round_is_not_continued_with_another_optimizer(tmp_path, precomp):
    recipe = with_round_one(small_recipe(precomp))
    data = open_training_data(recipe)
    options = {"which": "one", "make_model": Fresh}
    train_round(tmp_path / "run", recipe, data, make_optimizer=sgd, **options)
    with pytest.raises(UserError, match="optimizer SGD, and this round has Adam"):
        train_round(tmp_path / "run", recipe, data, **options)
    train_round(tmp_path / "run", recipe, data, make_optimizer=sgd, **options)


def test_a_run_of_a_version_without_these_settings_continues(tmp_path, precomp, monkeypatch):
    """Its config.toml and trainer.pt lack them; the defaults are what it did."""
    recipe = small_recipe(precomp)
    data = open_training_data(recipe)
    train_round(tmp_path / "whole", recipe, data, which="one")
    monkeypatch.setattr(round_module.Round, "_end_epoch", None)
    with pytest.raises(TypeError):
        train_round(tmp_path / "run", recipe, data, which="one")
    monkeypatch.undo()
    run = RunDirectory(tmp_path / "run")
    new = {*MODERN, "tower_learning_rate"}
    lines = run.config.read_text().splitlines(keepends=True)
    kept = [line for line in lines if line.partition(" = ")[0] not in new]
    assert len(lines) - len(kept) == 2 * len(new)
    (run.path / MANIFEST).unlink()  # which would tell that the file was changed
    run.config.write_text("".join(kept))
    assert settings_that_matter(load_recipe(run.config)) == settings_that_matter(
        data.settle(recipe.resolved())
    )
    content = torch.load(run.trainer, weights_only=True)
    del content["optimizer_kind"]
    torch.save(content, run.trainer)
    train_round(run.path, recipe, data, which="one")
    assert_same_weights(tmp_path / "whole", run.path)


def test_every_setting_is_compared_when_a_round_continues(tmp_path, precomp):
    recipe = small_recipe(precomp)
    save_recipe(recipe, tmp_path / "config.toml")
    for name, value in MODERN.items():
        other = replace(recipe, round_one=replace(recipe.round_one, **{name: value}))
        save_recipe(other, tmp_path / "other.toml")
        assert load_recipe(tmp_path / "other.toml") == other
        assert settings_that_matter(other) != settings_that_matter(recipe)


def test_a_plan_counts_the_average_that_is_stored(precomp):
    recipe = replace(small_recipe(precomp), rounds="one")
    recipe = replace(recipe, model=replace(recipe.model, name="vse"))
    modern = replace(recipe, round_one=replace(recipe.round_one, **MODERN))
    assert 4 * estimate_cost(modern).disk_bytes == 5 * estimate_cost(recipe).disk_bytes
