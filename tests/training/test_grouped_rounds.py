"""Rounds whose batches are made of mined candidates."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from aoq.config import LossConfig
from aoq.grouping import grouped_order
from aoq.mining.candidates import CandidateLists
from aoq.randomness import epoch_order
from aoq.runs.directory import RunDirectory
from aoq.sampling import OfflineSampler
from aoq.training import round as round_module
from aoq.training.inputs import open_training_data
from aoq.training.two_rounds import run_recipe
from tests.training.cases import GROUPED, events, small_recipe, with_round_two


@pytest.fixture
def steps(monkeypatch):
    """The pairs of every step, and what was read for it, by the loss and the epoch."""
    taken, real = {}, round_module.make_batches

    def make_batches(collator, pair_ids, **options):
        batches = real(collator, pair_ids, **options)
        name, epoch = options["settings"].loss.name, options["epoch"]
        if "seed" in options:  # not those that measure the threads
            taken.setdefault((name, epoch), []).append((pair_ids, batches))
        return batches

    monkeypatch.setattr(round_module, "make_batches", make_batches)
    return taken


def test_epochs_after_the_warm_up_are_grouped_by_the_mined_lists(tmp_path, precomp, steps):
    """Batches of 16, the last one short; of all losses, siglip marks those of round two."""
    changes = GROUPED | {"loss": LossConfig(name="siglip"), "warmup_epochs": 1}
    recipe = with_round_two(small_recipe(precomp), **changes)
    run_recipe(tmp_path / "run", recipe)
    data = open_training_data(recipe)
    positives = data.train.dataset.positives
    lists = CandidateLists.load(RunDirectory(tmp_path / "run").candidates)
    sampler = OfflineSampler(lists, positives, config=recipe.sampling, seed=recipe.seed)
    orders = {0: epoch_order(len(positives.pairs), seed=0, epoch=0)} | {
        epoch: grouped_order(sampler, group_size=4, epoch=epoch) for epoch in (1, 2)
    }
    for epoch, order in orders.items():
        visited = np.concatenate([pairs for pairs, _ in steps["siglip", epoch]])
        np.testing.assert_array_equal(visited, positives.pairs[order[: len(visited)]])
        assert len(order) - len(visited) < 2
        for _, batches in steps["siglip", epoch]:
            assert all(batch.offline is None for batch in batches)


@pytest.mark.parametrize("loss", ["standard", "infonce", "adap_off_quin"])
def test_any_loss_of_a_batch_trains_on_grouped_ones(tmp_path, precomp, steps, loss):
    changes = GROUPED | {"loss": LossConfig(name=loss), "epochs": 2, "decay_after": 1}
    recipe = small_recipe(precomp)
    recipe = replace(recipe, model=replace(recipe.model, name="vse"))
    result = run_recipe(tmp_path / "run", with_round_two(recipe, **changes))
    assert np.isfinite(result["rsum"])
    assert len(events(tmp_path / "run" / "round-two", "epoch")) == 2
    draws = loss == "adap_off_quin"
    for _, batches in steps[loss, 1]:
        assert all((batch.offline is not None) == draws for batch in batches)
