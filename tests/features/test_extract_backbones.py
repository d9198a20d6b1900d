"""Any vision model becomes a backbone, with the regions that it sees; what is none is refused."""

from __future__ import annotations

import builtins
import json
import shutil
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import adaptive_avg_pool2d
from transformers import AutoImageProcessor, AutoModel

from aoq.errors import UserError
from aoq.features.backbones import Backbone
from aoq.features.efficientnet import EfficientNetLite, load_network
from aoq.features.outputs import Output
from aoq.features.pictures import Pixels, decode
from aoq.features.vision_models import VisionModel, as_map
from tests.features.cases import gradient


def pictures_for(backbone: Backbone) -> list[Pixels]:
    upright = gradient((backbone.canvas.side, backbone.canvas.side))
    return [np.asarray(upright), np.asarray(upright.rotate(90))]


def test_the_folded_network_computes_what_the_packaged_one_does() -> None:
    folded = EfficientNetLite()
    pixels = pictures_for(folded)
    batch = torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2)
    with torch.inference_mode():
        cells = load_network().extract_features((batch.float() - 127) / 128)
        expected = adaptive_avg_pool2d(cells, 6).numpy()
    regions = folded(pixels)
    assert regions.shape == (2, 36, folded.width)
    assert regions.dtype == np.float16
    by_rows = expected.reshape(2, 1280, 36).transpose(0, 2, 1)
    assert np.linalg.norm(regions - by_rows) < 1e-3 * np.linalg.norm(by_rows)


@pytest.mark.parametrize(
    ("name", "side", "tokens_before"),
    [
        ("vit", 32, 1),
        ("registers", 32, 5),
        ("clip", 32, 1),
        ("siglip", 32, 0),
        ("resnet", 64, None),
    ],
)
def test_a_vision_model_gives_what_its_last_layer_sees(
    tiny_models: Path, name: str, side: int, tokens_before: int | None
) -> None:
    """As transformers computes it, with the model's own way of preparing pictures."""
    backbone = VisionModel(str(tiny_models / name))
    assert backbone.canvas.side == side
    pixels = pictures_for(backbone)
    model = AutoModel.from_pretrained(tiny_models / name).eval()
    model = getattr(model, "vision_model", model)
    processor = AutoImageProcessor.from_pretrained(tiny_models / name)
    mean, std = np.array(processor.image_mean), np.array(processor.image_std)
    ready = torch.from_numpy(((np.stack(pixels) / 255 - mean) / std).astype(np.float32))
    with torch.inference_mode():
        seen = model(pixel_values=ready.permute(0, 3, 1, 2)).last_hidden_state
    if tokens_before is not None:
        seen = seen[:, tokens_before:].reshape(2, 8, 8, -1).permute(0, 3, 1, 2)
    expected = adaptive_avg_pool2d(seen, 6).flatten(2).mT.numpy()
    regions = backbone(pixels)
    assert regions.shape == (2, 36, backbone.width)
    np.testing.assert_allclose(regions, expected, rtol=2e-3, atol=2e-3)


def test_patches_stay_where_they_are_in_the_picture() -> None:
    """A token a cell, after a class token, row by row."""
    tokens = torch.cat([torch.full((1, 1, 1), -1.0), torch.arange(64.0).reshape(1, 64, 1)], dim=1)
    np.testing.assert_array_equal(as_map(tokens)[0, 0], np.arange(64).reshape(8, 8))


def test_the_id_knows_the_weights_and_the_way_pictures_are_prepared(
    tiny_models: Path, tmp_path: Path
) -> None:
    original = VisionModel(str(tiny_models / "vit"))
    copy = Path(shutil.copytree(tiny_models / "vit", tmp_path / "vit"))
    assert VisionModel(str(copy)).id == original.id
    settings = json.loads((copy / "preprocessor_config.json").read_text())
    changed = {**settings, "image_mean": [0.4, 0.5, 0.5]}
    (copy / "preprocessor_config.json").write_text(json.dumps(changed))
    assert VisionModel(str(copy)).id != original.id
    (copy / "preprocessor_config.json").write_text(json.dumps(settings))
    model = AutoModel.from_pretrained(copy)
    with torch.no_grad():
        model.layernorm.bias += 1
    model.save_pretrained(copy)
    assert VisionModel(str(copy)).id != original.id
    assert original.id.startswith("vit-")
    assert original.id.endswith("-6x6")


