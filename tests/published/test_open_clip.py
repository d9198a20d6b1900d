"""A plain CLIP in the naming of open_clip computes what transformers' CLIP of its weights does."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from aoq.published.open_clip import SETTINGS, WEIGHTS
from aoq.runs.checkpoint import hash_model
from aoq.runs.directory import RunDirectory
from tests.commands import aoq, assert_refused
from tests.hub_server import Hub, at
from tests.published.test_dual_encoders import (
    TEXTS,
    compared_by_transformers,
    draw_photos,
    scores_of,
)
from tests.towers import SIDE, SIZE, TinyModels, write_tokenizer

LAYERS = SIZE["num_hidden_layers"]
NORMS = ("weight", "bias")


def block_of(weights: dict[str, Tensor], ours: str, theirs: str) -> dict[str, Tensor]:
    """One block of a tower, as open_clip names it."""
    named = {}
    for kind in NORMS:
        parts = [weights[f"{ours}.self_attn.{part}_proj.{kind}"] for part in "qkv"]
        named[f"{theirs}.attn.in_proj_{kind}"] = torch.cat(parts)
        named[f"{theirs}.attn.out_proj.{kind}"] = weights[f"{ours}.self_attn.out_proj.{kind}"]
        named[f"{theirs}.mlp.c_fc.{kind}"] = weights[f"{ours}.mlp.fc1.{kind}"]
        named[f"{theirs}.mlp.c_proj.{kind}"] = weights[f"{ours}.mlp.fc2.{kind}"]
        named[f"{theirs}.ln_1.{kind}"] = weights[f"{ours}.layer_norm1.{kind}"]
        named[f"{theirs}.ln_2.{kind}"] = weights[f"{ours}.layer_norm2.{kind}"]
    return named


def in_their_names(weights: dict[str, Tensor], *, text: str) -> dict[str, Tensor]:
    """The weights of transformers' CLIP as open_clip names them; `text` precedes the text tower."""
    vision, words = "vision_model.embeddings", "text_model.embeddings"
    named = {
        "logit_scale": weights["logit_scale"],
        "visual.conv1.weight": weights[f"{vision}.patch_embedding.weight"],
        "visual.class_embedding": weights[f"{vision}.class_embedding"],
        "visual.positional_embedding": weights[f"{vision}.position_embedding.weight"],
        "visual.proj": weights["visual_projection.weight"].T,
        f"{text}token_embedding.weight": weights[f"{words}.token_embedding.weight"],
        f"{text}positional_embedding": weights[f"{words}.position_embedding.weight"],
        f"{text}text_projection": weights["text_projection.weight"].T,
    }
    for kind in NORMS:
        named[f"visual.ln_pre.{kind}"] = weights[f"vision_model.pre_layrnorm.{kind}"]
        named[f"visual.ln_post.{kind}"] = weights[f"vision_model.post_layernorm.{kind}"]
        named[f"{text}ln_final.{kind}"] = weights[f"text_model.final_layer_norm.{kind}"]
    for layer in range(LAYERS):
        ours, theirs = f"encoder.layers.{layer}", f"transformer.resblocks.{layer}"
        named |= block_of(weights, f"vision_model.{ours}", f"visual.{theirs}")
        named |= block_of(weights, f"text_model.{ours}", f"{text}{theirs}")
    return {name: tensor.contiguous() for name, tensor in named.items()}


def settings_of(**changes: Any) -> dict[str, Any]:
    size = {"layers": LAYERS, "width": SIZE["hidden_size"], "mlp_ratio": 2.0}
    heads = SIZE["num_attention_heads"]
    model = {
        "embed_dim": 16,
        "quick_gelu": True,
        "vision_cfg": {**size, "head_width": 16, "image_size": SIDE, "patch_size": 8},
        "text_cfg": {**size, "heads": heads, "context_length": 32, "vocab_size": 326},
    }
    for name, value in changes.items():
        place, _, inner = name.partition("__")
        (model[place] if inner else model)[inner or place] = value
    return {"model_cfg": model, "preprocess_cfg": {"interpolation": "bicubic"}}


def write_open_clip(folder: Path, clip: Path, *, text: str = "") -> Path:
    folder.mkdir()
    assert write_tokenizer(folder) == 326
    weights = in_their_names(load_file(clip / "model.safetensors"), text=text)
    save_file(weights, folder / WEIGHTS)
    custom = {"custom_text": True} if text else {}
    (folder / SETTINGS).write_text(json.dumps(settings_of(**custom)))
    return folder


def with_their_pooling(clip: Path) -> Path:
    """Let a CLIP take the state of the piece with the largest id, which real ones end with."""
    settings = json.loads((clip / "config.json").read_text())
    settings["text_config"]["eos_token_id"] = 2
    (clip / "config.json").write_text(json.dumps(settings))
    return clip


