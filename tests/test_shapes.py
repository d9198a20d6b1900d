"""Wrong shapes and dtypes are refused at the library's edges, not broadcast."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import aoq
from aoq.errors import UserError
from aoq.evaluation.folds import split_into_folds
from aoq.mining.candidates import CandidateLists, Provenance
from aoq.sampling import OfflineSampler
from aoq.scoring.encoded import EncodedDataset
from aoq.scoring.inner_product import InnerProduct
from aoq.types import Encoding, Positives, Texts

B = 4
RELATION = Positives.from_pairs([(n, n) for n in range(B)], n_images=B, n_texts=B)
NOWHERE = aoq.Provenance(teacher="", data="")


def wide_lists(dtype):
    ids, scores = np.zeros((B, 1), dtype), np.zeros((B, 1), np.float32)
    return aoq.CandidateLists(ids, scores, ids, scores, NOWHERE)


def mine_all(**options):
    vectors = Encoding(torch.rand(B, 3))
    encoded = EncodedDataset(images=vectors, texts=vectors)
    config = aoq.MiningConfig(depth_texts=1, depth_images=1)
    model = InnerProduct()
    return aoq.mine(model, encoded, RELATION, config=config, provenance=NOWHERE, **options)


VECTOR, COLUMN = torch.rand(B), torch.rand(B, 1)
SQUARE = torch.rand(B, B)
TRUE = torch.ones(B, dtype=torch.bool)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: aoq.OfflineScores(COLUMN, COLUMN), r"i2t has the shape \(4, 1\).*\(B,\)"),
        (lambda: aoq.OfflineScores(VECTOR, COLUMN), r"t2i has the shape \(4, 1\).*\(4,\)"),
        (lambda: aoq.OfflineScores(VECTOR, None), "t2i is a NoneType"),
        (lambda: aoq.OfflineScores(VECTOR, VECTOR, COLUMN), "derived has the shape"),
        (lambda: aoq.OfflineScores(VECTOR, VECTOR, partners=VECTOR[:2]), "partners has the shape"),
        (lambda: aoq.OfflineScores(VECTOR, VECTOR, derived_mask=VECTOR), "derived_mask .* bool"),
        (lambda: aoq.OfflineScores(VECTOR.long(), VECTOR), "i2t .*int64; .*fractions"),
        (lambda: aoq.BatchScores(SQUARE[:3]), r"matrix has the shape \(3, 4\).*\(B, B\)"),
        (lambda: aoq.BatchScores([[1.0]]), "matrix is a list"),
        (lambda: aoq.BatchScores(SQUARE, SQUARE.int()), "negatives .*int32; .*bool"),
        (lambda: aoq.BatchScores(SQUARE, TRUE), r"negatives has the shape \(4,\)"),
        (
            lambda: aoq.BatchScores(SQUARE, offline=aoq.OfflineScores(VECTOR[:3], VECTOR[:3])),
            "offline holds the scores of 3 pairs and matrix those of 4",
        ),
        (lambda: aoq.BatchScores(SQUARE, offline=VECTOR), "offline is a Tensor"),
        (lambda: aoq.compute_loss(SQUARE, aoq.LossConfig()), "not a Tensor and a LossConfig"),
        (lambda: aoq.compute_loss(aoq.BatchScores(SQUARE), "online"), "and a str"),
        (lambda: Texts(torch.rand(2, 3), torch.ones(2).long()), "tokens .* whole numbers"),
        (lambda: Texts(torch.ones(2, 3).long(), torch.ones(2, 1).long()), r"lengths .*\(2,\)"),
        (lambda: Encoding(VECTOR), r"vectors has the shape \(4,\).*\(N, D\) or \(N, L, D\)"),
        (lambda: Encoding(SQUARE, SQUARE > 0), r"vectors .*expected .*\(N, L, D\)"),
        (lambda: Encoding(torch.rand(2, 3, 4), torch.ones(2, 4).bool()), r"mask .*\(2, 3\)"),
        (lambda: Encoding(SQUARE, context=torch.rand(3, 2, 4)), r"context .*\(4, R, D\)"),
        (lambda: Positives.from_pairs([0, 1, 2, 3], n_images=4, n_texts=4), r"pairs .*\(P, 2\)"),
        (lambda: Positives.from_pairs(np.ones((2, 3), int), n_images=4, n_texts=4), r"\(2, 3\)"),
        (lambda: Positives.from_pairs([(0.0, 1.5)], n_images=4, n_texts=4), "float64"),
        (lambda: Positives(np.zeros(3, int), 4, 4), r"pairs has the shape \(3,\)"),
        (lambda: aoq.Collator("data", len), "the data set is a str"),
        (lambda: aoq.build_model(aoq.ModelConfig(), feature_width=2.5, vocabulary_size=9), "width"),
        (lambda: aoq.build_model(aoq.ModelConfig(), feature_width=0, vocabulary_size=9), "width"),
        (lambda: aoq.Vocabulary.build("a dog"), "expected a list of captions"),
        (lambda: aoq.Vocabulary.build(["a dog"], min_count=2.5), "min_count is 2.5"),
        (lambda: split_into_folds(RELATION, 2.5), "folds is 2.5; expected a whole number"),
        (lambda: wide_lists(np.int64).save("lists.safetensors"), "ids are int64"),
        (lambda: mine_all(captions=["a"]), "captions has 1 entries; expected 4"),
        (lambda: mine_all(block_size=0), "block_size is 0"),
    ],
)
def test_a_wrong_shape_or_dtype_is_refused(make, sentence):
    with pytest.raises(UserError, match=sentence):
        make()


def test_the_inner_product_takes_one_vector_each_of_one_width():
    scorer, some = aoq.InnerProduct(), Encoding(torch.rand(3, 4))
    with pytest.raises(UserError, match=r"\(3, 4\) and texts \(3, 2, 4\)"):
        scorer.score_matrix(some, Encoding(torch.rand(3, 2, 4)))
    with pytest.raises(UserError, match=r"\(3, 4\) and texts \(3, 5\)"):
        scorer.score_matrix(some, Encoding(torch.rand(3, 5)))
    with pytest.raises(UserError, match="3 images and 1 texts cannot be paired"):
        scorer.score_pairs(some, Encoding(torch.rand(1, 4)))


PAIRS = Positives.from_pairs([(i, i) for i in range(B)], n_images=B, n_texts=B)


def lists_of(n_images=B, n_texts=B):
    ids = [(np.arange(n, dtype=np.int32) + 1)[:, None] % B for n in (n_images, n_texts)]
    i2t, t2i = ids
    scores = [np.zeros(part.shape, np.float32) for part in ids]
    return CandidateLists(i2t, scores[0], t2i, scores[1], Provenance(teacher="", data=""))


def sampler_of(lists):
    return OfflineSampler(
        lists, PAIRS, config=aoq.SamplingConfig(depth_texts=1, depth_images=1), seed=0
    )


def test_lists_of_another_data_set_are_not_drawn_from():
    with pytest.raises(UserError, match="lists are of 3 images and 4 texts"):
        sampler_of(lists_of(n_images=3))


def test_draws_take_one_image_and_one_text_a_pair():
    draw, ids = sampler_of(lists_of()).draw, np.arange(B)
    assert draw(ids, ids, epoch=0, step=0).texts.shape == (B,)
    with pytest.raises(UserError, match=r"image_ids has the shape \(4, 1\)"):
        draw(ids[:, None], ids, epoch=0, step=0)
    with pytest.raises(UserError, match=r"image_ids has the shape \(3,\).*\(4,\)"):
        draw(ids[:3], ids, epoch=0, step=0)
    with pytest.raises(UserError, match="text_ids holds ids outside 0 to 3"):
        draw(ids, ids + 1, epoch=0, step=0)


def mine(scorer, positives=PAIRS):
    encoding = Encoding(torch.eye(B))
    return aoq.mine(
        scorer,
        EncodedDataset(encoding, encoding),
        positives,
        config=aoq.MiningConfig(depth_texts=1, depth_images=1),
        provenance=aoq.Provenance(teacher="", data=""),
    )


class Flat(aoq.InnerProduct):
    def score_matrix(self, images, texts):
        return super().score_matrix(images, texts)[:, :1]


def test_mining_refuses_positives_of_other_data_and_scores_of_another_shape():
    fewer = Positives.from_pairs([(0, 0)], n_images=1, n_texts=1)
    with pytest.raises(UserError, match=r"4 images and 4 texts .* about 1 and 1"):
        mine(aoq.InnerProduct(), fewer)
    with pytest.raises(UserError, match=r"score_matrix.* has the shape \(4, 1\)"):
        mine(Flat())


class Towers(aoq.InnerProduct, nn.Module):
    def __init__(self, encode):
        super().__init__()
        self.encode = encode

    def encode_images(self, regions):
        return self.encode(regions.flatten(1))

    def encode_texts(self, texts):
        return Encoding(texts.tokens.float().mean(dim=1, keepdim=True).expand(-1, 6))


def collator():
    dataset = aoq.PairDataset.of(np.ones((2, 1, 6), np.float32), ["a", "b"], [(0, 0), (1, 1)])
    return aoq.Collator(dataset, lambda caption: [ord(caption)])


@pytest.mark.parametrize(
    ("encode", "sentence"),
    [
        (lambda vectors: vectors, "encode_images returned a Tensor of 2 images"),
        (lambda vectors: Encoding(vectors[:1]), "encode_images returned 1 rows of 2 images"),
    ],
)
def test_evaluation_refuses_what_is_not_a_row_for_each(encode, sentence):
    assert aoq.evaluate(Towers(Encoding), collator()).rsum > 0
    with pytest.raises(UserError, match=sentence):
        aoq.evaluate(Towers(encode), collator())


def test_evaluation_refuses_a_data_set_in_place_of_batches():
    with pytest.raises(UserError, match="are a PairDataset; expected a Collator"):
        aoq.evaluate(Towers(Encoding), collator().dataset)


def test_evaluation_refuses_a_score_matrix_of_another_shape():
    class Wrong(Flat, Towers):
        pass

    with pytest.raises(UserError, match=r"score_matrix.* has the shape \(2, 1\)"):
        aoq.evaluate(Wrong(Encoding), collator())
