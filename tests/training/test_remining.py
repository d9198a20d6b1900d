"""Rounds that mine anew while they train."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import aoq
from aoq.config import LossConfig, RoundConfig
from aoq.distributed import Processes
from aoq.errors import UserError
from aoq.mining.candidates import CandidateLists, Provenance
from aoq.mining.mine import mine
from aoq.mining.mixing import mixed
from aoq.scoring.encoded import encode_dataset
from aoq.training import remining as remining_module
from aoq.training import step as step_module
from aoq.training.round import Round
from aoq.training.two_rounds import run_recipe
from tests.kills import KilledError
from tests.training.cases import (
    GROUPED,
    assert_same_weights,
    events,
    small_recipe,
    validations,
    weights,
    with_round_two,
)

CASES = {
    "fresh": {},
    "mixed": {"remine_keep": 0.5},
    "average": {"ema": 0.9, "optimizer": "adamw", "weight_decay": 0.05},
    "grouped": GROUPED,
    "pieces": {"encode_at_once": 5, "loss": LossConfig(name="softmax_offline", weigh_matches=True)},
    "parts": {"accumulate": 2},
}


def recipe_of(precomp, case="fresh"):
    recipe = small_recipe(precomp)
    is_estimated = case == "pieces"
    recipe = replace(
        recipe,
        model=replace(recipe.model, name="vse"),
        mining=replace(recipe.mining, estimate_matches=is_estimated),
        sampling=replace(recipe.sampling, avoid_matches=is_estimated),
    )
    return with_round_two(recipe, **{"remine_every": 1, **CASES[case]})


@pytest.fixture
def mined(monkeypatch):
    """What is mined within rounds: the epoch, and the lists by the weights of the moment."""
    found, real = [], remining_module.Remining.mine

    def mine_and_tell(self, model, epoch, sampler):
        dataset = self.train.dataset
        lists = mine(
            model,
            encode_dataset(model, self.train),
            dataset.positives,
            config=self.config,
            provenance=Provenance("", ""),
            captions=dataset.captions,
        )
        state = {name: value.clone().numpy() for name, value in model.state_dict().items()}
        told = real(self, model, epoch, sampler)
        stored = CandidateLists.load(self.file_of(epoch))
        found.append((epoch, lists, sampler.lists, stored, state))
        return told

    monkeypatch.setattr(remining_module.Remining, "mine", mine_and_tell)
    return found


@pytest.mark.parametrize("case", ["fresh", "average"])
def test_each_epoch_but_the_first_has_lists_of_the_weights_that_dev_has_seen(
    tmp_path, precomp, mined, case
):
    class Watch(aoq.Callback):
        def on_mining(self, mining):
            told.append(mining)

    told, recipe = [], recipe_of(precomp, case)
    run = tmp_path / "run" / "round-two"
    run_recipe(tmp_path / "run", recipe, callbacks=[Watch()])
    assert [epoch for epoch, *_ in mined] == [1, 2]
    for (_, lists, _, stored, _), one in zip(mined, told, strict=True):
        np.testing.assert_array_equal(stored.i2t, lists.i2t)
        np.testing.assert_array_equal(stored.t2i_scores, lists.t2i_scores)
        assert set(one.in_old_lists) == {"i2t", "t2i"}
    assert [line["epoch"] for line in events(run, "mined")] == [2, 3]
    best = events(run, "validation")
    if best[0]["best"] and not best[1]["best"] and not best[2]["best"]:
        for name, value in weights(run).items():  # the first epoch was mined with
            np.testing.assert_array_equal(mined[0][-1][name], value)
    left = sorted(path.name for path in run.glob("candidates-epoch-*"))
    assert left == ["candidates-epoch-3.safetensors"]
    manifest = (run / "aoq-manifest.jsonl").read_text("utf-8")
    assert "candidates-epoch-3.safetensors" in manifest


@pytest.mark.parametrize(
    ("case", "moment"),
    [("mixed", 9), ("fresh", "mine")]
    + [
        pytest.param(case, moment, marks=pytest.mark.slow)
        for case in CASES
        for moment in (2, 6, 8, 11, "mine", "save")
    ],
)
def test_a_killed_round_draws_from_the_lists_of_an_uninterrupted_one(
    tmp_path, precomp, monkeypatch, case, moment
):
    recipe = recipe_of(precomp, case)
    run_recipe(tmp_path / "whole", recipe)
    if moment == "save":
        place, name, at = remining_module.Remining, "_remove_before", 2
    elif moment == "mine":
        place, name, at = remining_module, "mine_in_processes", 2
    else:  # of round two: round one has 12 steps, each of as many parts
        parts = recipe.round_two.accumulate
        place, name, at = step_module, "step_loss", 12 + moment * parts
    real, count = getattr(place, name), 0

    def dying(*args, **options):
        nonlocal count
        count += 1
        if count == at:
            raise KilledError
        return real(*args, **options)

    monkeypatch.setattr(place, name, dying)
    with pytest.raises(KilledError):
        run_recipe(tmp_path / "killed", recipe)
    run_recipe(tmp_path / "killed", recipe)
    whole, killed = tmp_path / "whole" / "round-two", tmp_path / "killed" / "round-two"
    assert_same_weights(whole, killed)
    assert validations(whole) == validations(killed)
    last = "candidates-epoch-3.safetensors"
    assert (whole / last).read_bytes() == (killed / last).read_bytes()
    assert len(list(killed.glob("candidates-epoch-*"))) == 1


def test_lists_that_are_gone_are_not_mined_with_other_weights(tmp_path, precomp, monkeypatch):
    recipe, real, count = recipe_of(precomp), step_module.step_loss, 0

    def dying(*args, **options):
        nonlocal count
        count += 1
        if count == 12 + 6:
            raise KilledError
        return real(*args, **options)

    monkeypatch.setattr(step_module, "step_loss", dying)
    with pytest.raises(KilledError):
        run_recipe(tmp_path / "run", recipe)
    (tmp_path / "run" / "round-two" / "candidates-epoch-2.safetensors").unlink()
    with pytest.raises(UserError, match="is gone, and epoch 2 began with it"):
        run_recipe(tmp_path / "run", recipe)


def test_a_mixed_list_has_its_share_of_the_lists_before(tmp_path, precomp, mined):
    run_recipe(tmp_path / "run", recipe_of(precomp, "mixed"))
    for _, fresh, before, stored, _ in mined:
        assert (stored.i2t.shape[1], stored.t2i.shape[1]) == (10, 4)
        np.testing.assert_array_equal(stored.i2t[:, :5], fresh.i2t[:, :5])
        for row, old in zip(stored.i2t, before.i2t, strict=True):
            assert np.isin(row, old).sum() >= 5


def test_remining_without_anything_to_draw_is_refused():
    with pytest.raises(UserError, match="remine_every mines lists"):
        RoundConfig(remine_every=1)
    with pytest.raises(UserError, match="remine_keep is 1"):
        RoundConfig(loss=LossConfig(name="off_tri"), remine_every=1, remine_keep=1.0)


def test_a_warm_up_is_not_mined_for():
    config = RoundConfig(loss=LossConfig(name="off_tri"), warmup_epochs=2, remine_every=2)
    assert [epoch for epoch in range(9) if config.remines_at(epoch)] == [4, 6, 8]


def mixed_by_loop(fresh, old, *, keep, depth):
    depth = min(depth, fresh.shape[1])
    rows = []
    for new, before in zip(fresh.tolist(), old.tolist(), strict=True):
        row = new[: depth - round(keep * depth)]
        for candidate in before + new:
            if len(row) < depth and candidate not in row:
                row.append(candidate)
        rows.append(row)
    return np.array(rows)


@settings(deadline=None)
@given(st.integers(0, 10_000), st.floats(0, 0.99), st.integers(1, 12), st.booleans())
def test_mixed_lists_are_those_of_a_plain_loop(seed, keep, depth, are_estimated):
    random = np.random.default_rng(seed)

    def lists():
        i2t = np.stack([random.permutation(15)[:9] for _ in range(4)]).astype(np.int32)
        t2i = np.stack([random.permutation(9)[:5] for _ in range(6)]).astype(np.int32)
        matches = {}
        if are_estimated:
            matches = {"i2t_matches": i2t / np.float32(20), "t2i_matches": t2i / np.float32(20)}
        zeros = np.zeros(i2t.shape, np.float32), np.zeros(t2i.shape, np.float32)
        return CandidateLists(i2t, zeros[0], t2i, zeros[1], Provenance("", ""), **matches)

    fresh, old = lists(), lists()
    found = mixed(fresh, old, keep=keep, depth_texts=depth, depth_images=depth)
    for direction in ("i2t", "t2i"):
        ids = found.of(direction)[0]
        expected = mixed_by_loop(
            fresh.of(direction)[0], old.of(direction)[0], keep=keep, depth=depth
        )
        np.testing.assert_array_equal(ids, expected)
        if are_estimated:  # they came with their candidates
            np.testing.assert_array_equal(found.matches_of(direction), ids / np.float32(20))


def test_every_process_mines_with_the_batch_norm_of_the_first():
    first, model = torch.nn.BatchNorm1d(2), torch.nn.BatchNorm1d(2)
    first.running_mean.fill_(3.0)
    other_process = SimpleNamespace(
        settings=RoundConfig(),
        model=model,
        average=None,
        processes=Processes(1, 2),
        collectives=SimpleNamespace(
            is_alone=False, share_weights=lambda of: of.load_state_dict(first.state_dict())
        ),
    )
    with Round._validated_weights(other_process):
        assert model.running_mean.tolist() == [3.0, 3.0]
    assert model.running_mean.tolist() == [0.0, 0.0]
