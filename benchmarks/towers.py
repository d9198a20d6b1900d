"""An epoch of heads on frozen towers, against a plain PyTorch loop over the same tensors.

Both read kept vectors, of Flickr8k's size and of the widths of CLIP ViT-B/16 and MiniLM, and train
the same heads with the same loss, clipping and optimizer. Ours is a whole round of one epoch: with
its log, its statistics, its saved state and a validation on a few images.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from aoq.data.collate import Collator
from aoq.data.dataset import PairDataset
from aoq.features.texts import FrozenVectors
from aoq.models.towers import Towers
from aoq.recipes import load_recipe
from aoq.runs.directory import RunDirectory
from aoq.storage import atomic_folder
from aoq.training.round import Round
from benchmarks.harness import Comparison, Task

IMAGES, TEXTS_EACH, IMAGE_WIDTH, TEXT_WIDTH = 6_000, 5, 512, 384
RECIPE = load_recipe("towers")
SETTINGS = replace(RECIPE.round_one, epochs=1, warmup_epochs=0, rise_epochs=0.0)
CONFIG = replace(RECIPE.model, image="-", text="-", image_pooling="cls", text_pooling="mean")


class _Vectors(Collator):
    """Reads drawn vectors in place of what a text tower makes of captions."""

    def __init__(self, n_images: int, *, split: str) -> None:
        random = np.random.default_rng(0)
        n_texts = TEXTS_EACH * n_images
        pairs = np.stack([np.arange(n_texts) // TEXTS_EACH, np.arange(n_texts)], axis=1)
        images = random.normal(size=(n_images, 1, IMAGE_WIDTH)).astype(np.float32)
        super().__init__(
            PairDataset.of(images, ["a few words"] * n_texts, pairs, split=split),
            lambda caption: [1, 2, 3],
        )
        texts = random.normal(size=(n_texts, TEXT_WIDTH)).astype(np.float32)
        self.__dict__["_frozen"] = FrozenVectors(texts)


def setup() -> tuple[Task, Task]:
    train, dev = _Vectors(IMAGES, split="train"), _Vectors(16, split="dev")

    def ours() -> object:
        with (
            tempfile.TemporaryDirectory() as place,
            atomic_folder(Path(place, "run"), what="run") as run,
        ):
            torch.manual_seed(0)
            return Round(
                RunDirectory(run),
                SETTINGS,
                model=_build(train),
                train=train,
                dev=dev,
                sampler=None,
                seed=0,
                which="one",
                label="benchmark",
                feature_width=IMAGE_WIDTH,
            ).fit()

    images = torch.from_numpy(np.asarray(train.dataset.features))[:, 0]
    texts = train.texts(np.arange(train.dataset.n_texts)).vectors
    assert texts is not None

    def plain() -> object:
        torch.manual_seed(0)
        return train_plainly(_build(train), images, texts)

    return ours, plain


def _build(train: Collator) -> Towers:
    model = Towers(CONFIG, feature_width=IMAGE_WIDTH, text_width=TEXT_WIDTH)
    some = np.arange(512)
    model.fit_inputs(train.regions(some), train.texts(some))
    return model


def train_plainly(model: Towers, images: Tensor, texts: Tensor) -> nn.Module:
    """An epoch as one would write it by hand."""
    image_head, text_head = model.image_head, model.text_head
    assert image_head is not None
    assert text_head is not None
    parameters = [*image_head.parameters(), *text_head.parameters()]
    optimizer = torch.optim.AdamW(
        parameters, lr=SETTINGS.learning_rate, weight_decay=SETTINGS.weight_decay, fused=True
    )
    order = torch.randperm(len(texts))
    n_steps = len(order) // SETTINGS.batch_size
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, n_steps)
    for rows in order.split(SETTINGS.batch_size):
        owners = rows // TEXTS_EACH
        encoded_images = nn.functional.normalize(image_head(images[owners]), dim=1)
        encoded_texts = nn.functional.normalize(text_head(texts[rows]), dim=1)
        scores = encoded_images @ encoded_texts.T
        wrong = scores.masked_fill(owners[:, None] == owners, -torch.inf)
        right, margin = scores.diagonal(), SETTINGS.loss.margin_online
        hinges = [(margin + wrong.amax(dim=side) - right).clamp(min=0) for side in (0, 1)]
        loss = torch.stack(hinges).sum()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, SETTINGS.clip_norm)
        optimizer.step()
        schedule.step()
    return model


COMPARISONS = [
    Comparison(
        name="an epoch of heads on frozen towers",
        what=f"a round of one epoch, {TEXTS_EACH * IMAGES:,} pairs, batches of "
        f"{SETTINGS.batch_size}",
        baseline="a plain PyTorch loop over the same tensors",
        setup=setup,
        repeats=5,
    )
]
