"""Cross attention against the plain loop of `plain.py`, on the same tensors.

128 images x 128 texts as in training, and 1,000 x 5,000 as in evaluation. Text lengths are drawn to
have the mean and spread of real captions (Flickr8k: 13.8 words with <start> and <end>, +- 3.9).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from itertools import product

import torch
from torch import Tensor
from torch.nn.functional import normalize

from aoq.config import ModelConfig
from aoq.models import build_model
from aoq.scoring.blocks import block_size_within, ranges
from aoq.scoring.encoded import EncodedDataset, concatenate
from aoq.scoring.protocol import TrainableModel
from aoq.types import Encoding
from benchmarks import plain
from benchmarks.harness import Comparison, Task

BATCH, REGIONS, WIDTH = 128, 36, 1024
MANY_IMAGES, MANY_TEXTS, MEMORY = 1_000, 5_000, "2GiB"
PLAIN_TEXTS = 25  # of the many, for the baseline
MEAN_WORDS, SPREAD, FEWEST, MOST = 13.8, 3.9, 5, 40

CONFIGS = {
    "SCAN t2i": ModelConfig(name="scan", direction="t2i", joint_width=4),
    "SCAN i2t": ModelConfig(name="scan", direction="i2t", joint_width=4),
    "BFAN equal": ModelConfig(name="bfan", focal="equal", joint_width=4),
    "BFAN prob": ModelConfig(name="bfan", focal="prob", joint_width=4),
}
PLAIN: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "SCAN t2i": partial(plain.scan_scores, direction="t2i", temperature=9.0, scale=6.0),
    "SCAN i2t": partial(plain.scan_scores, direction="i2t", temperature=4.0, scale=5.0),
    "BFAN equal": partial(plain.bfan_scores, focal="equal"),
    "BFAN prob": partial(plain.bfan_scores, focal="prob"),
}


def scorer(name: str) -> TrainableModel:
    """The scorer alone matters here, so the encoders are as small as they can be."""
    return build_model(CONFIGS[name], feature_width=1, vocabulary_size=5)


def draw_lengths(n_texts: int, random: torch.Generator) -> Tensor:
    lengths = MEAN_WORDS + SPREAD * torch.randn(n_texts, generator=random)
    return lengths.round().long().clamp(FEWEST, MOST)


@cache
def batch() -> tuple[Encoding, Encoding]:
    """Unit vectors of 128 images and 128 texts."""
    random = torch.Generator().manual_seed(0)
    lengths = draw_lengths(BATCH, random)
    images = normalize(torch.randn(BATCH, REGIONS, WIDTH, generator=random), dim=-1)
    words = normalize(torch.randn(BATCH, int(lengths.max()), WIDTH, generator=random), dim=-1)
    mask = torch.arange(words.shape[1]) < lengths[:, None]
    return Encoding(images), Encoding(words * mask[..., None], mask)


def forward_tasks(name: str) -> tuple[Task, Task]:
    images, texts = batch()
    model, reference, lengths = scorer(name), PLAIN[name], _lengths(texts)

    def ours() -> Tensor:
        with torch.no_grad():
            return model.score_matrix(images, texts)

    def caption_by_caption() -> Tensor:
        with torch.no_grad():
            return reference(images.vectors, texts.vectors, lengths)

    return ours, caption_by_caption


def product_tasks(name: str) -> tuple[Task, Task]:
    images, texts = batch()
    regions, words = images.vectors.flatten(0, 1), texts.vectors[texts.mask]

    def bare_product() -> Tensor:
        return regions @ words.T

    return forward_tasks(name)[0], bare_product


def backward_tasks(name: str) -> tuple[Task, Task]:
    images, texts = batch()
    model, reference, lengths = scorer(name), PLAIN[name], _lengths(texts)
    regions = images.vectors.clone().requires_grad_()
    words = texts.vectors.clone().requires_grad_()

    def learn(scores: Tensor) -> None:
        regions.grad = words.grad = None
        scores.sum().backward()

    def ours() -> None:
        learn(model.score_matrix(Encoding(regions), Encoding(words, texts.mask)))

    def caption_by_caption() -> None:
        learn(reference(regions, words, lengths))

    return ours, caption_by_caption


@cache
def many() -> EncodedDataset[Encoding]:
    """1,000 images and 5,000 texts, as `encode_dataset` keeps them."""
    random = torch.Generator().manual_seed(0)
    images = normalize(torch.randn(MANY_IMAGES, REGIONS, WIDTH, generator=random), dim=-1)
    parts = []
    for lengths in draw_lengths(MANY_TEXTS, random).split(BATCH):
        words = normalize(
            torch.randn(len(lengths), int(lengths.max()), WIDTH, generator=random), dim=-1
        )
        mask = torch.arange(words.shape[1]) < lengths[:, None]
        parts.append(Encoding(words * mask[..., None], mask))
    return EncodedDataset(Encoding(images), concatenate(parts))


def many_tasks(name: str) -> tuple[Task, Task]:
    encoded, model, reference = many(), scorer(name), PLAIN[name]

    def ours() -> None:
        size = block_size_within(MEMORY, encoded)
        blocks = product(ranges(len(encoded.images), size), ranges(len(encoded.texts), size))
        with torch.no_grad():
            for images, texts in blocks:
                scores = model.score_matrix(encoded.images[images], encoded.texts[texts])
                assert scores.isfinite().all()

    def caption_by_caption() -> Tensor:
        texts = encoded.texts[:PLAIN_TEXTS]
        with torch.no_grad():
            return reference(encoded.images[:].vectors, texts.vectors, _lengths(texts))

    return ours, caption_by_caption


def _lengths(texts: Encoding) -> Tensor:
    assert texts.mask is not None
    return texts.mask.sum(dim=1)


SIZES = f"{BATCH} images x {BATCH} texts, {REGIONS} regions, D {WIDTH}"
LOOP = "one caption at a time, attended vectors built, in the order of the published program"
COMPARISONS = [
    comparison
    for name in CONFIGS
    for comparison in (
        Comparison(
            name=f"{name} forward",
            what=f"score matrix of {SIZES}",
            baseline=LOOP,
            setup=partial(forward_tasks, name),
        ),
        Comparison(
            name=f"{name} forward, beside the bare product",
            what=f"score matrix of {SIZES}",
            baseline="the matrix product that gives the similarities, and nothing else",
            setup=partial(product_tasks, name),
            repeats=15,
        ),
        Comparison(
            name=f"{name} forward and backward",
            what=f"score matrix of {SIZES} and its gradients",
            baseline=LOOP,
            setup=partial(backward_tasks, name),
            repeats=3,
        ),
    )
] + [
    Comparison(
        name=f"{name}, a test set",
        what=f"all scores of {MANY_IMAGES:,} images x {MANY_TEXTS:,} texts within {MEMORY}",
        baseline=f"{LOOP}; {PLAIN_TEXTS} texts, scaled up",
        setup=partial(many_tasks, name),
        repeats=1,
        baseline_share=PLAIN_TEXTS / MANY_TEXTS,
    )
    for name in ("SCAN t2i", "BFAN prob")
]
