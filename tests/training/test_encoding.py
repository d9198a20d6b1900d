"""Encoding in pieces: the loss and gradients of a whole step with the memory of a piece."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import normalize

from aoq.config import LossConfig, ModelConfig, RoundConfig, SamplingConfig
from aoq.data.collate import Collator
from aoq.data.vocabulary import Vocabulary
from aoq.errors import UserError
from aoq.losses import LOSSES
from aoq.models import build_model
from aoq.sampling import OfflineSampler
from aoq.scoring.inner_product import InnerProduct
from aoq.training.inputs import open_training_data
from aoq.training.step import make_batches, step_loss
from aoq.training.two_rounds import run_recipe, train_round
from aoq.types import Encoding
from tests.conftest import uneven_dataset
from tests.training.cases import small_recipe
from tests.training.steps_in_processes import everything_wrong


@pytest.fixture(scope="module")
def collator():
    dataset = uneven_dataset(images=12, seed=3)
    return Collator(dataset, Vocabulary.build(dataset.captions, min_count=1))


def batch_of(collator, loss, *, size=9):
    positives = collator.dataset.positives
    sampler = OfflineSampler(
        everything_wrong(positives), positives, config=SamplingConfig(), seed=0
    )
    settings = RoundConfig(loss=LossConfig(name=loss))
    pairs = positives.pairs[:size]
    (batch,) = make_batches(collator, pairs, settings=settings, sampler=sampler, epoch=0, step=0)
    return settings.loss, replace(batch, regions=batch.regions.double())


def n_words(collator):
    return 1 + int(collator.texts(np.arange(collator.dataset.n_texts)).tokens.max())


def small_model(name, collator):
    torch.manual_seed(0)
    config = ModelConfig(name=name, joint_width=8, word_width=5)
    return build_model(config, feature_width=6, vocabulary_size=n_words(collator)).double().train()


def gradients(model, batch, loss, at_once):
    """The loss of a step, and the gradients of all parameters."""
    torch.manual_seed(1)
    model.zero_grad()
    total = step_loss(model, batch, loss, encode_at_once=at_once).loss.total
    total.backward()
    return total.detach(), {name: value.grad for name, value in model.named_parameters()}


@pytest.mark.parametrize("at_once", [1, 4, 100])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", ["scan", "bfan", "vse"])
def test_pieces_give_the_loss_and_gradients_of_the_whole(collator, name, loss, at_once):
    config, batch = batch_of(collator, loss)
    model = small_model(name, collator)
    whole = gradients(model, batch, config, None)
    pieces = gradients(model, batch, config, at_once)
    assert any(value.any() for value in whole[1].values())
    torch.testing.assert_close(pieces, whole, rtol=1e-5, atol=1e-12)


class Dropped(InnerProduct, nn.Module):
    """A model with dropout, words of different number a piece, and an auxiliary loss."""

    def __init__(self, words: int, *, pieces: int | None = None) -> None:
        super().__init__()
        self.images, self.words = nn.Linear(6, 8), nn.Embedding(words, 8)
        self.dropout = nn.Dropout(0.4)
        self.pieces = pieces
        "Split by hand, with everything kept."

    def encode_images(self, regions):
        parts = regions.split(self.pieces or len(regions))
        states = torch.cat([self.dropout(self.images(part)) for part in parts])
        return Encoding(normalize(states.mean(dim=1), dim=1), context=states)

    def encode_texts(self, texts):
        rows = torch.arange(len(texts.tokens)).split(self.pieces or len(texts.tokens))
        return Encoding(torch.cat([self._read(texts[part]) for part in rows]))

    def _read(self, texts):
        longest = int(texts.lengths.max())
        words = self.dropout(self.words(texts.tokens[:, :longest]))
        means = (words * texts.mask[:, :longest, None]).sum(dim=1) / texts.lengths[:, None]
        return normalize(means, dim=1)

    def auxiliary_loss(self, images, texts):
        return {"size": images.context.square().mean()}


def test_dropout_is_the_same_when_a_piece_is_encoded_again(collator):
    """As if the pieces had been encoded one after the other, and all had been kept."""
    config, batch = batch_of(collator, "adap_off_quin")
    torch.manual_seed(0)
    cached = Dropped(n_words(collator)).double().train()
    kept = Dropped(n_words(collator), pieces=4).double().train()
    kept.load_state_dict(cached.state_dict())
    found = gradients(cached, batch, config, 4)
    torch.testing.assert_close(found, gradients(kept, batch, config, None), rtol=1e-9, atol=0)
    other = gradients(cached, batch, config, None)
    assert not torch.equal(found[0], other[0])  # other draws, where all is encoded at once


def test_texts_of_one_piece_are_padded_to_the_longest_of_all(collator):
    class Words(Dropped):
        auxiliary_loss = None  # there is none

        def encode_images(self, regions):
            return Encoding(self.images(regions))

        def encode_texts(self, texts):
            longest = int(texts.lengths.max())
            words = self.words(texts.tokens[:, :longest])
            return Encoding(words, texts.mask[:, :longest])

        def score_matrix(self, images, texts):
            means = (texts.vectors * texts.mask[..., None]).sum(dim=1)
            return images.vectors.mean(dim=1) @ means.T

        def score_pairs(self, images, texts):
            means = (texts.vectors * texts.mask[..., None]).sum(dim=1)
            return (images.vectors.mean(dim=1) * means).sum(dim=1)

    config, batch = batch_of(collator, "adap_off_quin")
    torch.manual_seed(0)
    model = Words(n_words(collator)).double()
    assert len(set(batch.texts.lengths.tolist())) > 1
    whole = gradients(model, batch, config, None)
    torch.testing.assert_close(gradients(model, batch, config, 2), whole, rtol=1e-5, atol=1e-12)


def test_a_piece_goes_backward_before_the_next_one_is_encoded_again(collator):
    """So that memory holds what one piece keeps."""
    events = []

    class Watch(torch.autograd.Function):
        @staticmethod
        def forward(ctx, values, rows):
            ctx.rows = rows
            return values.clone()

        @staticmethod
        def backward(ctx, gradient):
            events.append(("backward", ctx.rows))
            return gradient, None

    class Watched(Dropped):
        auxiliary_loss = None

        def encode_images(self, regions):
            events.append(("encode", len(regions)))
            states = Watch.apply(self.images(regions), len(regions))
            return Encoding(normalize(states.square().mean(dim=1), dim=1))

    config, batch = batch_of(collator, "online")
    gradients(Watched(n_words(collator)).double(), batch, config, 2)
    n_pieces = -(-len(batch.regions) // 2)
    first, again = events[:n_pieces], events[n_pieces:]
    assert [kind for kind, _ in first] == ["encode"] * n_pieces
    assert [kind for kind, _ in again] == ["encode", "backward"] * n_pieces


def test_a_model_whose_batch_norm_sees_all_images_is_refused_before_anything_starts(
    tmp_path, precomp
):
    recipe = small_recipe(precomp)
    recipe = replace(recipe, round_two=replace(recipe.round_two, encode_at_once=4))
    with pytest.raises(UserError, match=r"encode_at_once is 4, and batch norm"):
        run_recipe(tmp_path / "run", recipe)
    data = open_training_data(recipe)
    recipe = replace(recipe, round_one=replace(recipe.round_one, encode_at_once=4))
    with pytest.raises(UserError, match=r"encode_at_once is 4, and batch norm"):
        train_round(tmp_path / "run", recipe, data, which="one")
    assert not (tmp_path / "run").exists()