@pytest.mark.parametrize("text", ["", "text."], ids=["plain", "custom text"])
def test_scores_are_those_of_the_same_clip_of_transformers(
    tmp_path: Path, towers: TinyModels, text: str
) -> None:
    folder = write_open_clip(tmp_path / "open", towers.clip, text=text)
    photos = draw_photos(tmp_path / "photos")
    done = aoq("import", folder, "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    shutil.rmtree(folder)  # its weights, in other names, are in the run
    moved = (tmp_path / "run").rename(tmp_path / "moved")
    reference = with_their_pooling(shutil.copytree(towers.clip, tmp_path / "clip"))
    expected = compared_by_transformers(reference, photos, list(TEXTS)).cosines
    torch.testing.assert_close(scores_of(moved, photos, list(TEXTS)), expected, rtol=0, atol=2e-5)


def test_a_name_on_the_hub_is_the_model_of_its_folder(
    tmp_path: Path, towers: TinyModels, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_open_clip(tmp_path / "open", towers.clip)
    (folder / "config.json").write_text('{"architecture": "vit_base_patch16"}')  # of timm
    (folder / "open_clip_pytorch_model.bin").write_bytes(b"pickled")
    hub.commit("owner/clip", {path.name: path.read_bytes() for path in folder.iterdir()})
    runs = [tmp_path / name for name in ("folder", "hub", "cache")]
    assert aoq("import", folder, "--out", runs[0]).returncode == 0
    done = aoq("import", "hf-hub:owner/clip", "--out", runs[1])
    assert done.returncode == 0, done.stderr
    assert "open_clip_pytorch_model.bin" not in hub.downloads
    assert WEIGHTS in hub.downloads
    at("http://127.0.0.1:9", monkeypatch)
    done = aoq("import", "hf-hub:owner/clip", "--out", runs[2])
    assert done.returncode == 0, done.stderr
    ids = [RunDirectory(run).read_origin()["imported"] for run in runs]
    assert len({(each["images"], each["texts"]) for each in ids}) == 1
    assert len({hash_model(run) for run in runs}) == 1

    assert_refused(aoq("import", "hf-hub:owner/other", "--out", tmp_path / "run"), "HF_ENDPOINT")
    at(hub.address, monkeypatch)
    assert_refused(aoq("import", "hf-hub:owner/other", "--out", tmp_path / "run"), "owner/other is")
    hub.commit("owner/bert", {"config.json": b"{}"})
    done = aoq("import", "hf-hub:owner/bert", "--out", tmp_path / "run")
    assert_refused(done, f"it has no {SETTINGS}")


def with_settings(**changes: Any) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        (folder / SETTINGS).write_text(json.dumps(settings_of(**changes)))

    return spoil


def with_pickled_weights(folder: Path) -> None:
    torch.save(load_file(folder / WEIGHTS), folder / "open_clip_pytorch_model.bin")
    (folder / WEIGHTS).unlink()


def with_damaged_weights(folder: Path) -> None:
    path = folder / WEIGHTS
    path.write_bytes(path.read_bytes()[:-9])


def with_a_projection_of_two_rows(folder: Path) -> None:
    name = "visual.transformer.resblocks.0.attn.in_proj_weight"
    save_file({**load_file(folder / WEIGHTS), name: torch.zeros(2, 32)}, folder / WEIGHTS)


def without_tokenizer(folder: Path) -> None:
    for path in folder.glob("tokenizer*"):
        path.unlink()


BAD = {
    "timm": (with_settings(vision_cfg__timm_model_name="vit_base"), "timm_model_name 'vit_base'"),
    "hugging face": (with_settings(text_cfg__hf_model_name="roberta"), "hf_model_name 'roberta'"),
    "resnet": (with_settings(vision_cfg__layers=[3, 4, 6, 3]), "not a plain transformer"),
    "coca": (with_settings(multimodal_cfg={}), "it has multimodal_cfg"),
    "siglip": (with_settings(init_logit_bias=-10), "it has init_logit_bias"),
    "pooling": (with_settings(text_cfg__pool_type="last"), "pool_type 'last'"),
    "other sizes": (with_settings(text_cfg__width=64), "of the shape"),
    "more blocks": (with_settings(vision_cfg__layers=4), "is missing, not of the shape"),
    "pickled": (with_pickled_weights, "pickled weights are never read"),
    "damaged": (with_damaged_weights, "is damaged"),
    "no setting": (with_settings(vision_cfg="ViT-B-32"), "do not fit together"),
    "no heads": (with_settings(vision_cfg__head_width=0), "do not fit together"),
    "too few rows": (with_a_projection_of_two_rows, "do not fit together"),
    "no tokenizer": (without_tokenizer, "it has no tokenizer"),
}


@pytest.mark.parametrize(("spoil", "reason"), BAD.values(), ids=BAD)
def test_what_a_clip_of_transformers_does_not_compute_is_refused(
    tmp_path: Path, towers: TinyModels, spoil: Callable[[Path], None], reason: str
) -> None:
    folder = write_open_clip(tmp_path / "open", towers.clip)
    spoil(folder)
    done = aoq("import", folder, "--out", tmp_path / "run")
    assert_refused(done, "cannot be read as a CLIP of open_clip", reason)
    assert not (tmp_path / "run").exists()
