"""SCAN and BFAN against the published programs: encodings, scores, losses, one training step."""

from __future__ import annotations

import pytest
import torch

from aoq.config import LossConfig, ModelConfig, RoundConfig
from aoq.losses import BatchScores, OfflineScores, compute_loss
from aoq.models import build_model
from aoq.published.weights import from_published
from aoq.scoring import cross_attention
from aoq.scoring.encoded import EncodedDataset
from aoq.training.optimizers import make_optimizer
from aoq.training.step import step_loss
from aoq.types import Encoding, Texts
from tests.golden.cases import step_batch
from tests.golden.conftest import close
from tests.scoring.cases import score_blocks

NORMS = ["softmax", "l2norm", "clipped_l2norm", "l1norm", "clipped_l1norm", "clipped", "no_norm"]
AGGREGATES = ["LogSumExp", "Mean", "Max", "Sum"]
SCANS = ["scan_bigru", "scan_unigru", "scan_weightnorm"]
BFANS = ["bfan_equal", "bfan_prob"]
ENCODED = ["im", "s", "im_off", "s_off", "im_off2", "s_off2"]
CONSTANTS = {
    "default": LossConfig(name="adap_off_quin"),
    "alt": LossConfig(
        name="adap_off_quin", margin_online=0.1, margin_offline=0.05, alpha=0.5, beta=2.0
    ),
}


def published_model(arrays, **settings):
    state = arrays.below("sd.")
    vocabulary_size, word_width = state["txt_enc.embed.weight"].shape
    weight = state.get("img_enc.fc.weight", state.get("img_enc.fc.weight_v"))
    config = ModelConfig(
        joint_width=weight.shape[0],
        word_width=word_width,
        bidirectional="txt_enc.rnn.weight_ih_l0_reverse" in state,
        weight_norm="img_enc.fc.weight_v" in state,
        **settings,
    )
    model = build_model(config, feature_width=weight.shape[1], vocabulary_size=vocabulary_size)
    model.load_state_dict(from_published(config.name, state))
    return model


def scan(arrays, direction, norm="clipped_l2norm", how="LogSumExp"):
    return published_model(
        arrays, name="scan", direction=direction, raw_norm=norm, aggregate=how.lower()
    )


def bfan(arrays, name):
    return published_model(arrays, name="bfan", focal=name.removeprefix("bfan_"))


def texts_of(arrays):
    return Texts(arrays["in.captions"], arrays["in.lengths"])


def encoded(arrays, *, dtype=torch.float32):
    """The published encodings of all images and texts."""
    images, texts = arrays["out.img_emb"].to(dtype), arrays["out.cap_emb"].to(dtype)
    mask = torch.arange(texts.shape[1]) < arrays["in.lengths"][:, None]
    return Encoding(images), Encoding(texts, mask)


@pytest.mark.parametrize("name", SCANS + BFANS)
def test_encodings_are_those_of_the_published_program(golden, name):
    arrays = golden(name)
    model = scan(arrays, "t2i") if name in SCANS else bfan(arrays, name)
    close(model.encode_images(arrays["in.images"]).vectors, arrays["out.img_emb"])
    texts = model.encode_texts(texts_of(arrays))
    close(texts.vectors, arrays["out.cap_emb"])
    assert torch.equal(texts.mask.sum(dim=1), arrays["out.cap_len"])


@pytest.mark.parametrize("how", AGGREGATES)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("direction", ["t2i", "i2t"])
def test_every_score_of_scan_is_the_published_one(golden, direction, norm, how):
    arrays = golden("scan_bigru")
    model = scan(arrays, direction, norm, how)
    expected = arrays[f"score.{direction}.{norm}.{how}"]
    images, texts = encoded(arrays)
    learning = Encoding(images.vectors.clone().requires_grad_())
    close(model.score_matrix(learning, texts), expected)
    with torch.no_grad():
        close(model.score_matrix(images, texts), expected)
    rows = torch.arange(len(texts)) % len(images)
    close(model.score_pairs(images[rows], texts), expected[rows, torch.arange(len(texts))])


