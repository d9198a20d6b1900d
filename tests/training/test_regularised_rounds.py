"""Rounds with regularised inputs: continued, in pieces and in parts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import aoq.training.step as step_module
from aoq.config import LossConfig, RoundConfig
from aoq.data.collate import Collator
from aoq.data.vocabulary import Vocabulary
from aoq.models import build_model
from aoq.runs.checkpoint import load_run
from aoq.runs.judge import evaluate_run
from aoq.training.inputs import open_training_data
from aoq.training.step import make_batches, step_loss
from aoq.training.two_rounds import train_round
from tests.conftest import uneven_dataset
from tests.kills import KilledError
from tests.training.cases import assert_same_weights, regularised, validations

MODELS = ("vsrn", "scan", "bfan", "vse", "bow")


@pytest.mark.parametrize("name", MODELS)
def test_a_killed_round_ends_like_one_that_was_not(tmp_path, precomp, monkeypatch, name):
    recipe = regularised(precomp, name)
    data = open_training_data(recipe)
    train_round(tmp_path / "whole", recipe, data, which="one")
    real, count = step_module.step_loss, 0

    def dying(*args, **options):
        nonlocal count
        count += 1
        if count == 6:
            raise KilledError
        return real(*args, **options)

    monkeypatch.setattr(step_module, "step_loss", dying)
    with pytest.raises(KilledError):
        train_round(tmp_path / "killed", recipe, data, which="one")
    train_round(tmp_path / "killed", recipe, data, which="one")
    assert_same_weights(tmp_path / "whole", tmp_path / "killed")
    assert validations(tmp_path / "whole") == validations(tmp_path / "killed")


def test_inputs_are_fitted_where_the_data_are_read(precomp):
    recipe = regularised(precomp, "vse")
    data = open_training_data(recipe)
    elsewhere = Collator(data.train.dataset, data.train.tokenizer, device="meta")
    model = replace(data, train=elsewhere).builder(recipe.model)()
    assert {weight.device.type for weight in model.state_dict().values()} == {"meta"}


def test_the_images_that_inputs_are_fitted_by_are_read_once_a_run(precomp, monkeypatch):
    recipe, read, sizes = regularised(precomp, "scan"), Collator.regions, []
    monkeypatch.setattr(
        Collator, "regions", lambda self, ids: sizes.append(len(ids)) or read(self, ids)
    )
    build = open_training_data(recipe).builder(recipe.model)
    one, two = build(), build()
    assert sizes == [12]
    assert one.inputs.scaled.mean.equal(two.inputs.scaled.mean)
    assert one.inputs.scaled.mean.any()


def test_a_run_reads_by_the_statistics_of_its_training(tmp_path, precomp):
    recipe = regularised(precomp, "scan")
    train_round(tmp_path / "run", recipe, open_training_data(recipe), which="one")
    model = load_run(tmp_path / "run").model
    features = np.load(precomp / "train_ims.npy").reshape(-1, 6)
    np.testing.assert_allclose(model.inputs.scaled.mean, features.mean(axis=0), atol=1e-6)
    assert not model.training
    assert evaluate_run(tmp_path / "run") == evaluate_run(tmp_path / "run")


def gradients(name, at_once):
    """The gradients of a step, of images and texts encoded in pieces, with all dropouts on."""
    dataset = uneven_dataset(images=12, seed=3)
    vocabulary = Vocabulary.build(dataset.captions, min_count=1)
    read = Collator(dataset, vocabulary)
    torch.manual_seed(0)
    config = replace(regularised("", name).model, joint_width=8, word_width=5)
    model = build_model(config, feature_width=6, vocabulary_size=len(vocabulary)).train().double()
    (batch,) = make_batches(
        read, dataset.positives.pairs[:8], settings=RoundConfig(), sampler=None, epoch=0, step=0
    )
    batch = replace(batch, regions=batch.regions.double())
    torch.manual_seed(1)
    step_loss(model, batch, LossConfig(), encode_at_once=at_once).loss.total.backward()
    return [parameter.grad for parameter in model.parameters()]


@pytest.mark.parametrize("name", ["scan", "vse", "bow"])
def test_pieces_that_are_encoded_twice_are_thinned_out_alike(name):
    """One piece draws what the whole draws; a second draw in the backward pass would differ."""
    whole, piece = gradients(name, None), gradients(name, 100)
    assert any(value.any() for value in whole)
    torch.testing.assert_close(piece, whole, rtol=1e-6, atol=1e-12)
