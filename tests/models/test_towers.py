"""Towers start as the pretrained models they are made of; only what learns learns and is saved."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoImageProcessor, AutoModel, AutoTokenizer
from transformers.modeling_layers import GradientCheckpointingLayer

from aoq.config import Learning, ModelConfig
from aoq.data.collate import pad_texts
from aoq.data.inputs import Inputs
from aoq.errors import UserError
from aoq.features.pictures import decode
from aoq.models import build_model, find_inputs
from aoq.models.towers import Towers
from aoq.runs.checkpoint import load_weights, save_weights
from aoq.training.collectives import start_fabric
from aoq.types import Texts
from tests.towers import SENTENCES, SIDE, TinyModels, write_resnet

LEARN: tuple[Learning, ...] = ("heads", "top", "lora", "full")


def config_of(image: Path, text: Path | None = None, **changes: object) -> ModelConfig:
    settings = {"image_blocks": 1, "text_blocks": 2, "lora_rank": 2, "joint_width": 8}
    names = {"image": str(image), "text": "" if text is None else str(text)}
    return ModelConfig(name="towers", **names, **{**settings, **changes})  # type: ignore[arg-type]


def build(config: ModelConfig) -> tuple[Towers, Inputs]:
    inputs = find_inputs(config)
    assert inputs.images is not None
    assert inputs.texts is not None
    width = inputs.images.load().width
    model = build_model(
        config,
        feature_width=width,
        vocabulary_size=len(inputs.texts.load().tokenizer),
        text_width=inputs.texts.load().width,
    )
    assert isinstance(model, Towers)
    return model, inputs


def photos() -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [random.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8) for _ in SENTENCES]


def read_photos(inputs: Inputs) -> torch.Tensor:
    assert inputs.images is not None
    backbone = inputs.images.load()
    rows = [inputs.images.finish(backbone([picture])[0]) for picture in photos()]
    features = torch.from_numpy(np.stack(rows))
    return features.float() if features.is_floating_point() else features


def read_texts(inputs: Inputs) -> Texts:
    assert inputs.texts is not None
    tower = inputs.texts.load()
    rows = [tower.tokenizer.encode(text) for text in SENTENCES]
    texts = pad_texts(rows, tower.tokenizer.pad)
    return replace(texts, vectors=tower(texts))


def compared_by(folder: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """The unit vectors of a dual encoder, computed by transformers from photos and sentences."""
    network = AutoModel.from_pretrained(folder).eval()
    pixels = AutoImageProcessor.from_pretrained(folder)(
        images=[Image.fromarray(picture) for picture in photos()], return_tensors="pt"
    )
    padding = "max_length" if "siglip" in folder.name else True
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokens = tokenizer(list(SENTENCES), padding=padding, return_tensors="pt")
    tokens.pop("token_type_ids", None)
    if "siglip" in folder.name:
        tokens.pop("attention_mask")
    with torch.no_grad():
        seen = network(**pixels, **tokens)
    return seen.image_embeds, seen.text_embeds


@pytest.mark.parametrize("name", ["clip", "siglip"])
@pytest.mark.parametrize("learn", LEARN)
def test_a_dual_encoder_starts_with_the_vectors_it_is_known_for(
    towers: TinyModels, name: str, learn: Learning
) -> None:
    folder = getattr(towers, name)
    model, inputs = build(config_of(folder, learn=learn, head="none"))
    model.eval()
    images, texts = compared_by(folder)
    # States are kept in half precision.
    bound = 2e-3 if learn in ("top", "lora") else 1e-5
    with torch.no_grad():
        found = model.encode_images(read_photos(inputs)).vectors
        torch.testing.assert_close(found, images, rtol=0, atol=bound)
        found = model.encode_texts(read_texts(inputs)).vectors
        torch.testing.assert_close(found, texts, rtol=0, atol=bound)


@pytest.mark.parametrize("learn", LEARN)
@pytest.mark.parametrize("pooling", ["cls", "mean", "generalised"])
def test_one_step_moves_all_that_learns_and_nothing_else(
    towers: TinyModels, learn: Learning, pooling: str
) -> None:
    torch.manual_seed(0)
    config = config_of(
        towers.vit, towers.bert, learn=learn, image_pooling=pooling, text_pooling=pooling
    )
    model, inputs = build(config)
    images, texts = read_photos(inputs), read_texts(inputs)
    model.fit_inputs(images, texts)
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    learning = {name for name, weight in model.named_parameters() if weight.requires_grad}
    optimizer = torch.optim.SGD([each for each in model.parameters() if each.requires_grad], 1.0)
    for _ in range(2):  # an adapter's first factor moves in the second step
        optimizer.zero_grad()
        scores = model.score_matrix(model.encode_images(images), model.encode_texts(texts))
        torch.nn.functional.cross_entropy(20 * scores, torch.arange(3)).backward()
        optimizer.step()
    moved = {name for name, weight in model.named_parameters() if not before[name].equal(weight)}
    # A bias of keys does not change attention, and of a pooler's mean not the standardised vector.
    still = {name for name in learning - moved if not name.endswith("bias")}
    assert moved <= learning
    assert not still
    trunks = {name for name in learning if "_trunk.network" in name}
    assert bool(trunks) == (learn != "heads")
    assert set(model.state_dict()) == learning | {
        f"{side}_head.{name}" for side in ("image", "text") for name in ("mean", "scale")
    }


@pytest.mark.parametrize("learn", LEARN)
def test_saved_weights_restore_the_model(
    towers: TinyModels, tmp_path: Path, learn: Learning
) -> None:
    torch.manual_seed(0)
    config = config_of(towers.vit, towers.bert, learn=learn, text_pooling="generalised")
    model, inputs = build(config)
    images, texts = read_photos(inputs), read_texts(inputs)
    model.fit_inputs(images, texts)
    with torch.no_grad():
        for weight in filter(lambda each: each.requires_grad, model.parameters()):
            weight.add_(0.1 * torch.randn_like(weight))
    save_weights(tmp_path / "model.safetensors", model, feature_width=1)
    again, _ = build(config)
    load_weights(tmp_path / "model.safetensors", again)
    model.eval(), again.eval()
    with torch.no_grad():
        expected = model.score_matrix(model.encode_images(images), model.encode_texts(texts))
        found = again.score_matrix(again.encode_images(images), again.encode_texts(texts))
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("learn", LEARN)
def test_padding_does_not_change_an_encoding(towers: TinyModels, learn: Learning) -> None:
    torch.manual_seed(0)
    model, inputs = build(
        config_of(towers.vit, towers.bert, learn=learn, text_pooling="generalised")
    )
    texts = read_texts(inputs)
    model.fit_inputs(read_photos(inputs), texts)
    model.eval()
    with torch.no_grad():
        together = model.encode_texts(texts).vectors
        for number, text in enumerate(SENTENCES):
            assert inputs.texts is not None
            tower = inputs.texts.load()
            one = pad_texts([tower.tokenizer.encode(text)], tower.tokenizer.pad)
            alone = model.encode_texts(replace(one, vectors=tower(one))).vectors
            torch.testing.assert_close(alone[0], together[number], rtol=0, atol=1e-5)


def test_batch_norm_of_a_tower_that_learns_keeps_its_statistics(
    towers: TinyModels, tmp_path: Path
) -> None:
    config = config_of(write_resnet(tmp_path / "resnet"), towers.bert, learn="full")
    model, inputs = build(config)
    images = read_photos(inputs)
    assert model.image_trunk is not None
    before = {name: value.clone() for name, value in model.image_trunk.named_buffers()}
    model.train()
    together = model.image_trunk(images)
    alone = torch.cat([model.image_trunk(image) for image in images.split(1)])
    torch.testing.assert_close(alone, together, rtol=0, atol=1e-5)
    for name, value in model.image_trunk.named_buffers():
        assert value.equal(before[name]), name


@pytest.mark.parametrize("learn", ["heads", "top", "full"])
def test_heads_are_fitted_by_a_few_images_and_texts_at_a_time(
    towers: TinyModels, learn: Learning, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, inputs = build(config_of(towers.vit, towers.bert, learn=learn))
    images, texts = read_photos(inputs), read_texts(inputs)
    model.fit_inputs(images, texts)
    expected = {name: value.clone() for name, value in model.state_dict().items()}
    monkeypatch.setattr("aoq.models.towers._AT_ONCE", 2)
    model.fit_inputs(images, texts)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, expected[name], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("dropped", ["feature_dropout", "word_dropout"])
def test_features_of_images_and_texts_are_dropped_apart(towers: TinyModels, dropped: str) -> None:
    model, inputs = build(config_of(towers.vit, towers.bert, head="linear", **{dropped: 0.5}))
    images, texts = read_photos(inputs), read_texts(inputs)
    vectors = {
        "feature_dropout": lambda: model.encode_images(images).vectors,
        "word_dropout": lambda: model.encode_texts(texts).vectors,
    }
    model.train()
    for name, encode in vectors.items():
        assert torch.equal(encode(), encode()) == (name != dropped)
    model.eval()
    for encode in vectors.values():
        assert torch.equal(encode(), encode())


def test_a_tower_that_does_not_learn_has_no_dropout(towers: TinyModels) -> None:
    model, inputs = build(config_of(towers.vit, towers.bert, text_pooling="generalised"))
    texts = read_texts(inputs)
    model.train()
    assert model.text_trunk is not None
    torch.testing.assert_close(model.text_trunk(texts), model.text_trunk(texts), rtol=0, atol=0)


@pytest.mark.parametrize("learn", ["top", "lora", "full"])
@pytest.mark.parametrize("locked", ["image", "text"])
def test_a_tower_without_learning_blocks_is_frozen_and_the_other_learns(
    towers: TinyModels, learn: str, locked: str
) -> None:
    config = config_of(towers.clip, learn=learn, head="none", **{f"{locked}_blocks": 0})
    model, inputs = build(config)
    trunks = {"image": model.image_trunk, "text": model.text_trunk}
    assert trunks.pop(locked) is None
    assert inputs.images is not None
    assert inputs.texts is not None
    kept = {"image": inputs.images.output, "text": inputs.texts.output}
    assert kept[locked] == "pooled"
    (trunk,) = trunks.values()
    assert trunk is not None
    learning = {id(weight) for weight in model.parameters() if weight.requires_grad}
    assert learning
    assert learning <= {id(weight) for weight in trunk.parameters()}


@pytest.mark.parametrize("learn", ["top", "lora", "full"])
def test_blocks_that_do_not_learn_on_either_side_are_refused(learn: str) -> None:
    with pytest.raises(UserError, match="no block of either tower learns"):
        ModelConfig(name="towers", image="-", learn=learn, image_blocks=0, text_blocks=0)  # type: ignore[arg-type]


def test_towers_of_different_widths_need_heads(towers: TinyModels) -> None:
    with pytest.raises(UserError, match=r"width 32 and 16.*linear or residual"):
        build(config_of(towers.vit, towers.clip, head="none", image_pooling="cls"))


def test_an_image_tower_alone_asks_for_a_text_tower(towers: TinyModels) -> None:
    with pytest.raises(UserError, match="is an image tower without a text tower"):
        find_inputs(config_of(towers.vit))


def test_pixels_are_read_as_the_network_reads_files(towers: TinyModels, tmp_path: Path) -> None:
    """A photo that is not square, scaled and cut by us, and by the network's own preprocessing."""
    picture = Image.effect_noise((90, 60), 80).convert("RGB")
    picture.save(tmp_path / "photo.png")
    inputs = find_inputs(config_of(towers.clip, head="none"))
    assert inputs.images is not None
    backbone = inputs.images.load()
    pixels = decode(tmp_path / "photo.png", backbone.canvas)
    found = torch.from_numpy(backbone([pixels])[0])
    network = AutoModel.from_pretrained(towers.clip).eval()
    ready = AutoImageProcessor.from_pretrained(towers.clip)(images=picture, return_tensors="pt")
    with torch.no_grad():
        expected = network.get_image_features(**ready)
    expected = getattr(expected, "pooler_output", expected)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("learn", ["top", "lora", "full"])