@pytest.mark.parametrize("how", ["LogSumExp", "Mean"])
@pytest.mark.parametrize("direction", ["t2i", "i2t"])
@pytest.mark.parametrize("name", SCANS)
def test_scan_scores_pictures_and_captions_as_published(golden, name, direction, how):
    arrays = golden(name)
    model = scan(arrays, direction, how=how)
    with torch.no_grad():
        images, texts = (
            model.encode_images(arrays["in.images"]),
            model.encode_texts(texts_of(arrays)),
        )
        expected = arrays[f"score.{direction}.clipped_l2norm.{how}"]
        close(model.score_matrix(images, texts), expected)


@pytest.mark.parametrize("name", BFANS)
def test_scores_of_bfan_are_the_published_ones(golden, name):
    arrays = golden(name)
    model = bfan(arrays, name)
    with torch.no_grad():
        images, texts = encoded(arrays, dtype=torch.float64)
        close(model.score_matrix(images, texts), arrays["score"])
        rows = arrays["pair.caption_rows"]
        close(model.score_pairs(images, texts[rows]), arrays["score_offline"])
        single = model.score_matrix(*encoded(arrays))
    assert ((single - arrays["score"]).abs() < 1e-5).double().mean() >= 0.999


@pytest.mark.parametrize("tile", [1, 300, 2**21])
@pytest.mark.parametrize("block_size", [1, 4, 7, 1000])
@pytest.mark.parametrize("name", ["scan_bigru", *BFANS])
def test_no_block_size_changes_a_score(golden, name, block_size, tile, monkeypatch):
    arrays = golden(name)
    monkeypatch.setattr(cross_attention, "_TILE", tile)
    monkeypatch.setattr(cross_attention, "_IMAGES_OF_A_TILE", 2)
    model = scan(arrays, "t2i") if name in SCANS else bfan(arrays, name)
    dataset = EncodedDataset(*encoded(arrays, dtype=torch.float64))
    key = "score.t2i.clipped_l2norm.LogSumExp" if name in SCANS else "score"
    for images, texts, scores in score_blocks(model, dataset, block_size=block_size):
        close(scores, arrays[key][images, texts])


def batch_of(arrays):
    """The encodings of the six published pairs and of their offline negatives, as leaves."""
    images, texts = encoded(arrays)
    rows = {
        "im": torch.arange(len(images)),
        "im_off": arrays["off.image_rows"],
        "im_off2": arrays["off2.image_rows"],
        "s": arrays["pair.caption_rows"],
        "s_off": arrays["off.caption_rows"],
        "s_off2": arrays["off2.caption_rows"],
    }
    batch = {}
    for name, chosen in rows.items():
        part = (images if name.startswith("im") else texts)[chosen]
        batch[name] = Encoding(part.vectors.clone().requires_grad_(), part.mask)
    return batch


def offline_scores(model, batch):
    return OfflineScores(
        i2t=model.score_pairs(batch["im"], batch["s_off"]),
        t2i=model.score_pairs(batch["im_off"], batch["s"]),
        derived=model.score_pairs(batch["im_off"], batch["s_off"]),
        partners=model.score_pairs(batch["im_off2"], batch["s_off2"]),
    )


def close_on_words(actual, expected):
    """Gradients of words; the published ones are cut to the longest text of the batch."""
    close(actual[:, : expected.shape[1]], expected, atol=2e-5)
    assert not actual[:, expected.shape[1] :].any()


