"""What a round hands to its steps, and which weights it keeps: seen from outside the steps."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from aoq.evaluation.metrics import DirectionMetrics, Metrics
from aoq.training import round as round_module
from aoq.training.inputs import open_training_data
from aoq.training.two_rounds import train_round
from aoq.types import Encoding
from tests.training.cases import small_recipe, validations, weights


def with_round_one(recipe, **changes):
    return replace(recipe, round_one=replace(recipe.round_one, **changes))


def test_steps_get_the_rate_the_order_and_the_seed_of_their_epoch(tmp_path, precomp, monkeypatch):
    recipe = small_recipe(precomp)
    data = open_training_data(recipe)
    rates, seeds, pairs = [], [], []
    update, make_batches = round_module.update, round_module.make_batches

    def seen_update(model, optimizer, *args, **options):
        rates.append(optimizer.param_groups[0]["lr"])
        seeds.append(torch.initial_seed())
        return update(model, optimizer, *args, **options)

    def seen_batches(collator, pair_ids, **options):
        pairs.append((options["epoch"], options["step"], pair_ids.tolist()))
        return make_batches(collator, pair_ids, **options)

    monkeypatch.setattr(round_module, "update", seen_update)
    monkeypatch.setattr(round_module, "make_batches", seen_batches)
    train_round(tmp_path / "run", recipe, data, which="one")
    n_steps = len(rates) // 3
    assert rates == pytest.approx([1e-3] * 2 * n_steps + [1e-4] * n_steps)
    assert len(set(seeds)) == len(seeds)
    assert [(epoch, step) for epoch, step, _ in pairs] == [
        (epoch, step) for epoch in range(3) for step in range(n_steps)
    ]
    epochs = [[pair for at, _, ids in pairs if at == epoch for pair in ids] for epoch in range(3)]
    assert epochs[0] != epochs[1] != epochs[2]
    everything = sorted(data.train.dataset.positives.pairs.tolist())
    assert all(sorted(epoch) == everything for epoch in epochs)


def judged(r1: float, r10: float) -> Metrics:
    """Figures of which R@1 + R@5 and rsum can disagree."""
    side = DirectionMetrics(r1=r1, r5=0.0, r10=r10, median_rank=1.0, mean_rank=1.0)
    return Metrics(i2t=side, t2i=side)


def train_judged(path, recipe, figures, monkeypatch):
    """A round whose validations come out as told; the weights at each of them."""
    seen, left = [], list(figures)

    def evaluate(model, *args, **options):
        seen.append({name: value.clone() for name, value in model.state_dict().items()})
        return left.pop(0)

    monkeypatch.setattr(round_module, "evaluate", evaluate)
    state = train_round(path, recipe, open_training_data(recipe), which="one")
    return state, seen


def kept(path, seen) -> list[int]:
    """Which validations' weights the run holds, counted from 1."""
    found = weights(path)
    return [
        number
        for number, state in enumerate(seen, start=1)
        if all(torch.equal(found[name], state[name]) for name in found)
    ]


@pytest.mark.parametrize(("select_by", "best"), [("rsum", 2), ("r1+r5", 1)])
def test_the_best_epoch_is_chosen_by_the_figure_that_is_named(
    tmp_path, precomp, monkeypatch, select_by, best
):
    recipe = with_round_one(small_recipe(precomp), select_by=select_by)
    figures = [judged(30, 40), judged(20, 90), judged(10, 50)]
    state, seen = train_judged(tmp_path / "run", recipe, figures, monkeypatch)
    assert kept(tmp_path / "run", seen) == [best]
    assert state.best_epoch == best


def test_weights_of_the_warm_up_give_way_and_do_not_count_for_patience(
    tmp_path, precomp, monkeypatch
):
    recipe = with_round_one(small_recipe(precomp), epochs=9, warmup_epochs=2, patience=2)
    figures = [judged(60, 0), judged(50, 0), *(judged(r1, 0) for r1 in (10, 12, 9, 8, 99))]
    state, seen = train_judged(tmp_path / "run", recipe, figures, monkeypatch)
    assert kept(tmp_path / "run", seen) == [4]
    assert (state.epoch, state.best_epoch) == (6, 4)


def test_validation_is_on_the_first_dev_captions_where_so_many_are_named(
    tmp_path, precomp, monkeypatch
):
    recipe = with_round_one(small_recipe(precomp), validation_texts=7, validate_every=2)
    texts = []

    def evaluate(model, dev, **options):
        texts.append(dev.dataset.captions)
        return judged(1, 1)

    monkeypatch.setattr(round_module, "evaluate", evaluate)
    data = open_training_data(recipe)
    train_round(tmp_path / "run", recipe, data, which="one")
    assert all(captions == data.dev.dataset.captions[:7] for captions in texts)
    steps = [line["step"] for line in validations(tmp_path / "run") if line["epoch"] == 1]
    assert len(steps) > 1
    assert steps[0] == 2


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [("auto", torch.float32), ("float32", torch.float32), ("bfloat16", torch.bfloat16)],
)
def test_encoders_run_in_the_precision_that_is_named(tmp_path, precomp, precision, dtype):
    """On a processor `auto` is float32; scores are float32 in any case."""
    seen = set()

    class Watched(nn.Module):
        def __init__(self):
            super().__init__()
            self.images, self.words = nn.Linear(6, 4), nn.Embedding(100, 4)
            self.texts = nn.Linear(4, 4)

        def encode_images(self, regions):
            vectors = self.images(regions.mean(dim=1))
            seen.update({vectors.dtype} if self.training else ())
            return Encoding(vectors)

        def encode_texts(self, texts):
            return Encoding(self.texts(self.words(texts.tokens).mean(dim=1)))

        def score_matrix(self, images, texts):
            assert images.vectors.dtype == texts.vectors.dtype == torch.float32
            return images.vectors @ texts.vectors.T

        def score_pairs(self, images, texts):
            return (images.vectors * texts.vectors).sum(dim=1)

    recipe = with_round_one(small_recipe(precomp), epochs=1, precision=precision)
    recipe = replace(recipe, model=replace(recipe.model, name="own"))
    data = open_training_data(recipe)
    train_round(tmp_path / "run", recipe, data, which="one", make_model=Watched)
    assert seen == {dtype}
