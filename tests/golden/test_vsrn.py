"""VSRN against the published program: both variants, every stage, one whole training step."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from aoq.config import LossConfig, ModelConfig
from aoq.losses import LossTerms, compute_loss
from aoq.models.captioner import caption_labels
from aoq.models.vsrn import VSRN
from aoq.published.weights import from_published, our_name
from aoq.training.step import score_batch
from aoq.types import Encoding, Texts
from tests.golden.cases import all_texts, step_batch
from tests.golden.conftest import Golden, close

VARIANTS = ["coco", "f30k"]


def published_model(arrays: Golden, variant: str) -> VSRN:
    state = arrays.below("sd.")
    vocabulary_size, word_width = state["txt_enc.embed.weight"].shape
    joint_width, feature_width = state["img_enc.fc.weight"].shape
    config = ModelConfig(
        variant="f30k" if variant == "f30k" else "coco",
        joint_width=joint_width,
        word_width=word_width,
        caption_width=state["caption_model.encoder.vid2hid.weight"].shape[0],
        caption_dropout=0.0,
        caption_max_words=int(arrays["caption.max_len"]),
    )
    model = VSRN(config, feature_width=feature_width, vocabulary_size=vocabulary_size)
    model.load_state_dict(from_published("vsrn", state))
    return model


def published_step(model: VSRN, arrays: Golden) -> LossTerms:
    """The loss of the golden step, whose caption labels are not the batch's own texts."""
    dtype = next(model.parameters()).dtype
    scores, images = score_batch(model, step_batch(arrays, dtype=dtype))
    loss = compute_loss(scores, LossConfig(name="adap_off_quin"))
    labels = arrays["caption.labels"]
    texts = Texts(labels, (labels != 0).sum(dim=1))
    return replace(loss, auxiliary=model.auxiliary_loss(images, texts))


@pytest.mark.parametrize("variant", VARIANTS)
def test_embeddings_and_scores_are_those_of_the_published_program(golden, variant):
    arrays = golden(f"vsrn_{variant}")
    model = published_model(arrays, variant).eval()
    with torch.inference_mode():
        images = model.encode_images(arrays["in.images"])
        texts = model.encode_texts(all_texts(arrays))
        close(images.vectors, arrays["out.img_emb"])
        close(images.context, arrays["out.gcn_img_emb"])
        close(texts.vectors, arrays["out.cap_emb"])
        close(model.score_matrix(images, texts), arrays["score"])


@pytest.mark.parametrize("variant", VARIANTS)
def test_training_mode_uses_and_updates_batch_statistics_as_published(golden, variant):
    arrays = golden(f"vsrn_{variant}")
    model = published_model(arrays, variant).train()
    images = model.encode_images(arrays["in.images"])
    close(images.vectors, arrays["train.img_emb"])
    close(images.context, arrays["train.gcn_img_emb"])
    after = model.state_dict()
    for name, expected in arrays.below("train.after.").items():
        close(after[our_name("vsrn", name)], expected)


@pytest.mark.parametrize("variant", VARIANTS)
def test_caption_labels_follow_the_published_loader(golden, variant):
    arrays = golden(f"vsrn_{variant}")
    words, counts = arrays["caption.tokens_without_start_end"], arrays["caption.n_tokens"]
    rows = [[1, *row[:n].tolist(), 2] for row, n in zip(words, counts, strict=True)]
    lengths = torch.tensor([len(row) for row in rows])
    tokens = torch.zeros(len(rows), int(lengths.max()), dtype=torch.int64)
    for place, row in zip(tokens, rows, strict=True):
        place[: len(row)] = torch.tensor(row)
    labels, mask = caption_labels(Texts(tokens, lengths), max_words=int(arrays["caption.max_len"]))
    width = labels.shape[1]
    assert torch.equal(labels, arrays["caption.labels"][:, :width])
    assert torch.equal(mask.float(), arrays["caption.masks"][:, :width])
    assert not arrays["caption.labels"][:, width:].any()


@pytest.mark.parametrize("variant", VARIANTS)
def test_caption_loss_is_that_of_the_published_program(golden, variant):
    arrays = golden(f"vsrn_{variant}")
    captioner = published_model(arrays, variant).eval().captioner
    features, labels = arrays["out.gcn_img_emb"], arrays["caption.labels"]
    expected = arrays["caption.logprobs"]
    with torch.inference_mode():
        states = captioner.decode(features, labels[:, : expected.shape[1]])
        close(captioner.output(states).log_softmax(dim=-1), expected)
        lengths = (labels != 0).sum(dim=1)
        loss = captioner(features, Texts(labels, lengths))
    close(loss, arrays["caption.loss_eval"])


@pytest.mark.parametrize("variant", VARIANTS)
def test_one_whole_step_gives_the_published_losses_and_gradients(golden, variant):
    """In double precision, so that what is left is the rounding of the published program.

    Batch norms over so few images magnify it: exact gradients differ from its float32 ones by up
    to 5e-5 where the largest are about 9.
    """
    arrays = golden(f"vsrn_{variant}")
    model = published_model(arrays, variant).train().double()
    loss = published_step(model, arrays)
    caption = loss.terms["caption"]
    close(caption, arrays["step.caption_loss"])
    close(loss.total - caption, arrays["step.retrieval_loss"], atol=5e-5)
    loss.total.backward()
    gradients = {name: value.grad for name, value in model.named_parameters()}
    for name, expected in from_published("vsrn", arrays.below("step.grad.")).items():
        close(gradients[name], expected, atol=1e-4)


@pytest.mark.parametrize("variant", VARIANTS)
def test_one_clipped_adam_step_moves_the_encoders_as_published(golden, variant):
    """The caption model is left out: the published optimiser lists its parameters twice.

    That also counts them twice in the clipped norm, so the norm is the one with duplicates here.
    Adam's first step is lr * sign(gradient) wherever the gradient is not tiny; tiny ones are
    decided by rounding and are left out.
    """
    arrays = golden(f"vsrn_{variant}")
    model = published_model(arrays, variant).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-4)
    published_step(model, arrays).total.backward()
    norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
    close(norm, arrays["step.grad_norm_unique"], atol=1e-4)
    scale = 2.0 / (arrays["step.grad_norm_official_with_duplicates"] + 1e-6)
    for parameter in model.parameters():
        parameter.grad *= scale
    optimizer.step()
    after = model.state_dict()
    expected = from_published("vsrn", arrays.below("step.after_official."))
    gradients = dict(model.named_parameters())
    for name, value in expected.items():
        if not name.startswith("captioner."):
            solid = gradients[name].grad.abs() > 1e-5
            close(after[name][solid], value[solid], atol=1e-6)


def test_padding_never_changes_a_text(golden):
    arrays = golden("vsrn_coco")
    model = published_model(arrays, "coco").eval()
    texts = all_texts(arrays)
    padded = Texts(torch.nn.functional.pad(texts.tokens, (0, 7)), texts.lengths)
    with torch.inference_mode():
        close(model.encode_texts(padded).vectors, model.encode_texts(texts).vectors, atol=1e-6)


def test_pair_scores_are_the_diagonal_of_the_matrix(golden):
    arrays = golden("vsrn_coco")
    model = published_model(arrays, "coco").eval()
    images = Encoding(arrays["out.img_emb"])
    texts = Encoding(arrays["out.cap_emb"][: len(images)])
    close(model.score_pairs(images, texts), model.score_matrix(images, texts).diagonal())
