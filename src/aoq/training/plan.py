"""What a recipe will cost, before anything starts.

A few real steps of each round and the encoding of one batch are timed on the real data with the
real model; the rest is arithmetic. Nothing is written.
"""

from __future__ import annotations

import resource
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import torch

from aoq.config import Recipe, RoundConfig
from aoq.mining.candidates import CandidateLists, Provenance
from aoq.models import build_model, count_parameters
from aoq.models.vsrn import VSRN
from aoq.sampling import OfflineSampler
from aoq.training.step import make_batch, step_loss
from aoq.training.two_rounds import TrainingData, open_training_data
from aoq.types import Positives

_TIMED_STEPS = 3
_ENCODED_AT_ONCE = 128


@dataclass(frozen=True)
class RoundPlan:
    """Steps of a round and the time of each."""

    steps: int
    seconds_per_step: float

    @property
    def seconds(self) -> float:
        return self.steps * self.seconds_per_step


@dataclass(frozen=True)
class Plan:
    """Steps, time, disk and memory of a recipe."""

    parameters: int
    round_one: RoundPlan
    mining_seconds: float
    round_two: RoundPlan
    disk_bytes: int
    memory_bytes: int

    def rows(self) -> list[tuple[str, str]]:
        """As a table for people."""
        total = self.round_one.seconds + self.mining_seconds + self.round_two.seconds
        return [
            ("parameters", f"{self.parameters:,}"),
            ("round one", _describe(self.round_one)),
            ("mining", f"about {duration(self.mining_seconds)}"),
            ("round two", _describe(self.round_two)),
            ("time in all", f"about {duration(total)} on this machine, without validation"),
            ("disk", _bytes(self.disk_bytes)),
            ("memory", f"{_bytes(self.memory_bytes)} at the peak of the timed steps"),
        ]


def make_plan(recipe: Recipe) -> Plan:
    """Time a few steps of each round and work out the rest."""
    recipe = recipe.resolved()
    data = open_training_data(recipe)
    model = build_model(
        recipe.model, feature_width=data.feature_width, vocabulary_size=len(data.vocabulary)
    ).to(data.train.device)
    lists = _stand_in_lists(recipe, data.train.dataset.positives)
    sampler = OfflineSampler(
        lists, data.train.dataset.positives, config=recipe.sampling, seed=recipe.seed
    )
    parameters = count_parameters(model)
    return Plan(
        parameters=parameters,
        round_one=_time_round(model, data, recipe.round_one, sampler),
        mining_seconds=_time_mining(model, data),
        round_two=_time_round(model, data, recipe.round_two, sampler),
        # For each round the best weights, and the trainer's: weights and Adam's two moments.
        disk_bytes=2 * 4 * 4 * parameters
        + sum(array.nbytes for array in (lists.i2t, lists.i2t_scores, lists.t2i, lists.t2i_scores)),
        memory_bytes=_peak_memory(),
    )


def _time_round(
    model: VSRN, data: TrainingData, settings: RoundConfig, sampler: OfflineSampler
) -> RoundPlan:
    pairs = data.train.dataset.positives.pairs
    optimizer = torch.optim.Adam(model.parameters(), lr=0.0)
    seconds = []
    model.train()
    for step in range(_TIMED_STEPS):
        started = time.perf_counter()
        batch = make_batch(
            data.train,
            np.roll(pairs, -step * settings.batch_size, axis=0)[: settings.batch_size],
            sampler=sampler if settings.loss.needs_candidates else None,
            diagonal_only=settings.loss.diagonal_only,
            epoch=0,
            step=step,
        )
        optimizer.zero_grad(set_to_none=True)
        step_loss(model, batch, settings.loss).total.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        seconds.append(time.perf_counter() - started)
    steps = settings.epochs * -(-len(pairs) // settings.batch_size)
    return RoundPlan(steps=steps, seconds_per_step=median(seconds))


def _time_mining(model: VSRN, data: TrainingData) -> float:
    """Encode one batch of images and texts and score them; scale to the whole training set."""
    dataset = data.train.dataset
    model.eval()
    n_images = min(_ENCODED_AT_ONCE, len(dataset))
    n_texts = min(_ENCODED_AT_ONCE, dataset.n_texts)
    with torch.inference_mode():
        started = time.perf_counter()
        images = model.encode_images(data.train.regions(np.arange(n_images)))
        images_done = time.perf_counter()
        texts = model.encode_texts(data.train.texts(np.arange(n_texts)))
        texts_done = time.perf_counter()
        model.score_matrix(images, texts)
        scored = time.perf_counter()
    return (
        (images_done - started) * len(dataset) / n_images
        + (texts_done - images_done) * dataset.n_texts / n_texts
        + (scored - texts_done) * len(dataset) * dataset.n_texts / (n_images * n_texts)
    )


def _stand_in_lists(recipe: Recipe, positives: Positives) -> CandidateLists:
    """Lists of the right size for timing; which negatives they hold costs nothing."""
    random = np.random.default_rng(0)
    depth_texts = min(recipe.mining.depth_texts, positives.n_texts)
    depth_images = min(recipe.mining.depth_images, positives.n_images)
    i2t = random.integers(positives.n_texts, size=(positives.n_images, depth_texts))
    t2i = random.integers(positives.n_images, size=(positives.n_texts, depth_images))
    return CandidateLists(
        i2t.astype(np.int32),
        np.zeros(i2t.shape, np.float32),
        t2i.astype(np.int32),
        np.zeros(t2i.shape, np.float32),
        Provenance(teacher="", data=""),
    )


def _peak_memory() -> int:
    """The most memory this process has held; Linux's own figure is not inherited from a parent."""
    status = Path("/proc/self/status")
    if status.is_file():
        return 1024 * int(status.read_text().split("VmHWM:")[1].split()[0])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def _describe(plan: RoundPlan) -> str:
    return (
        f"{plan.steps:,} steps of {1000 * plan.seconds_per_step:,.0f} ms: "
        f"about {duration(plan.seconds)}"
    )


def duration(seconds: float) -> str:
    """Seconds as people say them."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def _bytes(count: int) -> str:
    value = float(count)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"
