"""The cost of a round-two step: AdapOffQuin against the online loss, for each model.

A round-two step reads up to three times the images and texts. How much longer it may take follows
from the multiply-adds of its matrix products, by formula, beside the measured ratio. Backward adds
the same factor to both, so forward products are counted.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from aoq.config import LossConfig, ModelConfig, RoundConfig
from aoq.models import build_model
from aoq.training.step import make_optimizer, update
from aoq.types import AlignedIdx, StepBatch, Texts
from benchmarks.harness import Comparison, Task
from benchmarks.scoring import BATCH, REGIONS, WIDTH, draw_lengths

FEATURES, WORD_WIDTH, CAPTION_WIDTH, VOCABULARY = 2048, 300, 512, 8_000
CONFIGS = {
    "VSE++": ModelConfig(name="vse", joint_width=WIDTH),
    "SCAN t2i": ModelConfig(name="scan", joint_width=WIDTH, direction="t2i"),
    "SCAN i2t": ModelConfig(name="scan", joint_width=WIDTH, direction="i2t"),
    "BFAN prob": ModelConfig(name="bfan", joint_width=WIDTH),
    "VSRN": ModelConfig(name="vsrn", joint_width=WIDTH),
}


def draw_texts(n_texts: int) -> Texts:
    random = torch.Generator().manual_seed(0)
    lengths = draw_lengths(n_texts, random)
    tokens = torch.randint(4, VOCABULARY, (n_texts, int(lengths.max())), generator=random)
    return Texts(tokens * (torch.arange(tokens.shape[1]) < lengths[:, None]), lengths)


def step_batch(texts: Texts, n_sets: int) -> StepBatch:
    """A step of `n_sets` sets of images and texts, all distinct, as they are on COCO."""
    rows = torch.arange(n_sets * BATCH).view(n_sets, BATCH)
    sets = [AlignedIdx(idx, idx) for idx in rows]
    random = torch.Generator().manual_seed(0)
    return StepBatch(
        regions=torch.randn(n_sets * BATCH, REGIONS, FEATURES, generator=random).relu_(),
        texts=texts[rows.flatten()],
        pairs=sets[0],
        negatives=~torch.eye(BATCH, dtype=torch.bool),
        offline=sets[1] if n_sets > 1 else None,
        partners=sets[2] if n_sets > 2 else None,
    )


def step_tasks(name: str) -> tuple[Task, Task]:
    torch.manual_seed(0)
    model = build_model(CONFIGS[name], feature_width=FEATURES, vocabulary_size=VOCABULARY)
    texts = draw_texts(3 * BATCH)
    tasks = []
    for loss, n_sets in (("adap_off_quin", 3), ("online", 1)):
        settings = RoundConfig(loss=LossConfig(name=loss))
        optimizer, batch = make_optimizer(model, settings), step_batch(texts, n_sets)
        tasks.append(partial(update, model, optimizer, batch, settings=settings, epoch=0))
    return tasks[0], tasks[1]


def multiply_adds(config: ModelConfig, lengths: Tensor, *, n_sets: int) -> float:
    """Multiply-adds of the dense and recurrent products of a step, forward."""
    n_images, n_words = n_sets * BATCH, float(lengths[: n_sets * BATCH].sum())
    of_pairs = lengths[:BATCH]
    gru = 3 * WIDTH * (WORD_WIDTH + WIDTH)
    regions = n_images * REGIONS
    if config.name in ("vse", "vsrn"):
        texts, scores = n_words * gru, (BATCH**2 + 4 * (n_sets > 1) * BATCH) * WIDTH
        if config.name == "vse":
            return n_images * FEATURES * WIDTH + texts + scores
        graph = 4 * (4 * regions * WIDTH**2 + 2 * regions * REGIONS * WIDTH)
        images = regions * FEATURES * WIDTH + graph + regions * 3 * WIDTH * 2 * WIDTH
        return images + texts + scores + caption_multiply_adds(of_pairs)
    squares = float((lengths.double() ** 2).sum())  # of all sets, for the words' Gram matrices
    matrix = WIDTH * (BATCH * REGIONS * float(of_pairs.sum()) + BATCH * REGIONS**2)
    weights = BATCH * REGIONS * float(of_pairs.sum()) * REGIONS  # w' G, per pair of image and text
    pairs = 0.0
    if n_sets > 1:
        longest = float(lengths.max())
        pairs = 4 * BATCH * WIDTH * (REGIONS * longest + REGIONS**2 + longest**2)
    return (
        regions * FEATURES * WIDTH
        + 2 * n_words * gru
        + matrix
        + weights
        + squares / 3 * WIDTH
        + pairs
    )


def caption_multiply_adds(lengths: Tensor) -> float:
    """VSRN's caption model; it reads the images of the pairs only, in both kinds of step."""
    width, steps = CAPTION_WIDTH, BATCH * float(lengths.max())
    encoder = BATCH * REGIONS * (WIDTH * width + 3 * width * 2 * width + width * width)
    attention = width * width + 2 * REGIONS * width
    decoder = 3 * width * (WORD_WIDTH + 2 * width) + width * VOCABULARY
    return encoder + steps * (attention + decoder)


def step_facts(name: str) -> dict[str, float]:
    lengths = draw_texts(3 * BATCH).lengths
    ours, online = (multiply_adds(CONFIGS[name], lengths, n_sets=n_sets) for n_sets in (3, 1))
    return {
        "multiply_adds": round(ours / 1e9, 2),
        "baseline_multiply_adds": round(online / 1e9, 2),
        "multiply_add_ratio": round(ours / online, 3),
    }


COMPARISONS = [
    Comparison(
        name=f"{name} step",
        what=f"an AdapOffQuin step, batch {BATCH}, {REGIONS} x {FEATURES} features, D {WIDTH}",
        baseline="an online step of the same model",
        setup=partial(step_tasks, name),
        repeats=3 if name == "VSRN" else 5,
        facts=step_facts(name),
    )
    for name in CONFIGS
]
