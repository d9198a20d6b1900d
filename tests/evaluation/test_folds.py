"""Folds are small test sets of their own, and their figures are averaged."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from aoq.errors import UserError
from aoq.evaluation.folds import split_into_folds
from aoq.evaluation.metrics import Metrics
from aoq.evaluation.protocols import average, evaluate_encoded, judge_folds
from aoq.evaluation.ranks import ranks_of_matrix
from aoq.scoring.encoded import EncodedDataset, PackedEncoding
from aoq.scoring.ensemble import Ensemble
from aoq.scoring.inner_product import InnerProduct
from aoq.types import Encoding, Positives
from tests.evaluation.cases import encode, in_order, matrix_of, uneven


class WordMeans:
    """Scores texts by the mean of their words."""

    def score_matrix(self, images, texts):
        return images.vectors @ self._means(texts).T

    def score_pairs(self, images, texts):
        return (images.vectors * self._means(texts)).sum(dim=1)

    def _means(self, texts):
        return texts.vectors.sum(dim=1) / texts.mask.sum(dim=1, keepdim=True)


def plain_fold(matrix, positives, images):
    """The metrics of some images and their texts, cut out of the whole matrix."""
    texts = sorted({text for image in images for text in positives.texts_of(image).tolist()})
    pairs = [
        (row, texts.index(text))
        for row, image in enumerate(images)
        for text in positives.texts_of(image)
    ]
    own = Positives.from_pairs(pairs, n_images=len(images), n_texts=len(texts))
    return Metrics.from_ranks(ranks_of_matrix(matrix[np.ix_(images, texts)], own))


@pytest.mark.parametrize("positives", [in_order(20), in_order(20, 3), uneven(20), uneven(20, 1)])
def test_each_fold_is_ranked_among_its_own_and_the_figures_are_averaged(positives):
    encoded = encode(positives)
    found = judge_folds(InnerProduct(), encoded, positives, folds=4)
    parts = [range(start, start + 5) for start in range(0, 20, 5)]
    expected = [plain_fold(matrix_of(encoded), positives, list(part)) for part in parts]
    assert [fold.metrics for fold in found] == expected
    assert average(found).i2t.r1 == pytest.approx(np.mean([part.i2t.r1 for part in expected]))
    assert average(found).rsum == pytest.approx(np.mean([part.rsum for part in expected]))


def test_folds_differ_from_the_whole_by_having_fewer_wrong_answers():
    positives = in_order(40)
    encoded = encode(positives, noise=2.0)
    whole = evaluate_encoded(InnerProduct(), encoded, positives)
    folds = evaluate_encoded(InnerProduct(), encoded, positives, folds=4)
    assert folds.rsum > whole.rsum
    assert evaluate_encoded(InnerProduct(), encoded, positives, folds=1) == whole


def test_ensembles_and_texts_of_many_words_are_judged_in_folds_too():
    positives = uneven(12)
    vectors = encode(positives)
    lengths = torch.arange(positives.n_texts) % 4 + 1
    words = torch.repeat_interleave(vectors.texts.vectors, lengths, dim=0)
    packed = EncodedDataset(vectors.images, PackedEncoding(words, lengths))
    expected = evaluate_encoded(InnerProduct(), vectors, positives, folds=3)
    assert evaluate_encoded(WordMeans(), packed, positives, folds=3) == expected
    both = Ensemble.join([vectors, packed])
    members = Ensemble([InnerProduct(), WordMeans()])
    assert evaluate_encoded(members, both, positives, folds=3) == expected


def test_where_images_do_not_divide_the_first_folds_have_one_more():
    folds = split_into_folds(in_order(11), 3)
    assert [len(fold.images) for fold in folds] == [4, 4, 3]
    assert np.concatenate([fold.images for fold in folds]).tolist() == list(range(11))
    assert np.concatenate([fold.texts for fold in folds]).tolist() == list(range(55))


@pytest.mark.parametrize("count", [0, 12])
def test_folds_that_are_not_possible_are_refused(count):
    with pytest.raises(UserError, match="folds"):
        split_into_folds(in_order(11), count)


def test_a_memory_budget_changes_no_figure():
    positives = in_order(20)
    encoded = encode(positives)
    assert evaluate_encoded(
        InnerProduct(), encoded, positives, folds=2, memory="200MiB"
    ) == evaluate_encoded(InnerProduct(), encoded, positives, folds=2)
    with pytest.raises(UserError, match="too small"):
        evaluate_encoded(InnerProduct(), encoded, positives, memory="1MiB")
    assert isinstance(encoded.texts, Encoding)
