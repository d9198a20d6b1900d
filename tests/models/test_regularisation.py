"""What is done to the inputs of all models in training, and that it is off by default."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from aoq.config import ModelConfig
from aoq.data.collate import Collator
from aoq.data.vocabulary import Vocabulary
from aoq.models import build_model
from aoq.models.encoders import Thinning
from aoq.recipes import settings_that_matter
from aoq.runs.checkpoint import settings_of_model
from tests.conftest import uneven_dataset
from tests.scoring.cases import REGION_MODELS
from tests.training.cases import small_recipe

ALL = {
    "standardise": True,
    "feature_dropout": 0.3,
    "word_dropout": 0.2,
    "drop_regions": 0.4,
    "drop_words": 0.3,
}


def read() -> tuple[Collator, int]:
    dataset = uneven_dataset(images=9, seed=2)
    vocabulary = Vocabulary.build(dataset.captions, min_count=1)
    return Collator(dataset, vocabulary), len(vocabulary)


def build(name, words, **settings):
    torch.manual_seed(0)
    config = ModelConfig(name=name, joint_width=8, word_width=5, caption_width=6, **settings)
    return build_model(config, feature_width=6, vocabulary_size=words)


def test_dropped_vectors_are_zero_and_the_others_stay_as_they_are():
    torch.manual_seed(0)
    states = torch.randn(200, 10, 3)
    thinned = Thinning(features=0.0, vectors=0.3).train()(states)
    dropped = (thinned == 0).all(dim=2)
    assert torch.equal(thinned[~dropped], states[~dropped])
    assert float(dropped.float().mean()) == pytest.approx(0.3, abs=0.03)


def test_something_of_every_image_and_text_is_left():
    states = torch.ones(500, 2, 3)
    thinned = Thinning(features=0.0, vectors=0.9).train()(states)
    assert thinned.any(dim=2).any(dim=1).all()


def test_dropout_keeps_the_mean_of_single_features():
    torch.manual_seed(0)
    thinned = Thinning(features=0.25, vectors=0.0).train()(torch.ones(100, 10, 30))
    assert thinned.unique().tolist() == [0.0, pytest.approx(1 / 0.75)]
    assert float(thinned.mean()) == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize("name", REGION_MODELS)
def test_nothing_is_drawn_and_nothing_is_stored_by_default(name):
    collator, words = read()
    plain = build(name, words, head="linear")
    assert not any(key.startswith("inputs") for key in plain.state_dict())
    before = torch.get_rng_state()
    plain.train().encode_images(collator.regions(np.arange(9)))
    plain.encode_texts(collator.texts(np.arange(5)))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", REGION_MODELS)
def test_settings_change_training_alone_and_not_the_initial_weights(name):
    collator, words = read()
    regions, texts = collator.regions(np.arange(9)), collator.texts(np.arange(9))
    thinned = {key: value for key, value in ALL.items() if key != "standardise"}
    plain, other = build(name, words), build(name, words, **thinned)
    for key, value in plain.state_dict().items():
        assert torch.equal(other.state_dict()[key], value), key
    with torch.no_grad():
        for encode in (lambda m: m.encode_images(regions), lambda m: m.encode_texts(texts)):
            assert torch.equal(encode(plain.eval()).vectors, encode(other.eval()).vectors)
            first = encode(other.train()).vectors
            assert not torch.equal(first, encode(other).vectors)


@pytest.mark.parametrize("name", REGION_MODELS)
def test_standardised_models_do_not_see_the_scale_of_features(name):
    collator, words = read()
    regions = collator.regions(np.arange(9))
    scale, shift = torch.rand(6) * 50 + 0.1, torch.randn(6) * 20
    encoded = []
    for seen in (regions, regions * scale + shift):
        model = build(name, words, standardise=True).eval()
        model.fit_inputs(seen, collator.texts(np.arange(9)))
        with torch.no_grad():
            encoded.append(model.encode_images(seen).vectors)
    torch.testing.assert_close(*encoded, rtol=1e-3, atol=1e-4)


def test_statistics_are_those_of_all_regions():
    collator, words = read()
    regions = collator.regions(np.arange(9))
    model = build("scan", words, standardise=True)
    model.fit_inputs(regions, collator.texts(np.arange(2)))
    flat = regions.reshape(-1, 6)
    torch.testing.assert_close(model.inputs.scaled.mean, flat.mean(dim=0))
    torch.testing.assert_close(1 / model.inputs.scaled.scale, flat.std(dim=0))


def test_a_model_is_known_by_settings_that_are_on(tmp_path):
    plain = ModelConfig()
    known = settings_of_model(plain)
    recipe = small_recipe(tmp_path)
    for name, value in ALL.items():
        assert name not in known
        changed = replace(plain, **{name: value})
        assert settings_of_model(changed) == known | {name: value}
        other = replace(recipe, model=replace(recipe.model, **{name: value}))
        assert settings_that_matter(other) != settings_that_matter(recipe)
