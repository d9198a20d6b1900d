"""A pretrained model becomes a run whose scores are those that transformers computes."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from transformers import (
    AutoImageProcessor,
    AutoModel,
    AutoTokenizer,
    BertConfig,
    CLIPModel,
    FlavaConfig,
    FlavaModel,
)

from aoq.features.backbones import load_backbone
from aoq.features.text_models import load_text_model
from aoq.published.dual_encoders import import_dual_encoder
from aoq.retrieval.encoder import QueryEncoder
from aoq.runs.directory import RunDirectory
from aoq.runs.summary import RunSummary
from tests.commands import aoq, assert_refused
from tests.towers import DUAL_ENCODERS, SIZE, TinyModels, write_clip, write_processor

TEXTS = ("a red ball on the left", "Two GREEN trees above a dog", "xylophone")


@dataclass(frozen=True)
class Compared:
    """Photos and texts as transformers compares them."""

    cosines: torch.Tensor
    logits: torch.Tensor | None


def draw_photos(folder: Path) -> list[Path]:
    """Photos of different shapes, none of them square."""
    folder.mkdir()
    photos = []
    for number, size in enumerate([(90, 60), (64, 100), (200, 40)]):
        photos.append(folder / f"{number}.png")
        noise = [Image.effect_noise(size, 90) for _ in range(3)]
        Image.merge("RGB", noise).save(photos[-1])
    return photos


def compared_by_transformers(folder: Path, photos: list[Path], texts: list[str]) -> Compared:
    network: Any = AutoModel.from_pretrained(folder).eval()
    processor = AutoImageProcessor.from_pretrained(folder)
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    cosines, logits = [], []
    for photo in photos:
        pixels = processor(images=Image.open(photo), return_tensors="pt")
        for text in texts:
            if network.config.model_type.startswith("siglip"):
                longest = network.config.text_config.max_position_embeddings
                longest = min(longest, tokenizer.model_max_length)
                filled = {"padding": "max_length", "truncation": True, "max_length": longest}
                text = text.lower() if "siglip2" in folder.name else text
                tokens = {"input_ids": tokenizer(text, return_tensors="pt", **filled).input_ids}
            else:
                tokens = dict(tokenizer(text, return_tensors="pt"))
                tokens.pop("token_type_ids", None)
            with torch.no_grad():
                seen = network(**pixels, **tokens)
            unit = [each / each.norm() for each in (seen.image_embeds[0], seen.text_embeds[0])]
            cosines.append(unit[0] @ unit[1])
            logits.append(seen.logits_per_image[0, 0])
    shape = len(photos), len(texts)
    return Compared(torch.stack(cosines).view(shape), torch.stack(logits).view(shape))


def scores_of(run: Path, photos: list[Path], texts: list[str]) -> torch.Tensor:
    encoder = QueryEncoder.load(run)
    return torch.tensor([encoder.score(encoder.encode_picture(photo), texts) for photo in photos])


@pytest.mark.parametrize(
    ("kind", "prompt"), [*((kind, "{}") for kind in DUAL_ENCODERS), ("clip", "a photo of {}")]
)
def test_scores_are_the_cosines_that_transformers_computes(
    tmp_path: Path, kind: str, prompt: str
) -> None:
    folder = DUAL_ENCODERS[kind](tmp_path / kind)
    photos = draw_photos(tmp_path / "photos")
    import_dual_encoder(tmp_path / "run", str(folder), prompt=prompt)
    prompted = [prompt.format(text) for text in TEXTS]
    expected = compared_by_transformers(folder, photos, prompted)
    found = scores_of(tmp_path / "run", photos, list(TEXTS))
    torch.testing.assert_close(found, expected.cosines, rtol=0, atol=2e-5)


@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_probabilities_are_those_of_the_model(tmp_path: Path, kind: str) -> None:
    folder = DUAL_ENCODERS[kind](tmp_path / kind)
    (photo, *_) = draw_photos(tmp_path / "photos")
    import_dual_encoder(tmp_path / "run", str(folder))
    done = aoq("score", tmp_path / "run", photo, *TEXTS, "--json")
    found = [row["probability"] for row in json.loads(done.stdout)["scores"]]
    logits = compared_by_transformers(folder, [photo], list(TEXTS)).logits
    assert logits is not None
    expected = logits[0].softmax(0) if kind == "clip" else logits[0].sigmoid()
    assert found == pytest.approx(expected.tolist(), abs=1e-4)
    alone = json.loads(aoq("score", tmp_path / "run", photo, TEXTS[0], "--json").stdout)["scores"]
    assert (alone[0]["probability"] is None) == (kind == "clip")


def test_the_weights_of_the_model_are_not_copied(tmp_path: Path, towers: TinyModels) -> None:
    run = import_dual_encoder(tmp_path / "run", str(towers.clip))
    assert run.model.stat().st_size < 1_000
    assert {file.name for file in run.path.iterdir()} == {
        *("config.toml", "inputs.json", "origin.json", "events.jsonl", "model.safetensors"),
        "aoq-manifest.jsonl",
    }
    summary = RunSummary.read(run.path)
    assert (summary.stage, summary.pretrained) == ("imported", "clip")


@pytest.mark.parametrize("half", ["text", "vision"])
def test_a_model_that_has_changed_is_refused(tmp_path: Path, half: str) -> None:
    folder = write_clip(tmp_path / "clip")
    (photo, *_) = draw_photos(tmp_path / "photos")
    import_dual_encoder(tmp_path / "run", str(folder))
    network = CLIPModel.from_pretrained(folder)
    with torch.no_grad():
        projection = {"text": network.text_projection, "vision": network.visual_projection}[half]
        projection.weight[0, 0] += 1
    network.save_pretrained(folder)
    load_text_model.cache_clear()
    load_backbone.cache_clear()
    changed = aoq("score", tmp_path / "run", photo, "a ball")
    assert_refused(changed, "is not the text tower" if half == "text" else "is not the network")


def copy_of(folder: Path, out: Path) -> Path:
    return shutil.copytree(folder, out)


def without_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def with_pickled_weights(folder: Path) -> None:
    network = CLIPModel.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    torch.save(network.state_dict(), folder / "pytorch_model.bin")


def with_fewer_words(folder: Path) -> None:
    network = CLIPModel.from_pretrained(folder)
    config = network.config
    config.text_config.vocab_size = 50
    CLIPModel(config).save_pretrained(folder)


def without_tokenizer(folder: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()


def without_preprocessing(folder: Path) -> None:
    (folder / "preprocessor_config.json").unlink()


def with_code(folder: Path) -> None:
    """A repository whose model is its own code."""
    (folder / "modeling.py").write_text("raise SystemExit('ran')")
    settings = json.loads((folder / "config.json").read_text())
    settings |= {"model_type": "stranger", "auto_map": {"AutoConfig": "modeling.Config"}}
    (folder / "config.json").write_text(json.dumps(settings))


def with_damaged_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])


def with_missing_weights(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    del weights["visual_projection.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


BAD: dict[Callable[[Path], None], str] = {
    without_weights: "cannot be used as a dual encoder",
    with_pickled_weights: "cannot be used as a dual encoder",
    with_damaged_weights: "cannot be used as a dual encoder",
    with_missing_weights: "visual_projection.weight is missing",
    with_fewer_words: "pieces and it knows",
    without_tokenizer: "cannot be used as a text tower",
    without_preprocessing: "cannot be used as a backbone",
    with_code: "cannot be used as a dual encoder",
}


@pytest.mark.parametrize("spoil", BAD, ids=lambda spoil: spoil.__name__)
def test_a_model_that_cannot_be_used_is_refused_in_one_sentence(
    tmp_path: Path, towers: TinyModels, spoil: Callable[[Path], None]
) -> None:
    folder = copy_of(towers.clip, tmp_path / "clip")
    spoil(folder)
    assert_refused(aoq("import", folder, "--out", tmp_path / "run"), BAD[spoil])
    assert not (tmp_path / "run").exists()


def test_a_single_tower_is_no_dual_encoder(tmp_path: Path, towers: TinyModels) -> None:
    for tower in (towers.vit, towers.bert):
        done = aoq("import", tower, "--out", tmp_path / "run")
        assert_refused(done, "without the two towers", "expected a CLIP, a SigLIP")


def test_a_model_that_compares_something_else_is_refused(
    tmp_path: Path, towers: TinyModels
) -> None:
    """FLAVA has the methods of a dual encoder, but no comparison of two single vectors."""
    folder = copy_of(towers.clip, tmp_path / "flava")
    text = BertConfig(**SIZE, vocab_size=400, max_position_embeddings=40).to_dict()
    sizes = {"image_config": {**SIZE, "image_size": 32, "patch_size": 8}, "multimodal_config": SIZE}
    FlavaModel(FlavaConfig(text_config=text, **sizes)).save_pretrained(folder)
    write_processor(folder)
    assert_refused(aoq("import", folder, "--out", tmp_path / "run"), "cannot be used as a dual")


def test_a_folder_that_is_no_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    done = aoq("import", tmp_path / "photos", "--out", tmp_path / "run")
    assert_refused(done, "photos cannot be used as a dual encoder")


def test_an_unreachable_hub_is_one_sentence_that_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*_: Any, **__: Any) -> Any:
        raise OSError("no network")

    monkeypatch.setattr(socket.socket, "connect", unreachable)
    monkeypatch.setattr(socket, "getaddrinfo", unreachable)
    done = aoq("import", "openai/clip-nobody-has", "--out", tmp_path / "run")
    assert_refused(
        done,
        "the hub cannot be reached",
        "download the model on a connected machine",
        "HF_ENDPOINT",
        "HF_HOME",
    )


def test_flags_of_the_other_kind_of_import_are_refused(tmp_path: Path, towers: TinyModels) -> None:
    out = ("--out", tmp_path / "run")
    published = tmp_path / "model_best.pth.tar"
    assert_refused(aoq("import", published, *out), "name the vocabulary", "--vocabulary")
    assert_refused(aoq("import", towers.clip, *out, "--i2t", "a.npy"), "--i2t")
    assert_refused(
        aoq("import", towers.clip, *out, "--prompt", "a photo"), "expected a text with {}"
    )
    prompted = aoq("import", published, *out, "--vocabulary", "v.json", "--prompt", "a {}")
    assert_refused(prompted, "--prompt is for a pretrained model")
    assert_refused(aoq("import", towers.clip, "--out", towers.clip), "which is an input")


def test_an_import_replaces_a_run_only_with_force(tmp_path: Path, towers: TinyModels) -> None:
    command = ("import", towers.clip, "--out", tmp_path / "run")
    assert aoq(*command).returncode == 0
    assert_refused(aoq(*command), "--force")
    assert aoq(*command, "--prompt", "a {}", "--force").returncode == 0
    assert 'prompt = "a {}"' in RunDirectory(tmp_path / "run").config.read_text()
