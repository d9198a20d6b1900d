"""Judging a test set: ranks against the bare matrix product, intervals against a plain loop.

5,000 x 25,000 is COCO's test set. The bare product of the same blocks, nothing kept, is what no
ranking can beat. The loop draws queries and computes the figures anew for every resample.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch

from aoq.evaluation.bootstrap import resampled_figures
from aoq.evaluation.metrics import Metrics
from aoq.evaluation.protocols import JudgedFold, judge_folds
from aoq.evaluation.ranks import PairRanks, Ranks
from aoq.scoring.blocks import ranges
from aoq.scoring.encoded import EncodedDataset
from aoq.scoring.inner_product import InnerProduct
from aoq.types import Encoding
from benchmarks.harness import Comparison, Task
from benchmarks.mining import BLOCK, Size

COCO = Size(5_000, 25_000, 1024)
FOLD = Size(1_000, 5_000, 1024)
MEMORY = "1GiB"
RESAMPLES = 1_000
LOOP_SHARE = 1 / 20


def ranking_tasks(folds: int) -> tuple[Task, Task]:
    images, texts = COCO.vectors()
    encoded, positives = EncodedDataset(Encoding(images), Encoding(texts)), COCO.positives()

    def rank() -> object:
        return judge_folds(InnerProduct(), encoded, positives, memory=MEMORY, folds=folds)

    def product() -> None:
        """As many folds, one after the other, of as many images and texts."""
        for own in ranges(len(images), len(images) // folds):
            belonging = slice(5 * own.start, 5 * own.stop)
            for rows in ranges(own.stop, BLOCK, start=own.start):
                for columns in ranges(belonging.stop, BLOCK, start=belonging.start):
                    torch.mm(images[rows], texts[columns].T)

    return rank, product


def bootstrap_tasks() -> tuple[Task, Task]:
    positives = FOLD.positives()
    random = np.random.default_rng(0)
    pair_ranks = PairRanks(*random.geometric(0.2, size=(2, len(positives.pairs))))
    fold = JudgedFold(positives, pair_ranks)
    own = fold.ranks.t2i.reshape(FOLD.images, -1)

    def loop() -> None:
        for _ in range(round(RESAMPLES * LOOP_SHARE)):
            drawn = random.integers(FOLD.images, size=FOLD.images)
            ranks = Ranks(i2t=fold.ranks.i2t[drawn], t2i=own[drawn].ravel())
            Metrics.from_ranks(ranks).figures()

    return partial(resampled_figures, [fold], resamples=RESAMPLES), loop


COMPARISONS = [
    Comparison(
        name=f"ranks, {what}",
        what=f"ranks of all pairs, {COCO}, {what}, --memory {MEMORY}",
        baseline=f"torch.mm of the same blocks, {BLOCK} x {BLOCK}",
        setup=partial(ranking_tasks, folds),
        repeats=5,
    )
    for what, folds in (("whole", 1), ("5 folds", 5))
] + [
    Comparison(
        name="bootstrap",
        what=f"{RESAMPLES:,} resamples of {FOLD.images:,} x {FOLD.texts:,}, every figure",
        baseline="the same, one resample after the other",
        setup=bootstrap_tasks,
        repeats=3,
        baseline_share=LOOP_SHARE,
    )
]
