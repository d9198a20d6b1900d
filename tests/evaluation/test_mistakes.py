"""The classic mistakes of this field, each of which makes a model look better than it is."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from aoq.data.collate import Collator
from aoq.data.splits import open_dataset, training_captions
from aoq.data.vocabulary import UNKNOWN, Vocabulary
from aoq.evaluation.metrics import Metrics
from aoq.evaluation.protocols import average, evaluate_encoded, judge_folds
from aoq.evaluation.ranks import ranks_of_matrix
from aoq.scoring.encoded import EncodedDataset
from aoq.scoring.inner_product import InnerProduct
from aoq.types import Encoding
from tests.conftest import write_precomp
from tests.evaluation.cases import encode, in_order, ranks_in_blocks

# Five texts an image


def test_an_image_is_answered_by_the_best_of_its_five_texts():
    positives = in_order(2)
    matrix = np.zeros((2, 10))
    matrix[0] = [0.1, 0.2, 0.9, 0.0, 0.3, 0.8, 0.7, 0.1, 0.1, 0.1]  # the third is first of all
    matrix[1] = [0.9, 0.8, 0.1, 0.1, 0.1, 0.7, 0.2, 0.0, 0.0, 0.0]  # two wrong ones before it
    assert ranks_of_matrix(matrix, positives).i2t.tolist() == [0, 2]


def test_the_other_texts_of_an_image_are_never_in_the_way():
    positives = in_order(2)
    matrix = np.array([[5.0, 4, 3, 2, 1, 0, 0, 0, 0, 0], [0.0, 0, 0, 0, 0, 1, 2, 3, 4, 5]])
    encoded = EncodedDataset(Encoding(torch.eye(2)), Encoding(torch.tensor(matrix.T).float()))
    metrics = evaluate_encoded(InnerProduct(), encoded, positives)
    assert metrics.rsum == 600
    assert metrics.i2t.mean_rank == metrics.t2i.mean_rank == 1


def test_every_text_asks_for_its_image_and_not_only_the_first_of_five():
    positives = in_order(2)
    matrix = np.zeros((2, 10))
    matrix[0, :5] = [1, -1, -1, -1, -1]
    matrix[1, 5:] = [1, -1, -1, -1, -1]
    metrics = Metrics.from_ranks(ranks_of_matrix(matrix, positives))
    assert metrics.t2i.r1 == 20
    assert metrics.i2t.r1 == 100


# Folds


def test_folds_are_averaged_and_never_pooled():
    """Medians of 1 and 9 average to 5; the median of all ranks together would be another."""
    positives = in_order(20, 1)
    images = torch.eye(20)
    texts = torch.eye(20)
    texts[10:] = 0
    for text in range(10, 20):  # in the second fold nine others come first
        texts[text, 10:] = 1
        texts[text, text] = 0.5
    texts[10] = torch.eye(20)[10]
    encoded = EncodedDataset(Encoding(images), Encoding(texts))
    folds = judge_folds(InnerProduct(), encoded, positives, folds=2)
    medians = [fold.metrics.t2i.median_rank for fold in folds]
    pooled = np.concatenate([fold.ranks.t2i for fold in folds])
    assert medians == [1, 10]
    assert average(folds).t2i.median_rank == 5.5
    assert average(folds).t2i.median_rank != np.floor(np.median(pooled)) + 1


def test_a_fold_has_no_answers_of_other_folds():
    positives = in_order(10)
    encoded = encode(positives, noise=3.0)
    for fold in judge_folds(InnerProduct(), encoded, positives, folds=5):
        assert (fold.ranks.i2t <= 5).all()  # the five texts of the other image
        assert (fold.ranks.t2i <= 1).all()


# Words of the test set


def test_words_of_the_test_set_are_unknown(tmp_path):
    folder = write_precomp(tmp_path / "data")
    captions = folder / "test_caps.txt"
    lines = captions.read_text().splitlines()
    captions.write_text("\n".join(["zebra " * 9, *lines[1:]]) + "\n")
    vocabulary = Vocabulary.build(training_captions(folder), min_count=1)
    assert "zebra" not in vocabulary.words
    texts = Collator(open_dataset(folder, "test"), vocabulary).texts(np.array([0]))
    assert (texts.tokens[0, 1:-1] == UNKNOWN).all()


# Ties


@pytest.mark.parametrize("folds", [1, 2])
@pytest.mark.parametrize("value", [0.0, 0.3, -7.0, 1e4, float("nan")])
def test_constant_scores_are_not_an_achievement(value, folds):
    positives = in_order(20)

    class Constant(InnerProduct):
        def score_matrix(self, images, texts):
            return torch.full((len(images), len(texts)), value)

        def score_pairs(self, images, texts):
            return torch.full((len(images),), value)

    metrics = evaluate_encoded(Constant(), encode(positives), positives, folds=folds)
    assert metrics.rsum == (0 if folds == 1 else 100)  # a fold has ten images: ten are all
    assert Metrics.from_ranks(ranks_of_matrix(np.full((20, 100), value), positives)).rsum == 0


@pytest.mark.parametrize("ahead", [5e-6, 1e-2])
def test_a_collapsed_model_whose_pairs_score_higher_than_its_matrix_is_not_an_achievement(ahead):
    """Right and wrong answers are compared by the same method of the scorer."""
    positives = in_order(20)

    class Collapsed(InnerProduct):
        def score_matrix(self, images, texts):
            return torch.full((len(images), len(texts)), 0.3)

        def score_pairs(self, images, texts):
            return torch.full((len(images),), 0.3 + ahead)

    assert evaluate_encoded(Collapsed(), encode(positives), positives).rsum == 0


def test_a_tie_with_one_wrong_answer_costs_one_rank():
    matrix = np.array([[0.5, 0.5], [0.1, 0.9]])
    ranks = ranks_of_matrix(matrix, in_order(2, 1))
    assert ranks.i2t.tolist() == [1, 0]
    assert ranks.t2i.tolist() == [0, 0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_scores_that_tie_in_half_precision_count_against_the_model(dtype):
    """A right answer ahead by less than the last digit of its score is not ahead."""
    positives = in_order(100, 1)

    class Rounded(InnerProduct):
        """As a scorer in half precision: small blocks and large ones may differ by a rounding."""

        def score_matrix(self, images, texts):
            exact = super().score_matrix(images, texts).to(dtype)
            higher = torch.nextafter(exact, torch.full_like(exact, torch.inf))
            return higher if len(texts) < len(positives.pairs) else exact

    same = torch.full((100, 8), 0.3)
    collapsed = EncodedDataset(Encoding(same), Encoding(same))
    ranks = ranks_in_blocks(Rounded(), collapsed, positives)
    assert (ranks.i2t == 99).all()
    assert (ranks.t2i == 99).all()


def test_scores_are_not_rounded_to_half_precision_on_the_way():
    """Encodings in float16 are scored in float32: a lead of 1e-4 is a lead."""
    texts = torch.tensor([[1.0, 0.0], [1.0, 1.0]], dtype=torch.float16)
    images = torch.tensor([[1.0, 0.0], [1.0, 1e-4]], dtype=torch.float16)
    encoded = EncodedDataset(Encoding(images), Encoding(texts))
    ranks = ranks_in_blocks(InnerProduct(), encoded, in_order(2, 1))
    assert ranks.t2i.tolist() == [1, 0]  # the first text scores both images 1: a tie
    assert ranks.i2t.tolist() == [1, 0]


# Images stored once a caption


def test_images_stored_once_a_caption_are_counted_once(tmp_path):
    """Five copies of every image would let image retrieval find any of the five."""
    once = write_precomp(tmp_path / "once")
    repeated = write_precomp(tmp_path / "repeated")
    for split in ("train", "dev", "test"):
        path = repeated / f"{split}_ims.npy"
        np.save(path, np.repeat(np.load(path), 5, axis=0))
    one, five = open_dataset(once, "test"), open_dataset(repeated, "test")
    assert len(five) == len(one) == five.n_texts // 5

    def judge(dataset):
        images = torch.from_numpy(np.array(dataset.features).reshape(len(dataset), -1))
        owners = torch.arange(dataset.n_texts) // 5
        noise = torch.randn(dataset.n_texts, 24, generator=torch.Generator().manual_seed(0))
        encoded = EncodedDataset(Encoding(images), Encoding(images[owners] + 9 * noise))
        return evaluate_encoded(InnerProduct(), encoded, dataset.positives)

    assert judge(five) == judge(one)
    assert 0 < judge(one).t2i.r1 < 100
