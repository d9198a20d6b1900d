"""The cost of a round-two step: AdapOffQuin against the online loss, for each model; and table 6.

A round-two step reads up to three times the images and texts. How much longer it may take follows
from the multiply-adds of its dense and recurrent products. Their ratio by formula stands beside the
measured one: for the words of the texts, and for what a GRU reads of them with padding.

The paper's table 6 has the seconds of a batch of VSRN with each of the four losses. Here the four
take turns, and what counts is how much longer each takes than the online loss.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor

from aoq.config import LossConfig, LossName, ModelConfig, RoundConfig
from aoq.models import build_model
from aoq.models.encoders import by_length
from aoq.recipes import load_recipe
from aoq.scoring.protocol import TrainableModel
from aoq.training.collectives import Collectives, start_fabric
from aoq.training.optimizers import make_optimizer
from aoq.training.step import update
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


def step_batch(
    texts: Texts,
    n_sets: int,
    *,
    size: int = BATCH,
    regions: int = REGIONS,
    features: int = FEATURES,
) -> StepBatch:
    """A step of `n_sets` sets of images and texts, all distinct, as they are on COCO."""
    rows = torch.arange(n_sets * size).view(n_sets, size)
    sets = [AlignedIdx(idx, idx) for idx in rows]
    random = torch.Generator().manual_seed(0)
    return StepBatch(
        regions=torch.randn(n_sets * size, regions, features, generator=random).relu_(),
        texts=texts[rows.flatten()],
        pairs=sets[0],
        negatives=~torch.eye(size, dtype=torch.bool),
        offline=sets[1] if n_sets > 1 else None,
        partners=sets[2] if n_sets > 2 else None,
    )


def step_tasks(name: str) -> tuple[Task, Task]:
    torch.manual_seed(0)
    model = build_model(CONFIGS[name], feature_width=FEATURES, vocabulary_size=VOCABULARY)
    texts = draw_texts(3 * BATCH)
    return (
        step_task(model, LossConfig(name="adap_off_quin"), step_batch(texts, 3)),
        step_task(model, LossConfig(name="online"), step_batch(texts, 1)),
    )


def step_task(model: TrainableModel, loss: LossConfig, batch: StepBatch) -> Task:
    """A whole step of one loss, with an optimiser of its own."""
    settings = RoundConfig(loss=loss)
    return partial(
        update,
        model,
        make_optimizer(model, settings),
        [batch],
        settings=settings,
        epoch=0,
        collectives=Collectives(start_fabric(torch.device("cpu"))),
    )


def multiply_adds(config: ModelConfig, texts: Texts, *, n_sets: int, padding: bool) -> float:
    """Multiply-adds of the dense and recurrent products of a step, forward and backward.

    Backward has two products for each of forward's, but one for the projection of the features,
    whose input needs no gradient. `padding` counts the padded words that a GRU reads as well.
    """
    n_images, read = n_sets * BATCH, texts[torch.arange(n_sets * BATCH)]
    n_words = float(padded_words(read) if padding else read.lengths.sum())
    regions = n_images * (1 if config.name == "vse" else REGIONS)
    projection = regions * FEATURES * WIDTH
    gru = n_words * 3 * WIDTH * (WORD_WIDTH + WIDTH)
    if config.name in ("scan", "bfan"):
        forward = projection + 2 * gru + attention_products(config, texts.lengths, n_sets=n_sets)
    else:
        forward = projection + gru + (BATCH + 4 * (n_sets > 1)) * BATCH * WIDTH
    if config.name == "vsrn":
        graph = 4 * (4 * regions * WIDTH**2 + 2 * regions * REGIONS * WIDTH)
        reading = regions * 3 * WIDTH * 2 * WIDTH
        forward += graph + reading + caption_products(texts.lengths[:BATCH])
    return 3 * forward - projection


def padded_words(texts: Texts) -> int:
    """Words and padding that a GRU reads."""
    return sum(group.tokens.numel() for _, group in by_length(texts))


def attention_products(config: ModelConfig, lengths: Tensor, *, n_sets: int) -> float:
    """Similarities, Gram matrices and w' G of the score matrix, and of the four kinds of pairs."""
    directions = ("t2i", "i2t") if config.name == "bfan" else (config.direction,)
    of_pairs = lengths[:BATCH].double()
    words, squares = float(of_pairs.sum()), float((of_pairs**2).sum())
    longest = float(lengths[: n_sets * BATCH].max())
    total = BATCH * REGIONS * words * WIDTH
    if n_sets > 1:
        total += 4 * BATCH * REGIONS * longest * WIDTH
    if "t2i" in directions:
        total += BATCH * REGIONS**2 * (WIDTH + words)
        total += 4 * (n_sets > 1) * BATCH * REGIONS**2 * (WIDTH + longest)
    if "i2t" in directions:
        total += squares * (WIDTH + BATCH * REGIONS)
        total += 4 * (n_sets > 1) * BATCH * longest**2 * (WIDTH + REGIONS)
    return total


