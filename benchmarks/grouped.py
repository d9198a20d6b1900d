"""The cost of a step of a grouped batch, and of one with offline negatives, against an online step.

Steps are whole: ids to tensors, forward, backward, update, at the sizes of the recipes for small
sets and of Flickr8k. Lists are random: what a step costs does not depend on what they hold. A
grouped step includes its share of putting the pairs of an epoch into groups. Seconds are those of
the processor on one thread, which other programs on a shared machine disturb least.
"""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass, replace
from functools import cache
from statistics import median
from typing import Any

import numpy as np
import torch

from aoq.config import LossConfig, Recipe, SamplingConfig
from aoq.data.collate import Collator
from aoq.data.dataset import PairDataset
from aoq.grouping import grouped_order
from aoq.mining.candidates import CandidateLists, Provenance
from aoq.models import build_model
from aoq.randomness import epoch_order
from aoq.recipes import load_recipe
from aoq.sampling import OfflineSampler
from aoq.training.collectives import Collectives, start_fabric
from aoq.training.optimizers import make_optimizer
from aoq.training.step import make_batches, update
from aoq.types import Ids
from benchmarks.scoring import draw_lengths

IMAGES, TEXTS_EACH, REGIONS, FEATURES, VOCABULARY = 6_000, 5, 9, 1_280, 8_000
DEPTHS = SamplingConfig(depth_texts=300, depth_images=60)
WAYS: dict[str, dict[str, Any]] = {  # settings of round two
    "online": {"loss": LossConfig(name="online")},
    "grouped": {"loss": LossConfig(name="online"), "batches": "grouped"},
    "AdapOffQuin": {"loss": LossConfig(name="adap_off_quin")},
}


@cache
def pairs_to_read() -> tuple[Collator, OfflineSampler]:
    """Return photos and captions of Flickr8k's size, and lists of them, all drawn."""
    random = np.random.default_rng(0)
    n_texts = IMAGES * TEXTS_EACH
    pairs = np.stack([np.arange(n_texts) // TEXTS_EACH, np.arange(n_texts)], axis=1)
    lengths = draw_lengths(n_texts, torch.Generator().manual_seed(0)).tolist()
    regions = random.standard_normal((IMAGES, REGIONS, FEATURES), np.float32)
    dataset = PairDataset.of(regions, [f"{length} words" for length in lengths], pairs)
    tokens = random.integers(4, VOCABULARY, size=max(lengths))
    collator = Collator(dataset, lambda caption: tokens[: int(caption.split()[0])])
    collator.texts(np.zeros(1, np.int64))  # tokens of all captions, before any clock

    # Each list is a stretch of the other side that begins beyond the anchor's own.
    def stretches(n_anchors: int, n_candidates: int, depth: int) -> np.ndarray[Any, Any]:
        starts = random.integers(n_candidates, size=(n_anchors, 1))
        return ((starts + np.arange(depth)) % n_candidates).astype(np.int32)

    i2t = stretches(IMAGES, n_texts, DEPTHS.depth_texts)
    t2i = stretches(n_texts, IMAGES, DEPTHS.depth_images)
    lists = CandidateLists(
        i2t=i2t,
        i2t_scores=np.zeros(i2t.shape, np.float32),
        t2i=t2i,
        t2i_scores=np.zeros(t2i.shape, np.float32),
        provenance=Provenance(teacher="", data=""),
    )
    return collator, OfflineSampler(lists, dataset.positives, config=DEPTHS, seed=0)


class Steps:
    """Takes the steps of an epoch, one at a call."""

    def __init__(self, recipe: Recipe, way: str) -> None:
        torch.manual_seed(0)
        self.settings = replace(recipe.round_two, warmup_epochs=0, **WAYS[way])
        model = build_model(recipe.model, feature_width=FEATURES, vocabulary_size=VOCABULARY)
        self.model = model.train()
        self.optimizer = make_optimizer(self.model, self.settings)
        self.collectives = Collectives(start_fabric(torch.device("cpu"), self.settings.precision))
        started = time.process_time()
        self.order = self._order()
        self.seconds_to_order = time.process_time() - started
        self.taken = 0

    def _order(self) -> Ids:
        collator, sampler = pairs_to_read()
        if self.settings.batches == "grouped":
            return grouped_order(sampler, group_size=self.settings.group_size, epoch=0)
        return epoch_order(len(collator.dataset.positives.pairs), seed=0, epoch=0)

    @property
    def per_epoch(self) -> int:
        return len(self.order) // self.settings.batch_size

    def take(self) -> None:
        """Take the next step."""
        collator, sampler = pairs_to_read()
        size, settings = self.settings.batch_size, self.settings
        rows = self.order[self.taken * size : (self.taken + 1) * size]
        update(
            self.model,
            self.optimizer,
            make_batches(
                collator,
                collator.dataset.positives.pairs[rows],
                settings=settings,
                sampler=sampler,
                epoch=0,
                step=self.taken,
            ),
            settings=settings,
            epoch=0,
            collectives=self.collectives,
        )
        self.taken += 1


@dataclass(frozen=True)
class GroupedSteps:
    """Seconds of a step of each way, turn by turn; medians, and ratios to the online step."""

    recipe: str
    repeats: int

    def run(self) -> dict[str, Any]:
        torch.set_num_threads(1)
        grouped_order(pairs_to_read()[1], group_size=8, epoch=0)  # compiles
        recipe = load_recipe(self.recipe)
        ways = {way: Steps(recipe, way) for way in WAYS}
        seconds = defaultdict(list)
        for turn in range(self.repeats + 1):
            for way, steps in ways.items():
                started = time.process_time()
                steps.take()
                if turn:  # the first is not counted
                    seconds[way].append(time.process_time() - started)
        costs = {
            way: median(seconds[way]) + steps.seconds_to_order / steps.per_epoch
            for way, steps in ways.items()
        }
        rows = {
            way: {"seconds": round(cost, 5), "ratio": round(cost / costs["online"], 3)}
            for way, cost in costs.items()
        }
        width = recipe.model.joint_width
        return {
            "name": self.recipe,
            "what": f"a step of {recipe.model.name}, batch {recipe.round_two.batch_size}, "
            f"{REGIONS} x {FEATURES} features, D {width}",
            "repeats": self.repeats,
            "rows": rows,
            "seconds_to_group_an_epoch": round(ways["grouped"].seconds_to_order, 3),
            "sentence": ", ".join(
                f"{way} {1000 * row['seconds']:.0f} ms ({row['ratio']:.2f}x)"
                for way, row in rows.items()
            ),
        }


COMPARISONS = [
    GroupedSteps(recipe=f"{name}-small", repeats=repeats)
    for name, repeats in (("vse", 41), ("scan", 21), ("bfan", 21), ("vsrn", 21))
]
