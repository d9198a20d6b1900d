"""Tiny pretrained models, written from config: dual encoders of several kinds, and single towers.

Their weights are random, but their files are those of real ones: a tokenizer, the preprocessing of
pictures, safetensors weights.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from transformers import (
    AltCLIPConfig,
    AltCLIPModel,
    BertConfig,
    BertModel,
    ChineseCLIPConfig,
    ChineseCLIPModel,
    CLIPConfig,
    CLIPImageProcessorPil,
    CLIPModel,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    ResNetConfig,
    ResNetModel,
    Siglip2Config,
    Siglip2ImageProcessorPil,
    Siglip2Model,
    SiglipConfig,
    SiglipModel,
    VisionTextDualEncoderConfig,
    VisionTextDualEncoderModel,
    ViTConfig,
    ViTModel,
)
from transformers.utils.logging import disable_progress_bar, set_verbosity_error

disable_progress_bar()
set_verbosity_error()
SIDE = 32
SIZE: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_hidden_layers": 3,
}
SPECIAL = ["<pad>", "<start>", "<unk>", "<end>"]  # CLIP takes an <end> of id 2 for none
SENTENCES = (
    "a red ball on the left of a small blue cup",
    "two green trees above a dog in the snow",
    "there is a scene with many things",
)


def write_tokenizer(folder: Path, texts: Iterable[str] = SENTENCES, *, longest: int = 32) -> int:
    """Write a tokenizer of byte pairs; return how many pieces it knows."""
    pieces = Tokenizer(models.BPE(unk_token="<unk>"))
    pieces.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        special_tokens=SPECIAL, initial_alphabet=alphabet, vocab_size=400, show_progress=False
    )
    pieces.train_from_iterator(texts, trainer)
    pieces.post_processor = processors.TemplateProcessing(
        single="<start> $A <end>", special_tokens=[("<start>", 1), ("<end>", 3)]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=pieces,
        pad_token="<pad>",
        unk_token="<unk>",
        eos_token="<end>",
        model_max_length=longest,
    )
    tokenizer.save_pretrained(folder)
    return len(tokenizer)


def write_processor(folder: Path) -> None:
    pixels = {"height": SIDE, "width": SIDE}
    CLIPImageProcessorPil(size={"shortest_edge": SIDE}, crop_size=pixels).save_pretrained(folder)


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield


def write_clip(folder: Path, *, seed: int = 0) -> Path:
    n_pieces = write_tokenizer(folder)
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 3}
    config = CLIPConfig(
        text_config={**SIZE, "vocab_size": n_pieces, "max_position_embeddings": 32, **ids},
        vision_config={**SIZE, "image_size": SIDE, "patch_size": 8},
        projection_dim=16,
    )
    with _seeded(seed):
        CLIPModel(config).save_pretrained(folder)
    write_processor(folder)
    return folder


def write_siglip(folder: Path, *, seed: int = 0) -> Path:
    n_pieces = write_tokenizer(folder, longest=16)
    config = SiglipConfig(
        text_config={**SIZE, "vocab_size": n_pieces, "max_position_embeddings": 16},
        vision_config={**SIZE, "image_size": SIDE, "patch_size": 8},
    )
    with _seeded(seed):
        SiglipModel(config).save_pretrained(folder)
    write_processor(folder)
    return folder


def write_bert(folder: Path, *, seed: int = 0) -> Path:
    n_pieces = write_tokenizer(folder)
    config = BertConfig(vocab_size=n_pieces, max_position_embeddings=32, **SIZE)
    with _seeded(seed):
        BertModel(config).save_pretrained(folder)
    return folder


def write_vit(folder: Path, *, seed: int = 0, patch: int = 8) -> Path:
    config = ViTConfig(**SIZE, image_size=SIDE, patch_size=patch)
    with _seeded(seed):
        ViTModel(config).save_pretrained(folder)
    write_processor(folder)
    return folder


def write_resnet(folder: Path, *, seed: int = 0) -> Path:
    """A vision model with batch norm."""
    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")
    with _seeded(seed):
        ResNetModel(config).save_pretrained(folder)
    write_processor(folder)
    return folder


# Other dual encoders. Tokenizers of SigLIP 2 add pieces of their own.

_VISION = {**SIZE, "image_size": SIDE, "patch_size": 8}
_TEXT = {**SIZE, "vocab_size": 340, "max_position_embeddings": 40}


def _as_tokenizer(folder: Path, kind: str) -> None:
    """Let a tokenizer be read as that of SigLIP 2: transformers makes one with its pieces."""
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "tokenizer_class": kind}))


def _write_dual(folder: Path, make: Callable[[], PreTrainedModel]) -> Path:
    write_tokenizer(folder)
    with _seeded(0):
        make().save_pretrained(folder)
    write_processor(folder)
    return folder


def write_siglip2(folder: Path) -> Path:
    """SigLIP 2 of a fixed resolution: the network of SigLIP with the tokenizer of Gemma."""
    config = SiglipConfig(text_config=_TEXT, vision_config=_VISION)
    _write_dual(folder, lambda: SiglipModel(config))
    _as_tokenizer(folder, "GemmaTokenizer")
    return folder


def write_siglip2_naflex(folder: Path) -> Path:
    """SigLIP 2 that keeps the shape of a picture."""
    config = Siglip2Config(
        text_config=_TEXT, vision_config={**SIZE, "num_patches": 16, "patch_size": 8}
    )
    _write_dual(folder, lambda: Siglip2Model(config))
    _as_tokenizer(folder, "Siglip2Tokenizer")
    Siglip2ImageProcessorPil(patch_size=8, max_num_patches=20).save_pretrained(folder)
    return folder


def write_chinese_clip(folder: Path) -> Path:
    config = ChineseCLIPConfig(text_config=_TEXT, vision_config=_VISION, projection_dim=16)
    return _write_dual(folder, lambda: ChineseCLIPModel(config))


def write_altclip(folder: Path) -> Path:
    text = {**_TEXT, "project_dim": 32, "pad_token_id": 0}
    config = AltCLIPConfig(text_config=text, vision_config=_VISION, projection_dim=16)
    return _write_dual(folder, lambda: AltCLIPModel(config))


def write_vit_and_bert(folder: Path) -> Path:
    config = VisionTextDualEncoderConfig.from_vision_text_configs(
        ViTConfig(**_VISION), BertConfig(**_TEXT), projection_dim=16
    )
    return _write_dual(folder, lambda: VisionTextDualEncoderModel(config))


DUAL_ENCODERS: dict[str, Callable[[Path], Path]] = {
    "clip": write_clip,
    "siglip": write_siglip,
    "siglip2": write_siglip2,
    "siglip2-naflex": write_siglip2_naflex,
    "chinese-clip": write_chinese_clip,
    "altclip": write_altclip,
    "vit-and-bert": write_vit_and_bert,
}


@dataclass(frozen=True)
class TinyModels:
    """Folders of tiny pretrained models."""

    clip: Path
    siglip: Path
    bert: Path
    vit: Path

    @classmethod
    def write(cls, folder: Path) -> TinyModels:
        return cls(
            write_clip(folder / "clip"),
            write_siglip(folder / "siglip"),
            write_bert(folder / "bert"),
            write_vit(folder / "vit"),
        )
