"""What must hold for VSRN whatever its weights."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from aoq.config import ModelConfig
from aoq.models import build_model
from aoq.types import Texts


def small_model(variant="coco", **changes):
    torch.manual_seed(0)
    config = ModelConfig(variant=variant, joint_width=8, word_width=5, caption_width=6, **changes)
    return build_model(config, feature_width=7, vocabulary_size=20)


def random_texts(count, longest, *, seed=0):
    random = torch.Generator().manual_seed(seed)
    lengths = torch.randint(3, longest + 1, (count,), generator=random)
    tokens = torch.randint(4, 20, (count, longest), generator=random)
    return Texts(tokens * (torch.arange(longest) < lengths[:, None]), lengths)


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 9), st.integers(0, 5), st.sampled_from(["coco", "f30k"]))
def test_batching_and_padding_never_change_an_embedding(size, padding, variant):
    model = small_model(variant).eval()
    regions, texts = torch.randn(9, 4, 7), random_texts(9, 6)
    with torch.inference_mode():
        images_whole = model.encode_images(regions).vectors
        texts_whole = model.encode_texts(texts).vectors
        images = [model.encode_images(part).vectors for part in regions.split(size)]
        parts = zip(texts.tokens.split(size), texts.lengths.split(size), strict=True)
        encoded = [
            model.encode_texts(
                Texts(torch.nn.functional.pad(tokens, (0, padding)), lengths)
            ).vectors
            for tokens, lengths in parts
        ]
    torch.testing.assert_close(torch.cat(images), images_whole, atol=1e-5, rtol=0)
    torch.testing.assert_close(torch.cat(encoded), texts_whole, atol=1e-5, rtol=0)


def test_embeddings_have_unit_length_and_scores_lie_between_minus_one_and_one():
    model = small_model().eval()
    with torch.inference_mode():
        images = model.encode_images(torch.randn(5, 4, 7))
        texts = model.encode_texts(random_texts(6, 8))
    torch.testing.assert_close(images.vectors.norm(dim=1), torch.ones(5))
    torch.testing.assert_close(texts.vectors.norm(dim=1), torch.ones(6))
    assert model.score_matrix(images, texts).abs().max() <= 1 + 1e-5


def test_a_fresh_graph_layer_passes_its_input_on():
    """Its batch norm starts at zero, so the reasoning grows from the identity."""
    layer = small_model().image_encoder.graph[0]
    regions = torch.randn(3, 4, 8)
    torch.testing.assert_close(layer(regions), regions)


@pytest.mark.parametrize("variant", ["coco", "f30k"])
@pytest.mark.parametrize("value", [0.0, 1.0])
def test_zero_and_identical_regions_give_finite_scores_and_gradients(variant, value):
    model = small_model(variant).train()
    images = model.encode_images(torch.full((3, 4, 7), value))
    texts = random_texts(3, 5)
    loss = model.score_matrix(images, model.encode_texts(texts)).sum()
    loss = loss + sum(model.auxiliary_loss(images, texts).values())
    loss.backward()
    assert torch.isfinite(loss)
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


def test_padding_and_longer_neighbours_never_change_a_caption_loss():
    """The loss of a batch is the mean of the losses of its captions, each on its own."""
    model = small_model(caption_dropout=0.0, caption_max_words=6).eval()
    regions, texts = torch.randn(5, 4, 8), random_texts(5, 9)
    together = model.captioner(regions, texts)
    alone = [
        model.captioner(
            regions[row : row + 1],
            Texts(texts.tokens[row : row + 1, :length], texts.lengths[row : row + 1]),
        )
        for row, length in enumerate(texts.lengths.tolist())
    ]
    torch.testing.assert_close(together, torch.stack(alone).mean())


def test_weight_zero_leaves_the_caption_model_out():
    model = small_model(caption_weight=0.0)
    assert model.captioner is None
    assert model.auxiliary_loss(model.encode_images(torch.randn(2, 4, 7)), random_texts(2, 4)) == {}
