"""What losses add to a round: parameters of their own, and options that steps and rounds follow."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import nn

from aoq.config import LossConfig, RoundConfig, SamplingConfig
from aoq.data.collate import Collator
from aoq.data.vocabulary import Vocabulary
from aoq.errors import UserError
from aoq.models import build_model
from aoq.runs.checkpoint import load_run
from aoq.runs.directory import RunDirectory
from aoq.runs.mine import mine_run
from aoq.sampling import OfflineSampler
from aoq.training import step as step_module
from aoq.training.collectives import Collectives, start_fabric
from aoq.training.inputs import open_training_data
from aoq.training.logit_scale import LogitScale
from aoq.training.optimizers import add_undecayed, make_optimizer
from aoq.training.step import make_batches, update
from aoq.training.two_rounds import run_recipe, train_round
from tests.conftest import uneven_dataset
from tests.kills import KilledError
from tests.training.cases import assert_same_weights, events, small_recipe, validations
from tests.training.steps_in_processes import everything_wrong

LEARNED = {
    "infonce": LossConfig(name="infonce", learn_temperature=True),
    "softmax_offline": LossConfig(name="softmax_offline", learn_temperature=True),
    "siglip": LossConfig(name="siglip"),
}
OPTIONS = LEARNED | {
    "likeness": LossConfig(name="online_quin", semantic_margin=0.1, selective=0.1),
    "constant": LossConfig(name="adap_off_quin", weights="constant"),
    "shuffled": LossConfig(name="adap_off_quin", weights="shuffled"),
    "weighed": LossConfig(name="adap_off_quin", weigh_matches=True),
}
MODERN = {"optimizer": "adamw", "weight_decay": 0.05, "ema": 0.9, "warmup_epochs": 1}


def recipe_of(precomp, loss, **changes):
    recipe = small_recipe(precomp)
    settings = replace(recipe.round_two, loss=loss, **changes)
    recipe = replace(
        recipe,
        model=replace(recipe.model, name="vse"),
        mining=replace(recipe.mining, estimate_matches=loss.weigh_matches),
        sampling=replace(recipe.sampling, avoid_matches=loss.weigh_matches),
        round_two=settings,
    )
    if not loss.needs_candidates:
        recipe = replace(recipe, round_one=settings)
    return recipe


@pytest.fixture(scope="module")
def collator():
    dataset = uneven_dataset(images=12, seed=3)
    return Collator(dataset, Vocabulary.build(dataset.captions, min_count=1))


def step_of(collator, loss, *, pairs=slice(0, 12), **options):
    """The gradients of one step, not clipped, and what the loss has learned after it."""
    settings = RoundConfig(loss=loss, clip_norm=1e9, learning_rate=1e-2, **options)
    positives = collator.dataset.positives
    sampler = OfflineSampler(
        everything_wrong(positives), positives, config=SamplingConfig(), seed=0
    )
    batches = make_batches(
        collator, positives.pairs[pairs], settings=settings, sampler=sampler, epoch=0, step=0
    )
    torch.manual_seed(0)
    config = replace(small_recipe("").model, name="vse")
    model = build_model(config, feature_width=6, vocabulary_size=len(collator.tokenizer)).train()
    logit_scale, optimizer = LogitScale(loss), make_optimizer(model, settings)
    add_undecayed(optimizer, logit_scale, settings)
    update(
        model,
        optimizer,
        batches,
        settings=settings,
        epoch=0,
        collectives=Collectives(start_fabric(torch.device("cpu"))),
        logit_scale=logit_scale,
    )
    parameters = [*model.named_parameters(), *logit_scale.named_parameters()]
    gradients = {name: value.grad.clone() for name, value in parameters}
    return gradients, logit_scale.values()


@pytest.mark.parametrize("loss", OPTIONS.values(), ids=OPTIONS)
def test_pieces_give_the_gradients_of_the_whole_to_what_the_loss_learns_too(collator, loss):
    (whole, learned), (pieces, again) = (
        step_of(collator, loss, encode_at_once=each) for each in (None, 3)
    )
    assert {"log_scale", "bias"} & set(whole) == set(LogitScale(loss).state_dict())
    assert all(value.any() for value in whole.values())
    torch.testing.assert_close(pieces, whole, rtol=1e-4, atol=1e-5)
    assert learned == pytest.approx(again, rel=1e-5)


@pytest.mark.parametrize(
    "loss", [each for each in OPTIONS.values() if not each.needs_candidates], ids=str
)
def test_gradients_of_parts_add_up_for_what_the_loss_learns(collator, loss):
    """Negatives come from the part, so the sum is that of steps with the part's pairs alone."""
    halves = [step_of(collator, loss, pairs=slice(at, at + 6))[0] for at in (0, 6)]
    both, _ = step_of(collator, loss, accumulate=2)
    for name, value in both.items():
        torch.testing.assert_close(value, halves[0][name] + halves[1][name], msg=name)


