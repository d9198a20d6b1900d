"""Bags of words, and CCA on them, against matrices with a column for every word."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from aoq.config import ModelConfig
from aoq.data.collate import Collator
from aoq.data.vocabulary import Vocabulary
from aoq.errors import UserError
from aoq.models import build_model
from aoq.models.bags import BagOfWords, map_bags
from aoq.models.cca import CCA, Directions, Moments
from tests.conftest import uneven_dataset

WEIGHTS = ("tfidf", "counts")


def collator() -> Collator:
    dataset = uneven_dataset(images=40, seed=1)
    return Collator(dataset, Vocabulary.build(dataset.captions, min_count=1))


def words_of(collator: Collator) -> Vocabulary:
    assert isinstance(collator.tokenizer, Vocabulary)
    return collator.tokenizer


def bags_of(collator: Collator, weights: str) -> np.ndarray:
    """The bags of all texts as a matrix with a column for every word of the vocabulary. (M, V)"""
    words, captions = words_of(collator).ids, collator.dataset.captions
    bags = np.zeros((len(captions), len(words)))
    for row, caption in zip(bags, captions, strict=True):
        for word in caption.split():
            row[words[word]] += 1
    if weights == "tfidf":
        for column in bags.T:
            column *= math.log((1 + len(bags)) / (1 + np.count_nonzero(column))) + 1
    return bags / np.linalg.norm(bags, axis=1, keepdims=True)


@pytest.mark.parametrize("weights", WEIGHTS)
def test_a_mapped_bag_is_the_product_of_its_row_and_the_matrix(weights: str) -> None:
    read = collator()
    texts = read.texts(np.arange(read.dataset.n_texts))
    bag = BagOfWords(len(words_of(read)), weights=weights)  # type: ignore[arg-type]
    bag.fit(texts)
    matrix = torch.randn(len(words_of(read)), 5)
    expected = bags_of(read, weights) @ matrix.double().numpy()
    found = map_bags(texts.tokens, bag(texts), matrix)
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-5)


def test_words_that_are_not_known_count_nothing() -> None:
    read = collator()
    bag = BagOfWords(len(words_of(read)), weights="tfidf")
    bag.fit(read.texts(np.arange(read.dataset.n_texts)))
    unknown = words_of(read).encode("zebra red zebra")
    known = words_of(read).encode("red")
    matrix = torch.randn(len(words_of(read)), 5)
    for ids in (unknown, known):
        texts = Collator(uneven_dataset(images=1), lambda _, ids=ids: ids).texts(np.array([0]))
        found = map_bags(texts.tokens, bag(texts), matrix)[0]
        torch.testing.assert_close(found, matrix[words_of(read).ids["red"]])
    nothing = Collator(uneven_dataset(images=1), lambda _: [1, 3, 2]).texts(np.array([0]))
    assert not bag(nothing).any()


def fitted(read: Collator, **settings: object) -> CCA:
    """A CCA of all pairs, in parts of unequal sizes."""
    config = ModelConfig(name="cca", **settings)  # type: ignore[arg-type]
    model = build_model(config, feature_width=6, vocabulary_size=len(words_of(read)))
    assert isinstance(model, CCA)
    pairs = read.dataset.positives.pairs
    parts = [pairs[start : start + 7] for start in range(0, len(pairs), 7)]
    model.fit_inputs(read.regions(np.arange(3)), read.texts(np.arange(read.dataset.n_texts)))
    model.fit(((read.regions(part[:, 0]), read.texts(part[:, 1])) for part in parts), epoch=0)
    return model


def expected_directions(read: Collator, ridge: float) -> tuple[np.ndarray, np.ndarray]:
    """The correlations and image directions, by the eigenvectors of the unsymmetric product."""
    images, texts = read.dataset.positives.pairs.T
    seen = read.dataset.features[images].astype(float).mean(axis=1)
    seen = (seen - seen.mean(axis=0)) / seen.std(axis=0)
    bags = bags_of(read, "tfidf")[texts]
    bags = bags - bags.mean(axis=0)

    def ridged(rows: np.ndarray) -> np.ndarray:
        covariance = rows.T @ rows / len(rows)
        return covariance + ridge * np.diag(covariance).mean() * np.eye(len(covariance))

    both = seen.T @ bags / len(seen)
    product = np.linalg.solve(ridged(seen), both @ np.linalg.solve(ridged(bags), both.T))
    values, vectors = np.linalg.eig(product)
    order = np.argsort(-values.real)
    return np.sqrt(values.real[order]), vectors.real[:, order]


@pytest.mark.parametrize("ridge", [0.01, 0.5])
def test_cca_finds_the_directions_that_correlate_most(ridge: float) -> None:
    read = collator()
    model = fitted(read, ridge=ridge, joint_width=6, correlation_power=0.0)
    moments = Moments(feature_width=6, vocabulary_size=len(words_of(read)))
    pairs = read.dataset.positives.pairs
    texts = read.texts(pairs[:, 1])
    moments.add(read.regions(pairs[:, 0]).mean(dim=1), texts.tokens, model.bag(texts))
    directions = Directions.of(moments, ridge=ridge, width=6)
    correlations, expected = expected_directions(read, ridge)
    np.testing.assert_allclose(directions.correlations.numpy(), correlations, atol=1e-6)
    means = read.dataset.features[pairs[:, 0]].astype(float).mean(axis=1)
    found = directions.images.numpy() * means.std(axis=0)[:, None]  # of standardised features
    cosines = (found * expected).sum(axis=0) / np.linalg.norm(found, axis=0)
    np.testing.assert_allclose(np.abs(cosines), np.linalg.norm(expected, axis=0), atol=1e-6)
    torch.testing.assert_close(model.image_map, directions.images.float(), rtol=1e-3, atol=1e-4)


def test_without_a_ridge_projections_of_pairs_correlate_by_the_correlations() -> None:
    read = collator()
    model = fitted(read, ridge=1e-9, joint_width=3, correlation_power=0.0).double()
    pairs = read.dataset.positives.pairs
    texts = read.texts(pairs[:, 1])
    with torch.no_grad():
        seen = read.regions(pairs[:, 0]).double().mean(dim=1) @ model.image_map
        said = map_bags(texts.tokens, model.bag(texts), model.text_map)
    found = [np.corrcoef(seen[:, k], said[:, k])[0, 1] for k in range(3)]
    np.testing.assert_allclose(found, expected_directions(read, 1e-9)[0][:3], atol=1e-3)


def test_directions_count_by_a_power_of_their_correlation() -> None:
    read = collator()
    plain, weighted = (
        fitted(read, ridge=0.1, joint_width=4, correlation_power=power) for power in (0.0, 2.0)
    )
    correlations = torch.from_numpy(expected_directions(read, 0.1)[0][:4]).float()
    for name in ("image_map", "text_map"):
        one, two = getattr(plain, name), getattr(weighted, name)
        torch.testing.assert_close(two, one * correlations**2, rtol=1e-3, atol=1e-5)


def test_a_ridge_that_is_too_small_is_refused_with_what_to_do() -> None:
    moments = Moments(feature_width=3, vocabulary_size=2)
    images = torch.randn(4, 1).expand(4, 3)  # features that are one
    moments.add(images, torch.tensor([[0], [1], [0], [1]]), torch.ones(4, 1))
    moments.images -= 1e-3 * torch.eye(3)  # as rounding may, in larger matrices
    with pytest.raises(UserError, match=r"raise model\.ridge"):
        Directions.of(moments, ridge=1e-12, width=1)


def test_a_space_wider_than_the_features_has_their_width() -> None:
    assert fitted(collator(), joint_width=50).image_map.shape == (6, 6)


@pytest.mark.parametrize("name", ["bow", "cca"])
def test_models_of_bags_read_no_text_tower(name: str) -> None:
    with pytest.raises(UserError, match="counts words of a vocabulary"):
        ModelConfig(name=name, words="some-model")  # type: ignore[arg-type]