@pytest.mark.parametrize("is_dual", [True, False])
def test_blocks_computed_twice_give_the_same_gradients(
    towers: TinyModels, learn: Learning, is_dual: bool
) -> None:
    """BERT and ViT have dropout, which is drawn alike the second time."""
    names = (towers.clip,) if is_dual else (towers.vit, towers.bert)
    gradients, computed = [], []
    for twice in (False, True):
        torch.manual_seed(0)
        config = config_of(*names, learn=learn, checkpoint_blocks=twice)
        model, inputs = build(config)
        images, texts = read_photos(inputs), read_texts(inputs)
        model.fit_inputs(images, texts)
        calls = 0

        def count(*_: object) -> None:
            nonlocal calls
            calls += 1

        for trunk in (model.image_trunk, model.text_trunk):
            assert trunk is not None
            blocks = [
                each for each in trunk.modules() if isinstance(each, GradientCheckpointingLayer)
            ]
            assert blocks
            for block in blocks:  # a part of each: a block itself is called once
                next(iter(block.children())).register_forward_hook(count)
        torch.manual_seed(1)
        scores = model.score_matrix(model.encode_images(images), model.encode_texts(texts))
        forward = calls
        torch.nn.functional.cross_entropy(20 * scores, torch.arange(3)).backward()
        computed.append(calls / forward)
        gradients.append({name: weight.grad for name, weight in model.named_parameters()})
    assert computed == [1, 2]
    torch.testing.assert_close(gradients[1], gradients[0], rtol=0, atol=0)


@pytest.mark.parametrize("learn", ["top", "lora", "full"])
def test_towers_learn_in_mixed_precision_on_a_processor(
    towers: TinyModels, learn: Learning
) -> None:
    torch.manual_seed(0)
    model, inputs = build(config_of(towers.clip, learn=learn, head="none"))
    images, texts = read_photos(inputs), read_texts(inputs)
    model.eval()
    exact = model.score_matrix(model.encode_images(images), model.encode_texts(texts))
    with start_fabric(torch.device("cpu"), "bfloat16").autocast():
        scores = model.score_matrix(model.encode_images(images), model.encode_texts(texts))
    assert scores.dtype == torch.float32
    assert not scores.equal(exact)
    torch.testing.assert_close(scores, exact, rtol=0, atol=0.05)
    scores.sum().backward()
    for weight in filter(lambda each: each.requires_grad, model.parameters()):
        assert weight.dtype == torch.float32
        assert weight.grad is not None
        assert weight.grad.isfinite().all()
