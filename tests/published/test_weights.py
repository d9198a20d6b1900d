"""Checkpoints of the published programs: what is read from them, and which model they hold."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from aoq.config import ModelConfig
from aoq.errors import UserError
from aoq.models import build_model
from aoq.published.models import translate
from aoq.published.pickles import read_checkpoint
from tests.published.cases import (
    BFAN_OPTIONS,
    FEATURES,
    FORMATS,
    HIDDEN,
    JOINT,
    SCAN_OPTIONS,
    WORD,
    WORDS,
    content,
    text_state,
    write,
)


@pytest.fixture
def file(tmp_path) -> Path:
    return tmp_path / "model_best.pth.tar"


def refusal(path, value, **options):
    write(path, value)
    with pytest.raises(UserError) as caught:
        translate(read_checkpoint(path), source=path, **options)
    assert len(caught.value.problems) == 1
    return str(caught.value)


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_gives_the_same_weights_options_and_figures(file, form):
    expected = content()
    checkpoint = read_checkpoint(write(file, expected, form=form))
    assert checkpoint.epoch == 12
    assert checkpoint.best_rsum == 431.5
    assert checkpoint.options == SCAN_OPTIONS
    image, text = expected["model"]
    assert len(checkpoint.state) == len(image) + len(text)
    assert torch.equal(checkpoint.state["img_enc.fc.weight"], image["fc.weight"])
    assert torch.equal(checkpoint.state["txt_enc.rnn.bias_hh_l0"], text["rnn.bias_hh_l0"])


@pytest.mark.parametrize("number", [np.float32(2.5), np.int64(7), np.float64(1e300), 3, 2.5])
def test_figures_may_be_numpy_scalars(file, number):
    checkpoint = read_checkpoint(write(file, content() | {"best_rsum": number}))
    assert checkpoint.best_rsum == float(number)


def test_figures_that_are_none_are_left_out(file):
    odd = {"best_rsum": float("nan"), "epoch": "last", "opt": None}
    checkpoint = read_checkpoint(write(file, content() | odd))
    assert (checkpoint.best_rsum, checkpoint.epoch, checkpoint.options) == (None, None, {})


def test_weights_of_cuda_are_read_on_the_cpu(file):
    """As a file from a GPU says it: cuda:0 is the place of every storage."""
    write(file, content())
    data = file.read_bytes()
    here = b"X\x03\x00\x00\x00cpu"
    assert here in data
    file.write_bytes(data.replace(here, b"X\x06\x00\x00\x00cuda:0"))
    state = read_checkpoint(file).state
    assert torch.equal(state["img_enc.fc.weight"], content()["model"][0]["fc.weight"])
    assert all(value.device.type == "cpu" for value in state.values())


def test_the_prefix_of_data_parallel_is_taken_off(file):
    value = content()
    value["model"] = [
        OrderedDict((f"module.{name}", tensor) for name, tensor in part.items())
        for part in value["model"]
    ]
    checkpoint = read_checkpoint(write(file, value))
    assert translate(checkpoint, source=file).config.name == "scan"


# What the weights and options say


def translated(file, kind, *, name=None, **options):
    return translate(read_checkpoint(write(file, content(kind, **options))), source=file, name=name)


def test_scan_is_recognised_by_its_options(file):
    model = translated(file, "scan")
    assert model.config == ModelConfig(
        name="scan",
        joint_width=JOINT,
        word_width=WORD,
        direction="i2t",
        raw_norm="softmax",
        aggregate="mean",
        temperature=4.0,
        aggregate_temperature=5.0,
        bidirectional=True,
    )
    assert (model.feature_width, model.vocabulary_size) == (FEATURES, WORDS)
    assert model.assumed == []


def test_scan_may_read_one_way_with_a_weight_normed_projection(file):
    value = content()
    linear = nn.Linear(FEATURES, JOINT)
    value["model"][0] = OrderedDict(
        {
            "fc.bias": linear.bias.data,
            "fc.weight_g": linear.weight.data.norm().reshape(1),  # as torch 0.3 saved it
            "fc.weight_v": linear.weight.data,
        }
    )
    value["model"][1] = text_state()
    model = translate(read_checkpoint(write(file, value)), source=file)
    assert model.config.weight_norm
    assert not model.config.bidirectional
    ours = build_model(model.config, feature_width=FEATURES, vocabulary_size=WORDS)
    ours.load_state_dict(model.weights)
    torch.testing.assert_close(ours.image_encoder.projection.weight, linear.weight)


def test_bfan_is_recognised_by_its_focal_type(file):
    config = translated(file, "bfan").config
    assert (config.name, config.focal, config.temperature) == ("bfan", "equal", 20.0)


@pytest.mark.parametrize("kind", ["vsrn_coco", "vsrn_f30k", "vsrn_original"])
def test_vsrn_is_recognised_by_its_weights(file, kind):
    model = translated(file, kind)
    config = model.config
    assert config.name == "vsrn"
    assert config.variant == ("f30k" if kind == "vsrn_f30k" else "coco")
    captions = kind != "vsrn_original"
    assert config.caption_weight == (1.0 if captions else 0.0)
    if captions:
        assert (config.caption_width, config.caption_max_words) == (HIDDEN, 50)
        assert config.caption_dropout == 0.1
    ours = build_model(config, feature_width=FEATURES, vocabulary_size=WORDS)
    ours.load_state_dict(model.weights)


def test_vse_is_recognised_by_its_measure_and_one_way_reader(file):
    model = translated(file, "vse")
    assert model.config == ModelConfig(name="vse", joint_width=JOINT, word_width=WORD)
    assert set(model.weights) >= {"projection.weight", "text_encoder.embedding.weight"}


@pytest.mark.parametrize("options", [{}, SCAN_OPTIONS | BFAN_OPTIONS])
def test_where_options_do_not_decide_the_model_has_to_be_named(file, options):
    assert "add --model scan, --model bfan" in refusal(file, content(options=options))
    model = translated(file, "scan", options=options, name="bfan")
    assert model.config.name == "bfan"
    assert model.assumed == ([] if options else ["focal_type", "lambda_softmax"])
    scan = replace(translated(file, "scan", options=options, name="scan").config)
    assert scan.name == "scan"


@pytest.mark.parametrize(
    ("option", "value"),
    [("use_abs", True), ("measure", "order"), ("no_imgnorm", True), ("no_txtnorm", True)],
)
def test_options_that_change_scores_as_no_model_here_does_are_refused(file, option, value):
    sentence = refusal(file, content(options=SCAN_OPTIONS | {option: value}))
    assert f"was trained with {option} {value!r}" in sentence


@pytest.mark.parametrize(
    ("option", "value"),
    [("agg_func", "Median"), ("cross_attn", "both"), ("lambda_lse", "six"), ("lambda_softmax", -1)],
)
def test_options_that_make_no_sense_are_refused(file, option, value):
    assert str(value) in refusal(file, content(options=SCAN_OPTIONS | {option: value}))


def test_parameters_that_are_missing_left_over_or_of_another_shape_are_named(file):
    value = content()
    image, text = value["model"]
    image["cnn.weight"] = torch.ones(2)
    image["fc.bias"] = torch.ones(JOINT + 1)
    del text["rnn.bias_hh_l0"]
    text["rnn.weight_hh_l0"][0, 0] = torch.nan
    sentence = refusal(file, value)
    assert "missing: text_encoder.gru.bias_hh_l0;" in sentence
    assert "left over: img_enc.cnn.weight;" in sentence
    assert "image_encoder.projection.bias (6,)" in sentence
    assert "not finite: text_encoder.gru.weight_hh_l0)" in sentence


def test_a_checkpoint_without_its_projection_or_words_is_refused(file):
    for part, key in ((0, "fc.weight"), (1, "embed.weight")):
        value = content()
        del value["model"][part][key]
        assert f"{key} is missing" in refusal(file, value)


def test_another_model_than_the_named_one_is_refused_with_names(file):
    assert "missing: image_encoder.graph.0." in refusal(file, content(), name="vsrn")
    assert "left over: txt_enc.rnn.weight_ih_l0_reverse" in refusal(file, content(), name="vse")


def test_nothing_is_copied_where_shapes_do_not_fit(file, monkeypatch):
    """Sixty views of one large storage would take sixty times its memory."""
    value = content()
    one = torch.zeros(1000)
    value["model"][1] |= {name: one for name in value["model"][1] if name.startswith("rnn.")}
    copies = []
    monkeypatch.setattr(torch.Tensor, "clone", lambda tensor, **_: copies.append(tensor) or tensor)
    monkeypatch.setattr(
        torch.Tensor, "isfinite", lambda tensor: copies.append(tensor) or torch.ones(1)
    )
    assert "text_encoder.gru.weight_ih_l0 (1000,)" in refusal(file, value)
    assert not any(tensor.shape == one.shape for tensor in copies)


def test_batch_norms_of_old_files_get_their_counter(file):
    value = content("vsrn_f30k")
    image = value["model"][0]
    for name in [name for name in image if name.endswith("num_batches_tracked")]:
        del image[name]
    weights = translate(read_checkpoint(write(file, value)), source=file).weights
    counters = [name for name in weights if name.endswith("num_batches_tracked")]
    assert len(counters) == 5
    assert all(weights[name].dtype == torch.int64 for name in counters)


def test_weights_of_half_precision_become_single(file):
    value = content()
    value["model"][0] = OrderedDict(
        (name, tensor.half()) for name, tensor in value["model"][0].items()
    )
    weights = translate(read_checkpoint(write(file, value)), source=file).weights
    assert {tensor.dtype for tensor in weights.values()} == {torch.float32}
