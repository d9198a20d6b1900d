"""Small data sets with known lists, and what they are compared by."""

from __future__ import annotations

import json
from contextlib import contextmanager

import numpy as np
import torch

from aoq.mining.candidates import CandidateLists, Provenance
from aoq.scoring.encoded import EncodedDataset
from aoq.types import Encoding, Positives

NOWHERE = Provenance(teacher="", data="")


def embedded(images, texts):
    """One vector an image and a text, as given."""
    return EncodedDataset(
        Encoding(torch.as_tensor(images, dtype=torch.float32)),
        Encoding(torch.as_tensor(texts, dtype=torch.float32)),
    )


def encoded_from(matrix):
    """Encodings whose scores are this matrix, to the last bit: one axis an image."""
    return embedded(np.eye(len(matrix)), matrix.T)


def five_texts_an_image(n_images, n_texts):
    """Text t belongs to image t // 5, in turns where there are more texts."""
    texts = np.arange(n_texts)
    pairs = np.stack([texts // 5 % n_images, texts], axis=1)
    return Positives.from_pairs(pairs, n_images=n_images, n_texts=n_texts)


def matrix_of(kind, n_images, n_texts, *, seed=0):
    """Scores of a kind that mining meets, or that its guesses are wrong about."""
    random = np.random.default_rng(seed)
    noise = random.normal(size=(n_images, n_texts))
    place = np.linspace(0, 1, n_images)[:, None] - np.linspace(0, 1, n_texts)
    scores = {
        "without order": noise,
        "by topic": noise * 0.1 - abs(place),  # images and texts of a topic follow each other
        "rising": noise * 0.1 - place,
        "falling": noise * 0.1 + place,
        "two scores": noise > 1.0,
        "few scores": np.round(noise),
        "few scores by topic": np.round(8 * (noise * 0.1 - abs(place))),
        "one score": np.zeros_like(noise),
    }
    return scores[kind].astype(np.float32)


def negatives_of(matrix, positives):
    """The matrix with the positives masked with -inf."""
    matrix = matrix.copy()
    matrix[tuple(positives.pairs.T)] = -np.inf
    return matrix


def best_of_rows(matrix, depth):
    """Ids of the best of each row, equal scores by rising id."""
    return np.argsort(-matrix, axis=1, kind="stable")[:, :depth]


def proposed_pairs(proposals):
    """Whether either side proposes a pair. (images, texts)"""
    proposed = np.zeros((len(proposals.i2t), len(proposals.t2i)), dtype=bool)
    np.put_along_axis(proposed, proposals.i2t.astype(np.int64), True, axis=1)
    np.put_along_axis(proposed.T, proposals.t2i.astype(np.int64), True, axis=1)
    return proposed


def assert_exact(lists, matrix, positives):
    """Ids and scores are those of the full matrix, ties included."""
    full = negatives_of(matrix, positives)
    for ids, scores, rows in (
        (lists.i2t, lists.i2t_scores, full),
        (lists.t2i, lists.t2i_scores, full.T),
    ):
        expected = best_of_rows(rows, ids.shape[1])
        np.testing.assert_array_equal(ids, expected)
        np.testing.assert_array_equal(scores, np.take_along_axis(rows, expected, axis=1))


def assert_close(lists, matrix, positives, *, tolerance=1e-5):
    """Scores are those of the full matrix within the tolerance, and ids but for such scores."""
    full = negatives_of(matrix, positives)
    for ids, scores, rows in (
        (lists.i2t, lists.i2t_scores, full),
        (lists.t2i, lists.t2i_scores, full.T),
    ):
        expected = np.take_along_axis(rows, best_of_rows(rows, ids.shape[1]), axis=1)
        np.testing.assert_allclose(scores, expected, atol=tolerance, rtol=0)
        listed = np.take_along_axis(rows, ids, axis=1)
        np.testing.assert_allclose(listed, expected, atol=tolerance, rtol=0)


@contextmanager
def threads(count):
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


DISTINCT = ("without order", "by topic", "rising", "falling")
TIED = ("two scores", "few scores", "few scores by topic", "one score")


def sound_lists(dataset, depth=3) -> CandidateLists:
    def lists(relation):
        return np.stack(
            [
                np.setdiff1d(np.arange(relation.n_texts), relation.texts_of(anchor))[:depth]
                for anchor in range(relation.n_images)
            ]
        ).astype(np.int32)

    def falling(shape):
        scores = np.random.default_rng(0).normal(size=shape).astype(np.float32)
        return -np.sort(-scores, axis=1)

    i2t, t2i = lists(dataset.positives), lists(dataset.positives.swapped)
    provenance = Provenance(teacher="teacher", data=dataset.fingerprint, rules=("one", "two"))
    return CandidateLists(i2t, falling(i2t.shape), t2i, falling(t2i.shape), provenance)


def provenance(**fields):
    return json.dumps({"teacher": "teacher", "data": "data", "rules": [], **fields})