@pytest.mark.parametrize(("ours", "theirs"), [("online", "max"), ("standard", "sum")])
@pytest.mark.parametrize("name", ["scan_bigru.t2i", "scan_bigru.i2t", *BFANS])
def test_triplet_losses_and_gradients_are_the_published_ones(golden, name, ours, theirs):
    file, _, direction = name.partition(".")
    arrays = golden(file)
    for how in ["LogSumExp", "Mean"] if direction else [""]:
        model = scan(arrays, direction, how=how) if direction else bfan(arrays, file)
        prefix = f"triplet.{direction}.{how}.{theirs}" if direction else f"triplet.{theirs}"
        batch = batch_of(arrays)
        scores = BatchScores(model.score_matrix(batch["im"], batch["s"]))
        loss = compute_loss(scores, LossConfig(name=ours)).total
        close(loss, arrays[f"{prefix}.loss"], atol=5e-5)
        loss.backward()
        close(batch["im"].vectors.grad, arrays[f"{prefix}.grad_img_emb"], atol=5e-5)
        close_on_words(batch["s"].vectors.grad, arrays[f"{prefix}.grad_cap_emb"])


@pytest.mark.parametrize("direction", ["t2i", "i2t"])
@pytest.mark.parametrize("how", ["LogSumExp", "Mean"])
def test_the_adaptive_loss_over_scan_and_its_gradients_are_the_derived_ones(golden, direction, how):
    arrays = golden("scan_bigru")
    model = scan(arrays, direction, how=how)
    prefix = f"aoq_derived.{direction}.{how}"
    assert_adaptive_loss(model, arrays, prefix, CONSTANTS["default"])


@pytest.mark.parametrize("constants", CONSTANTS)
@pytest.mark.parametrize("name", BFANS)
def test_the_adaptive_loss_over_bfan_and_its_gradients_are_the_published_ones(
    golden, name, constants
):
    arrays = golden(name)
    assert_adaptive_loss(bfan(arrays, name), arrays, f"aoq.{constants}.max", CONSTANTS[constants])


def assert_adaptive_loss(model, arrays, prefix, config):
    batch = batch_of(arrays)
    matrix = model.score_matrix(batch["im"], batch["s"])
    offline = offline_scores(model, batch)
    loss = compute_loss(BatchScores(matrix, offline=offline), config).total
    close(loss, arrays[f"{prefix}.loss"], atol=5e-5)
    loss.backward()
    for name in ENCODED:
        expected, actual = arrays[f"{prefix}.grad_{name}"], batch[name].vectors.grad
        if name.startswith("im"):
            close(actual, expected, atol=5e-5)
        else:
            close_on_words(actual, expected)


@pytest.mark.parametrize("name", BFANS)
def test_the_scores_of_an_adaptive_batch_are_the_published_ones(golden, name):
    arrays = golden(name)
    model, batch = bfan(arrays, name), batch_of(arrays)
    offline = offline_scores(model, batch)
    close(model.score_matrix(batch["im"], batch["s"]), arrays["aoq.scores_online"])
    close(offline.i2t, arrays["aoq.i2t_off"])
    close(offline.t2i, arrays["aoq.t2i_off"])
    close(offline.derived, arrays["aoq.i2t_off2"])
    close(offline.partners, arrays["aoq.t2i_off2"])


@pytest.mark.parametrize("name", BFANS)
def test_one_whole_step_of_bfan_moves_the_weights_as_published(golden, name):
    """Encoders, scores, loss, gradients before clipping, their norm, and the clipped Adam step."""
    arrays = golden(name)
    model = bfan(arrays, name).train()
    batch = step_batch(arrays, dtype=torch.float32)
    loss = step_loss(model, batch, CONSTANTS["default"]).loss.total
    close(loss, arrays["step.loss"], atol=5e-5)
    loss.backward()
    gradients = {key: value.grad.clone() for key, value in model.named_parameters()}
    for key, expected in from_published("bfan", arrays.below("step.grad.")).items():
        close(gradients[key], expected, atol=1e-4)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 2.0)
    close(norm, arrays["step.grad_norm"], atol=1e-4)
    make_optimizer(model, RoundConfig(learning_rate=2e-4)).step()
    after = model.state_dict()
    for key, expected in from_published("bfan", arrays.below("step.after.")).items():
        solid = gradients[key].abs() > 1e-5  # Adam's first step of a tiny gradient is rounding
        close(after[key][solid], expected[solid], atol=1e-6)
