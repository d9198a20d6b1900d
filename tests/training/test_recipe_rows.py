"""Every row of the paper's tables and every shipped recipe takes real steps, on tiny data."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import pytest
import torch

from aoq.data.collate import Collator
from aoq.data.vocabulary import Vocabulary
from aoq.models import build_model
from aoq.randomness import seed_torch
from aoq.recipes import load_recipe, shipped_changes, shipped_recipes
from aoq.recipes.tables import paper_rows
from aoq.sampling import OfflineSampler
from aoq.training.collectives import Collectives, start_fabric
from aoq.training.optimizers import make_optimizer
from aoq.training.step import make_batches, update
from tests.conftest import uneven_dataset
from tests.training.steps_in_processes import everything_wrong

ONLINE = {"i2t_online", "t2i_online"}
OFFLINE = {"i2t_offline", "t2i_offline"}
DERIVED = {"i2t_derived", "t2i_derived"}
SOFTMAX = {"i2t_softmax", "t2i_softmax"}
TERMS = {
    "standard": {"i2t_all", "t2i_all"},
    "online": ONLINE,
    "off_tri": ONLINE | OFFLINE,
    "off_quin": ONLINE | OFFLINE | DERIVED,
    "adap_off_quin": ONLINE | OFFLINE | DERIVED,
    "online_quin": ONLINE | OFFLINE | DERIVED,
    "only_offline": OFFLINE | DERIVED,
    "infonce": SOFTMAX,
    "softmax_offline": SOFTMAX,
    "siglip": {"positive_sigmoid", "negative_sigmoid"},
}
ROWS = [name for row in paper_rows() for name in row.recipes]
# tests/end_to_end/test_towers.py runs those of towers, tests/training/test_closed_form.py CCA.
ELSEWHERE = ("towers", "cca")
SHIPPED = [name for name in shipped_recipes() if load_recipe(name).model.name not in ELSEWHERE]
CHANGED = [f"scenes-tiny+{change}" for change in shipped_changes()]


@pytest.fixture(scope="module")
def collator():
    dataset = uneven_dataset(images=12, seed=3)
    return Collator(dataset, Vocabulary.build(dataset.captions, min_count=1))


@pytest.fixture(scope="module")
def lists(collator):
    return everything_wrong(collator.dataset.positives)


@pytest.fixture(scope="module")
def collectives():
    return Collectives(start_fabric(torch.device("cpu")))


@pytest.fixture(scope="module")
def take_steps(collator, lists, collectives):
    """Runs a shrunk recipe once, however many names stand for it."""

    @cache
    def steps(recipe):
        taken = []
        for settings in [recipe.round_one] + [recipe.round_two] * (recipe.rounds == "both"):
            if settings.start_from == "scratch":
                model = fresh_model(recipe, collator)
            taken += steps_of_round(recipe, settings, model, collator, lists, collectives)
        return taken

    return steps


def fresh_model(recipe, collator):
    seed_torch(recipe.seed)
    words = len(collator.tokenizer)
    return build_model(recipe.model, feature_width=6, vocabulary_size=words).train()


def steps_of_round(recipe, settings, model, collator, lists, collectives):
    """Two updates, the second after the warm-up: loss, terms and whether the weights moved."""
    positives = collator.dataset.positives
    sampler = OfflineSampler(lists, positives, config=recipe.sampling, seed=recipe.seed)
    optimizer = make_optimizer(model, settings)
    for step, epoch in enumerate((0, settings.warmup_epochs)):
        pairs = positives.pairs[step * settings.batch_size :][: settings.batch_size]
        batches = make_batches(
            collator, pairs, settings=settings, sampler=sampler, epoch=epoch, step=step
        )
        before = torch.cat([weight.detach().flatten() for weight in model.parameters()])
        terms, _ = update(
            model, optimizer, batches, settings=settings, epoch=epoch, collectives=collectives
        )
        after = torch.cat([weight.detach().flatten() for weight in model.parameters()])
        yield settings.loss_at(epoch).name, terms, not torch.equal(before, after)


def shrunk(name):
    recipe = load_recipe(name)
    return replace(
        recipe,
        model=replace(recipe.model, joint_width=8, word_width=5, caption_width=6),
        round_one=replace(recipe.round_one, batch_size=8),
        round_two=replace(recipe.round_two, batch_size=8),
    )


@pytest.mark.parametrize("name", dict.fromkeys([*ROWS, *SHIPPED, *CHANGED]))
def test_every_recipe_takes_steps_of_its_own_loss(take_steps, name):
    recipe = shrunk(name)
    steps = take_steps(recipe)
    is_one = recipe.rounds == "one"
    assert len(steps) == (2 if is_one else 4)
    assert steps[-1][0] == (recipe.round_one if is_one else recipe.round_two).loss.name
    for loss, terms, moved in steps:
        auxiliary = {"caption"} if recipe.model.name == "vsrn" else set()
        assert set(terms) == TERMS[loss] | auxiliary
        assert all(math.isfinite(value) for value in terms.values())
        assert moved