def caption_products(lengths: Tensor) -> float:
    """VSRN's caption model; it reads the images of the pairs only, in both kinds of step."""
    width, steps, words = CAPTION_WIDTH, BATCH * float(lengths.max()), float(lengths.sum())
    encoder = BATCH * REGIONS * (WIDTH * width + 3 * width * 2 * width + width * width)
    attention = width * width + 2 * REGIONS * width
    decoder = 3 * width * (WORD_WIDTH + 2 * width)
    return encoder + steps * (attention + decoder) + words * width * VOCABULARY


def step_facts(name: str) -> dict[str, float]:
    texts = draw_texts(3 * BATCH)
    ours, online, ours_padded, online_padded = (
        multiply_adds(CONFIGS[name], texts, n_sets=n_sets, padding=padding)
        for padding in (False, True)
        for n_sets in (3, 1)
    )
    return {
        "multiply_adds": round(ours / 1e9, 2),
        "baseline_multiply_adds": round(online / 1e9, 2),
        "multiply_add_ratio": round(ours / online, 3),
        "multiply_add_ratio_with_padding": round(ours_padded / online_padded, 3),
    }


COMPARISONS = [
    Comparison(
        name=f"{name} step",
        what=f"an AdapOffQuin step, batch {BATCH}, {REGIONS} x {FEATURES} features, D {WIDTH}",
        baseline="an online step of the same model",
        setup=partial(step_tasks, name),
        repeats=2 if name == "VSRN" else 5,
        facts=step_facts(name),
    )
    for name in CONFIGS
]


# The sets of images and texts that a step reads, and the paper's seconds (table 6).
SETTINGS: dict[str, tuple[LossName, int, float]] = {
    "VSRN": ("online", 1, 1.096),
    "VSRN + OffTri": ("off_tri", 2, 1.489),
    "VSRN + OffQuin": ("off_quin", 3, 1.557),
    "VSRN + AdapOffQuin": ("adap_off_quin", 3, 1.604),
}


@dataclass(frozen=True)
class Table6:
    """Seconds of a batch with each loss, which take turns; medians, and ratios to the first."""

    name: str
    config: ModelConfig
    batch_size: int
    regions: int
    features: int
    repeats: int

    def run(self) -> dict[str, Any]:
        torch.manual_seed(0)
        model = build_model(self.config, feature_width=self.features, vocabulary_size=VOCABULARY)
        texts = draw_texts(3 * self.batch_size)
        sizes = {"size": self.batch_size, "regions": self.regions, "features": self.features}
        tasks = {
            label: step_task(model, LossConfig(name=loss), step_batch(texts, n_sets, **sizes))
            for label, (loss, n_sets, _) in SETTINGS.items()
        }
        for task in tasks.values():  # once without the clock
            task()
        seconds: dict[str, list[float]] = {label: [] for label in tasks}
        for _ in range(self.repeats):
            for label, task in tasks.items():
                started = time.perf_counter()
                task()
                seconds[label].append(time.perf_counter() - started)
        medians = {label: median(times) for label, times in seconds.items()}
        online, paper_online = medians["VSRN"], SETTINGS["VSRN"][2]
        rows = {
            label: {
                "seconds": round(medians[label], 4),
                "ratio": round(medians[label] / online, 3),
                "paper_seconds": paper,
                "paper_ratio": round(paper / paper_online, 3),
            }
            for label, (_, _, paper) in SETTINGS.items()
        }
        sentences = (
            f"{label} {row['seconds']:.3f} s, {row['ratio']:.2f}x (paper {row['paper_ratio']:.2f}x)"
            for label, row in rows.items()
        )
        what = (
            f"a step of VSRN, batch {self.batch_size}, {self.regions} x {self.features} features, "
            f"D {self.config.joint_width}"
        )
        return {
            "name": self.name,
            "what": what,
            "repeats": self.repeats,
            "rows": rows,
            "sentence": "; ".join(sentences),
        }


_FLICKR8K = load_recipe("vsrn-flickr8k")
TABLE6 = [
    Table6(
        name="table 6, Flickr8k's recipe",
        config=_FLICKR8K.model,
        batch_size=_FLICKR8K.round_two.batch_size,
        regions=9,
        features=1280,
        repeats=21,
    ),
]
TABLE6_AS_PUBLISHED = [
    Table6(
        name="table 6, the paper's sizes",
        config=load_recipe("vsrn-coco").model,
        batch_size=BATCH,
        regions=REGIONS,
        features=FEATURES,
        repeats=5,
    ),
]