def test_weights_that_do_not_make_regions_may_be_missing(tiny_models: Path, tmp_path: Path) -> None:
    """A classifier's file has no pooler: the random one that fills the gap changes nothing."""
    from transformers import ViTConfig, ViTForImageClassification

    shutil.copytree(tiny_models / "vit", tmp_path / "vit")
    config = ViTConfig.from_pretrained(tmp_path / "vit")
    ViTForImageClassification(config).save_pretrained(tmp_path / "vit")
    assert VisionModel(str(tmp_path / "vit")).id == VisionModel(str(tmp_path / "vit")).id


def test_incomplete_weights_are_refused(tiny_models: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    file = Path(shutil.copytree(tiny_models / "vit", tmp_path / "vit")) / "model.safetensors"
    weights = load_file(file)
    del weights["layernorm.weight"]
    save_file(weights, file, metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"layernorm.weight is missing"):
        VisionModel(str(tmp_path / "vit"))


@pytest.mark.parametrize("output", ["patches", "block-2"])
def test_what_float16_cannot_keep_is_refused(
    tiny_models: Path, tmp_path: Path, output: str
) -> None:
    folder = Path(shutil.copytree(tiny_models / "vit", tmp_path / "vit"))
    model = AutoModel.from_pretrained(folder)
    with torch.no_grad():
        model.layernorm.bias.fill_(1e5)
        model.embeddings.position_embeddings.fill_(1e5)
    model.save_pretrained(folder)
    with pytest.raises(UserError, match=r"up to 1e\+05, which float16"):
        VisionModel(str(folder), Output.parse(output))
    assert VisionModel(str(folder), Output("mean")).width == 32


def test_pickled_weights_are_refused(tiny_models: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_models / "vit", tmp_path / "vit"))
    weights = AutoModel.from_pretrained(folder).state_dict()
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"cannot be used as a backbone.*safetensors"):
        VisionModel(str(folder))


def test_code_of_a_model_is_never_run(tiny_models: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_models / "vit", tmp_path / "vit"))
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "own.C", "AutoModel": "own.M"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(UserError, match="cannot be used as a backbone"):
        VisionModel(str(folder))
    assert not (tmp_path / "ran").exists()


def test_too_coarse_a_model_is_refused(tiny_models: Path) -> None:
    with pytest.raises(UserError, match="4 x 4 cells; expected 6 x 6"):
        VisionModel(str(tiny_models / "coarse"))


def test_a_folder_without_a_vision_model_is_refused(tiny_models: Path, tmp_path: Path) -> None:
    from transformers import BertConfig, BertModel

    small = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 1, "vocab_size": 9}
    BertModel(BertConfig(**small, num_hidden_layers=1)).save_pretrained(tmp_path / "words")
    for folder in (tmp_path, tmp_path / "words"):
        with pytest.raises(UserError, match="cannot be used as a backbone"):
            VisionModel(str(folder))
    shutil.copy(tiny_models / "vit" / "preprocessor_config.json", tmp_path / "words")
    with pytest.raises(UserError, match="cannot process a picture"):
        VisionModel(str(tmp_path / "words"))


def test_a_name_that_is_not_here_is_refused_at_once_without_a_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unreachable(*_: Any, **__: Any) -> Any:
        raise OSError("no network")

    monkeypatch.setattr(socket.socket, "connect", unreachable)
    monkeypatch.setattr(socket, "getaddrinfo", unreachable)
    with pytest.raises(UserError, match=r"not a folder.*the hub cannot be reached"):
        VisionModel("nobody/nothing")
    with pytest.raises(UserError, match="is neither a folder nor a model on the hub"):
        VisionModel("no name!!")


@pytest.mark.parametrize(
    ("package", "use"),
    [("efficientnet", EfficientNetLite), ("PIL", partial(decode, b"", EfficientNetLite.canvas))],
)
def test_missing_packages_are_named_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch, package: str, use: Callable[[], object]
) -> None:
    original = builtins.__import__

    def without(name: str, *rest: Any, **options: Any) -> Any:
        if name.startswith(package):
            raise ImportError("not there", name=name)
        return original(name, *rest, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UserError, match=rf'{package}.*pip install "aoq\[extract\]"'):
        use()


def test_features_in_another_precision_are_kept_apart(tiny_models: Path) -> None:
    names = {
        VisionModel(str(tiny_models / "vit"), Output(kind, precision=precision)).id
        for kind in ("patches", "pooled")
        for precision in ("float32", "bfloat16")
    }
    assert len(names) == 4
