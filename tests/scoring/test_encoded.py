"""Encoded data sets: rows without padding, blocks within a budget, ensembles of anything."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from aoq.config import parse_memory
from aoq.errors import UserError
from aoq.scoring.blocks import BLOCK_SIZE, block_size_for, block_size_within
from aoq.scoring.encoded import EncodedDataset, PackedEncoding, concatenate, encode_dataset
from aoq.scoring.ensemble import Ensemble
from aoq.scoring.inner_product import InnerProduct
from aoq.types import Encoding
from tests.conftest import uneven_dataset
from tests.evaluation.cases import ranks_in_blocks
from tests.scoring.cases import REGION_MODELS, collator_of, score_blocks, small_model, vocabulary_of


def padded_words(lengths, *, width=3):
    random = torch.Generator().manual_seed(sum(lengths))
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    vectors = torch.randn(len(lengths), max(lengths), width, generator=random)
    return Encoding(vectors * mask[..., None], mask)


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=4), min_size=1, max_size=4))
def test_rows_of_a_packed_encoding_are_those_that_went_in(parts):
    encodings = [padded_words(lengths) for lengths in parts]
    packed = concatenate(list(encodings))
    assert isinstance(packed, PackedEncoding)
    assert len(packed) == sum(map(len, parts))
    assert len(packed.vectors) == sum(map(sum, parts))  # no padding is kept
    row = 0
    for encoding in encodings:
        for vectors, mask in zip(encoding.vectors, encoding.mask, strict=True):
            taken = packed[row : row + 1]
            assert torch.equal(taken.vectors[0], vectors[mask])
            assert taken.mask.all()
            row += 1
    everything = packed[torch.arange(row).flip(0)]
    assert not everything.vectors[~everything.mask].any()
    assert everything.mask.sum(dim=1).tolist() == [n for part in parts for n in part][::-1]


@pytest.mark.parametrize("name", REGION_MODELS)
@pytest.mark.parametrize("batch_size", [1, 3, 128])
def test_every_image_and_text_is_encoded_at_its_own_place(name, batch_size):
    dataset = uneven_dataset(images=5)
    collator = collator_of(dataset)
    model = small_model(name, vocabulary=vocabulary_of(dataset))
    encoded = encode_dataset(model, collator, batch_size=batch_size)
    with torch.no_grad():
        for image in range(len(dataset)):
            alone = model.encode_images(collator.regions(np.array([image])))
            torch.testing.assert_close(encoded.images[image : image + 1].vectors, alone.vectors)
        for text in range(dataset.n_texts):
            alone = model.encode_texts(collator.texts(np.array([text])))
            torch.testing.assert_close(encoded.texts[text : text + 1].vectors, alone.vectors)


@pytest.mark.parametrize("block_size", [1, 2, 3, 100])
@pytest.mark.parametrize("name", REGION_MODELS)
def test_no_block_size_changes_a_score_or_a_rank_of_any_model(name, block_size):
    dataset = uneven_dataset(images=5)
    model = small_model(name, vocabulary=vocabulary_of(dataset))
    encoded = encode_dataset(model, collator_of(dataset))
    with torch.no_grad():
        whole = model.score_matrix(encoded.images[:], encoded.texts[:])
    for images, texts, scores in score_blocks(model, encoded, block_size=block_size):
        torch.testing.assert_close(scores, whole[images, texts], atol=1e-5, rtol=0)
    ranks = ranks_in_blocks(model, encoded, dataset.positives, block_size=block_size)
    expected = ranks_in_blocks(model, encoded, dataset.positives)
    np.testing.assert_array_equal(ranks.i2t, expected.i2t)
    np.testing.assert_array_equal(ranks.t2i, expected.t2i)


def test_an_ensemble_scores_with_the_mean_of_its_members():
    dataset = uneven_dataset(images=5)
    members = [
        small_model("scan", vocabulary=vocabulary_of(dataset), direction="t2i"),
        small_model("bfan", vocabulary=vocabulary_of(dataset)),
        small_model("vse", vocabulary=vocabulary_of(dataset)),
    ]
    encoded = [encode_dataset(member, collator_of(dataset)) for member in members]
    joint, ensemble = Ensemble.join(encoded), Ensemble(members)
    assert len(joint.texts) == dataset.n_texts
    with torch.no_grad():
        matrices = [
            member.score_matrix(part.images[:], part.texts[:])
            for member, part in zip(members, encoded, strict=True)
        ]
        expected = torch.stack(matrices).mean(dim=0)
        torch.testing.assert_close(ensemble.score_matrix(joint.images[:], joint.texts[:]), expected)
        pairs = torch.from_numpy(dataset.positives.pairs)
        scores = ensemble.score_pairs(joint.images[pairs[:, 0]], joint.texts[pairs[:, 1]])
    torch.testing.assert_close(scores, expected[pairs[:, 0], pairs[:, 1]], atol=1e-5, rtol=0)
    for images, texts, scores in score_blocks(ensemble, joint, block_size=2):
        torch.testing.assert_close(scores, expected[images, texts], atol=1e-5, rtol=0)


def test_a_smaller_budget_means_smaller_blocks_and_none_the_usual_ones():
    encoded = EncodedDataset(Encoding(torch.zeros(9000, 64)), Encoding(torch.zeros(9000, 64)))
    assert block_size_within(None, encoded) == BLOCK_SIZE
    sizes = [block_size_within(memory, encoded) for memory in ("140MiB", "256MiB", "1GiB")]
    assert 0 < sizes[0] < sizes[1] < sizes[2] < 9000
    assert block_size_within("16GiB", encoded) == 9000  # never more than there is


def test_blocks_grow_with_the_budget_up_to_1024_and_less_where_encodings_are_large():
    small, large = Encoding(torch.zeros(9000, 8)), Encoding(torch.zeros(9, 2**15))
    narrow, wide = EncodedDataset(small, small), EncodedDataset(small, large)
    sizes = [block_size_for(memory, narrow, beside=0) for memory in ("132MiB", "1GiB", None)]
    assert 0 < sizes[0] < sizes[1] == sizes[2] == 1024
    assert block_size_for(None, wide, beside=0) == 64 * 2**20 // (4 * 2**15)


def test_one_long_text_does_not_make_the_others_longer():
    lengths = [3] * 500 + [80]
    packed = concatenate([padded_words([length], width=16) for length in lengths])
    assert packed.nbytes < 2 * sum(lengths) * 16 * 4
    assert packed.row_nbytes == 80 * 16 * 4


@pytest.mark.parametrize("memory", ["1MiB", "129MiB"])
def test_a_budget_below_the_encodings_is_refused_with_what_is_needed(memory):
    images = Encoding(torch.zeros(3000, 256))
    with pytest.raises(UserError, match=r"too small: .* allow at least 1GiB"):
        block_size_within(memory, EncodedDataset(images, images))


@pytest.mark.parametrize("memory", ["lots", "2", "GiB", "-1GiB", "2GB/s"])
def test_a_budget_that_is_not_a_size_is_refused(memory):
    with pytest.raises(UserError, match="write it as 512MiB or 2GiB"):
        parse_memory(memory)


def test_an_encoding_that_is_not_finite_is_named():
    dataset = uneven_dataset(images=5)
    dataset.features[3] = np.inf
    model = small_model("vse", vocabulary=vocabulary_of(dataset))
    with pytest.raises(UserError, match=r"\(train\), image 3: .* is not finite"):
        encode_dataset(model, collator_of(dataset))


@pytest.mark.parametrize("training", [True, False])
def test_a_model_is_left_in_the_mode_it_was_in_even_if_encoding_fails(training):
    dataset = uneven_dataset(images=5)
    model = small_model("vse", vocabulary=vocabulary_of(dataset)).train(training)
    encoded = encode_dataset(model, collator_of(dataset))
    assert model.training == training
    assert not encoded.texts[:].vectors.requires_grad
    dataset.features[3] = np.inf
    with pytest.raises(UserError, match="not finite"):
        encode_dataset(model, collator_of(dataset))
    assert model.training == training


@settings(deadline=None)
@given(st.permutations(range(7)), st.integers(1, 7))
def test_rows_come_to_the_place_that_their_order_says(order, size):
    lengths = [2, 1, 4, 3, 1, 5, 2]
    words = padded_words(lengths)
    parts = [words[torch.tensor(order[start : start + size])] for start in range(0, 7, size)]
    packed = concatenate(list(parts), order=torch.tensor(order))
    assert torch.equal(packed.vectors, words.vectors[words.mask])  # text after text
    assert packed.lengths.tolist() == lengths
    plain = [Encoding(part.vectors[:, 0]) for part in parts]
    joined = concatenate(plain, order=torch.tensor(order))
    assert torch.equal(joined.vectors, words.vectors[:, 0])


def test_inner_products_keep_single_precision_in_mixed_precision():
    images = Encoding(torch.randn(4, 8, generator=torch.Generator().manual_seed(0)))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = InnerProduct().score_matrix(images, images)
    assert torch.equal(mixed, InnerProduct().score_matrix(images, images))
