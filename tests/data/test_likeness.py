"""The likeness of captions against sets of words, one pair at a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from aoq.data.checks.resemblance import words_of
from aoq.data.likeness import CaptionLikeness
from aoq.types import Positives
from tests.conftest import uneven_dataset


def jaccard(one, other):
    one, other = set(words_of(one)), set(words_of(other))
    return len(one & other) / max(len(one | other), 1)


@pytest.mark.parametrize("seed", range(3))
def test_a_text_is_as_like_an_image_as_its_nearest_caption(seed):
    dataset = uneven_dataset(images=10, seed=seed)
    likeness = CaptionLikeness(dataset.positives, dataset.captions)
    random = np.random.default_rng(seed)
    images, texts = random.integers(10, size=7), random.integers(dataset.n_texts, size=9)
    expected = [
        [
            max(
                jaccard(dataset.captions[own], dataset.captions[text])
                for own in dataset.positives.texts_of(image)
            )
            for text in texts
        ]
        for image in images
    ]
    found = likeness.between(images, texts)
    torch.testing.assert_close(found, torch.tensor(expected))
    assert 0 <= float(found.min()) < float(found.max()) <= 1


def test_an_own_caption_is_wholly_alike():
    dataset = uneven_dataset()
    images, texts = dataset.positives.pairs.T
    found = CaptionLikeness(dataset.positives, dataset.captions).between(images, texts)
    assert torch.equal(found.diagonal(), torch.ones(len(texts)))


def test_a_caption_without_words_is_like_none_and_no_error():
    pairs = Positives.from_pairs([(0, 0), (1, 1)], n_images=2, n_texts=2)
    found = CaptionLikeness(pairs, ["...", "a dog"]).between(np.array([0, 1]), np.array([0, 1]))
    assert found.tolist() == [[0, 0], [0, 1]]