@pytest.mark.parametrize(
    ("name", "calls"),
    [(name, 6) for name in OPTIONS]
    + [pytest.param(name, call, marks=pytest.mark.slow) for name in OPTIONS for call in (2, 11)],
)
def test_a_killed_round_ends_with_what_the_loss_of_a_whole_one_has_learned(
    tmp_path, precomp, monkeypatch, name, calls
):
    loss = OPTIONS[name]
    recipe = recipe_of(precomp, loss, **MODERN, encode_at_once=5)
    lists = tmp_path / "lists.safetensors"
    data = open_training_data(recipe)
    train_round(tmp_path / "teacher", recipe, data, which="one")
    mine_run(tmp_path / "teacher", lists)
    options = {"which": "two", "candidates": lists if loss.needs_candidates else None}
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
    fresh = LogitScale(loss).state_dict()
    assert bool(fresh) == ("logit_scale" in one) == ("logit_scale" in two)
    for parameter, value in fresh.items():
        assert torch.equal(one["logit_scale"][parameter], two["logit_scale"][parameter])
        assert one["logit_scale"][parameter] != value


def test_what_the_loss_learns_is_logged_and_kept_beside_the_weights(tmp_path, precomp):
    recipe = replace(recipe_of(precomp, LEARNED["infonce"], log_every=1), rounds="one")
    run_recipe(tmp_path / "run", recipe)
    run = tmp_path / "run" / "round-one"
    temperatures = [line["temperature"] for line in events(run, "steps")]
    assert len(set(temperatures)) == len(temperatures) == 12
    assert all(0.01 <= value <= 1 for value in temperatures)
    with safe_open(RunDirectory(run).model, framework="pt") as file:
        assert float(file.metadata()["temperature"]) in temperatures
    assert load_run(run).feature_width == 6


def test_a_loss_without_parameters_leaves_state_and_log_as_they_are(tmp_path, precomp):
    recipe = replace(recipe_of(precomp, LossConfig(name="infonce")), rounds="one")
    run_recipe(tmp_path / "run", recipe)
    run = RunDirectory(tmp_path / "run" / "round-one")
    state = torch.load(run.trainer, weights_only=True)
    assert "logit_scale" not in state
    assert len(state["optimizer"]["param_groups"]) == 1
    assert not any("temperature" in line for line in events(run.path, "steps"))


def test_what_a_loss_learns_does_not_decay_and_joins_any_optimizer():
    settings = RoundConfig(optimizer="adamw", weight_decay=0.5, learning_rate=0.25)
    head = nn.Linear(2, 2)
    logit_scale = LogitScale(LEARNED["infonce"])
    for optimizer in (
        torch.optim.AdamW(head.parameters(), weight_decay=0.5),
        torch.optim.SGD(head.parameters(), lr=1.0, weight_decay=0.5),
    ):
        add_undecayed(optimizer, logit_scale, settings)
        group = optimizer.param_groups[-1]
        assert (group["lr"], group["weight_decay"]) == (0.25, 0.0)
        before = logit_scale.log_scale.item()
        logit_scale.log_scale.grad = torch.zeros(())
        optimizer.step()
        assert logit_scale.log_scale.item() == before


@pytest.mark.parametrize(("value", "within"), [(-3.0, 1.0), (9.0, 0.01), (math.log(20), 0.05)])
def test_a_learned_temperature_stays_within_the_bounds_of_clip(value, within):
    logit_scale = LogitScale(LEARNED["infonce"])
    nn.init.constant_(logit_scale.log_scale, value)
    logit_scale.clamp()
    assert logit_scale.values()["temperature"] == pytest.approx(within)


def test_a_temperature_outside_the_bounds_is_fixed_or_refused():
    assert LossConfig(name="infonce", temperature=2.0).initial_temperature == 2.0
    with pytest.raises(UserError, match=r"temperature is 2\.0; one that is learned"):
        LossConfig(name="infonce", temperature=2.0, learn_temperature=True)


def test_the_temperature_is_that_which_a_plain_loop_learns(collator):
    """Adam's first step is the learning rate, against the sign of the gradient."""
    gradients, learned = step_of(collator, LEARNED["infonce"])
    sign = float(torch.sign(gradients["log_scale"]))
    expected = 0.07 * math.exp(1e-2 * sign)
    assert learned["temperature"] == pytest.approx(expected, rel=1e-3)
    assert np.isfinite(expected)
