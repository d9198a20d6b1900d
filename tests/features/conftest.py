"""What tests of pictures share: a cache of their own, and networks that cost nothing."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from aoq.features import regions
from aoq.features.backbones import DEFAULT_ID, GRID, Regions
from aoq.features.pictures import Canvas, Pixels


class MeanColour:
    """Stands in for the network: the mean colour of the picture in every feature."""

    id, width, canvas = DEFAULT_ID, 1280, Canvas(224)
    batches: ClassVar[list[int]] = []

    def __call__(self, pixels: list[Pixels], /) -> Regions:
        self.batches.append(len(pixels))
        means = np.array([picture.mean() for picture in pixels], np.float16)
        return np.broadcast_to(means[:, None, None], (len(pixels), GRID * GRID, self.width))

    @classmethod
    def seen(cls) -> int:
        return sum(cls.batches)


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty place for features."""
    monkeypatch.setenv("AOQ_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def mean_colour(monkeypatch: pytest.MonkeyPatch, own_cache: Path) -> type[MeanColour]:
    """Tests of what happens around the network go without it."""
    MeanColour.batches.clear()
    monkeypatch.setattr(regions, "load_backbone", lambda name, output=None: MeanColour())
    return MeanColour


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Vision models of random weights in folders, as transformers saves them."""
    import torch
    import transformers
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    folder = tmp_path_factory.mktemp("models")
    size = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_attention_heads": 2,
        "num_hidden_layers": 2,
    }
    patches = {"image_size": 32, "patch_size": 4}
    square = {"height": 32, "width": 32}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        models = {
            "vit": transformers.ViTModel(transformers.ViTConfig(**size, **patches)),
            "coarse": transformers.ViTModel(
                transformers.ViTConfig(**size, image_size=32, patch_size=8)
            ),
            "registers": transformers.Dinov2WithRegistersModel(
                transformers.Dinov2WithRegistersConfig(**size, **patches)
            ),
            "resnet": transformers.ResNetModel(
                transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1])
            ),
            "clip": transformers.CLIPModel(
                transformers.CLIPConfig(
                    text_config={**size, "vocab_size": 20}, vision_config={**size, **patches}
                )
            ),
            "siglip": transformers.SiglipModel(
                transformers.SiglipConfig(
                    text_config={**size, "vocab_size": 20}, vision_config={**size, **patches}
                )
            ),
        }
        for name, model in models.items():
            model.save_pretrained(folder / name)
    for name in ("vit", "coarse", "siglip"):
        transformers.ViTImageProcessorPil(size=square).save_pretrained(folder / name)
    for name in ("registers", "clip"):
        processor = transformers.CLIPImageProcessorPil(size={"shortest_edge": 40}, crop_size=square)
        processor.save_pretrained(folder / name)
    transformers.ConvNextImageProcessorPil(size={"shortest_edge": 64}).save_pretrained(
        folder / "resnet"
    )
    return folder
