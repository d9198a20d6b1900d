"""What a recipe will cost in time, disk and memory, before anything starts.

A few real steps of each round, and encoding and scoring a slice of the training set, are timed on
the real data with the real model; the rest is arithmetic. Nothing is written.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch

from aoq.config import Recipe, RoundConfig
from aoq.mining.candidates import CandidateLists, Provenance
from aoq.mining.plan import usable_depth
from aoq.mining.toplists import TopLists
from aoq.models import count_parameters
from aoq.progress import count_of, progress_bar, warn
from aoq.randomness import epoch_order
from aoq.sampling import OfflineSampler
from aoq.scoring.blocks import BLOCK_SIZE
from aoq.scoring.protocol import FitsInClosedForm, TrainableModel
from aoq.threads import choose_threads, using_threads
from aoq.training.closed_form import pairs_in_blocks, read_blocks
from aoq.training.collectives import Collectives, start_fabric
from aoq.training.inputs import TrainingData, open_training_data
from aoq.training.optimizers import make_optimizer
from aoq.training.preflight import require_memory_for, require_rounds_fit
from aoq.training.step import make_batches, update
from aoq.types import Encoding, Floats, Int32s, Positives

T = TypeVar("T")
_TIMED = 3  # the first call is slow
_FEW_PAIRS = 8
_FEW_BLOCKS = 5
_LONG = 10.0  # seconds
_BUSY = 0.75  # of the cores
_SLICE = 256
_SLOW_SLICE = 0.1  # seconds of its scores: a whole block takes sixteen times as long


@dataclass(frozen=True)
class StepCost:
    """Seconds and memory of one step."""

    seconds: float
    memory_bytes: int
    "Peak of the whole process."


@dataclass(frozen=True)
class RoundCost:
    """Steps of a round, the time of them all, and the memory they need."""

    steps: int
    seconds: float
    memory_bytes: int

    def __str__(self) -> str:
        each = 1000 * self.seconds / self.steps
        return f"{count_of(self.steps, 'step')} of {each:,.0f} ms: about {duration(self.seconds)}"


@dataclass(frozen=True)
class MiningCost:
    """The time of ranking the training set, and what is kept of it."""

    seconds: float
    disk_bytes: int
    memory_bytes: int

    times: int = 1

    def repeated(self, times: int, *, keeps: int) -> MiningCost:
        """Return the cost of mining so often, of which only the last lists are kept."""
        return replace(self, times=times, seconds=times * self.seconds, disk_bytes=keeps)

    def __str__(self) -> str:
        often = f"{count_of(self.times, 'time')}: " if self.times > 1 else ""
        return f"{often}about {duration(self.seconds)}"


@dataclass(frozen=True)
class RecipeCost:
    """Steps, time, disk and memory of a recipe."""

    parameters: int
    round_one: RoundCost | None
    mining: MiningCost | None
    round_two: RoundCost | None
    remining: MiningCost | None
    "What round two mines while it trains, all of it."
    disk_bytes: int
    memory_bytes: int

    def rows(self) -> list[tuple[str, str]]:
        """Return the rows of a table for display, without stages that the recipe does not have."""
        costs = {
            "round one": self.round_one,
            "mining": self.mining,
            "round two": self.round_two,
            "mining while it trains": self.remining,
        }
        stages = {name: cost for name, cost in costs.items() if cost is not None}
        total = sum(cost.seconds for cost in stages.values())
        return [
            ("parameters", f"{self.parameters:,}"),
            *((name, str(cost)) for name, cost in stages.items()),
            ("time in all", f"about {duration(total)} on this machine, without validation"),
            ("disk", _bytes(self.disk_bytes)),
            ("memory", f"about {_bytes(self.memory_bytes)} at the peak"),
        ]


def estimate_cost(recipe: Recipe) -> RecipeCost:
    """Time a few steps of each round and a slice of what is mined, and extrapolate."""
    recipe = recipe.resolved()
    _warn_where_busy()
    data = open_training_data(recipe)
    builder = data.builder(recipe.model)
    require_rounds_fit(recipe, builder)
    model = builder().to(data.train.device)
    positives = data.train.dataset.positives
    sampler, mining, remining, one, two = None, None, None, None, None
    if recipe.mines and recipe.mining.memory is not None:
        require_memory_for(model, recipe, data)
    times = sum(map(recipe.round_two.remines_at, range(recipe.round_two.epochs)))
    stages = (recipe.mines or times > 0) + recipe.needs_round_one + (recipe.rounds == "both")
    with progress_bar("Measuring", total=stages, unit="stages") as update:
        if recipe.needs_lists:
            lists = _given_lists(recipe, data) or _stand_in_lists(recipe, positives)
            sampler = OfflineSampler(lists, positives, config=recipe.sampling, seed=recipe.seed)
            if recipe.mines or times:
                update(advance=0, title="Measuring mining")
                once = _time_mining(model, data, lists)
                mining = once if recipe.mines else None
                remining = once.repeated(times, keeps=lists.nbytes) if times else None
                update()
        if recipe.needs_round_one:
            update(advance=0, title="Measuring round one")
            one = _time_round(model, data, recipe.round_one, sampler)
            update()
        if recipe.rounds == "both":
            update(advance=0, title="Measuring round two")
            two = _time_round(model, data, recipe.round_two, sampler)
            update()
    parameters = count_parameters(model)
    rounds = [(one, recipe.round_one), (two, recipe.round_two)]
    # For each round the best weights, and the trainer's: weights, Adam's two moments, the average.
    copies = sum(4 + (settings.ema is not None) for cost, settings in rounds if cost is not None)
    mined = [each for each in (mining, remining) if each is not None]
    peaks = [each.memory_bytes for each in (one, two) if each is not None]
    return RecipeCost(
        parameters=parameters,
        round_one=one,
        mining=mining,
        round_two=two,
        remining=remining,
        disk_bytes=copies * 4 * parameters + sum(cost.disk_bytes for cost in mined),
        memory_bytes=max([*peaks, *(cost.memory_bytes for cost in mined)]),
    )


def _warn_where_busy() -> None:
    """Warn that other work on this machine affects the times."""
    cores, load = os.cpu_count() or 1, os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if load > _BUSY * cores:
        warn(
            f"this machine has other work (load {load:.1f} on {count_of(cores, 'core')}), and "
            "times are measured beside it."
        )


def _time_round(
    model: TrainableModel,
    data: TrainingData,
    settings: RoundConfig,
    sampler: OfflineSampler | None,
) -> RoundCost:
    """Extrapolate from a few steps, of the warm-up's epochs and of the others separately."""
    if isinstance(model, FitsInClosedForm):
        return _time_fits(model, data, settings)
    steps = -(-len(data.train.dataset.positives.pairs) // settings.batch_size)
    warmup = settings.warmup_epochs
    like = {0: warmup, settings.epochs - 1: settings.epochs - warmup}  # how many epochs are alike
    paces = {
        epoch: _time_steps(model, data, settings, sampler, epoch)
        for epoch, epochs in like.items()
        if epochs
    }
    return RoundCost(
        steps=settings.epochs * steps,
        seconds=sum(like[epoch] * steps * pace.seconds for epoch, pace in paces.items()),
        memory_bytes=max(pace.memory_bytes for pace in paces.values()),
    )


def _time_fits(model: FitsInClosedForm, data: TrainingData, settings: RoundConfig) -> RoundCost:
    """Extrapolate from two small fits: what they share is the solution, the rest is reading."""
    blocks = pairs_in_blocks(data.train.dataset)

    def time_fit(count: int) -> float:
        started = time.perf_counter()
        model.fit(read_blocks(data.train, blocks[:count]), epoch=0)
        return time.perf_counter() - started

    few, more = time_fit(1), time_fit(_FEW_BLOCKS)
    each = max(0.0, more - few) / max(1, min(len(blocks), _FEW_BLOCKS) - 1)
    return RoundCost(
        steps=settings.epochs,
        seconds=settings.epochs * (few + each * (len(blocks) - 1)),
        memory_bytes=_peak_memory(),
    )


def _time_steps(
    model: TrainableModel,
    data: TrainingData,
    settings: RoundConfig,
    sampler: OfflineSampler | None,
    epoch: int,
) -> StepCost:
    """Time a real update: the fastest of a few, with the threads that a round would choose.

    If a step of a few pairs shows that a whole one takes long, the cost is extrapolated from it:
    memory beyond weights, gradients and Adam's two moments grows with the batch.
    """
    held = _peak_memory() + 3 * 4 * count_parameters(model)
    pairs = data.train.dataset.positives.pairs
    order = epoch_order(len(pairs), seed=0, epoch=epoch)
    optimizer = make_optimizer(model, settings)
    collectives = Collectives(start_fabric(data.train.device, settings.precision))
    for group in optimizer.param_groups:
        group["lr"] = 0.0  # the weights stay as they are
    model.train()

    def time_step(size: int) -> float:
        started = time.perf_counter()
        rows = pairs[order[:size]]
        batches = make_batches(
            data.train, rows, settings=settings, sampler=sampler, epoch=epoch, step=0
        )
        update(model, optimizer, batches, settings=settings, epoch=epoch, collectives=collectives)
        return time.perf_counter() - started

    def fastest(size: int) -> float:
        steps = settings.epochs * -(-len(pairs) // settings.batch_size)
        with using_threads(choose_threads(partial(time_step, size), units=steps).threads):
            return min(time_step(size) for _ in range(_TIMED))

    few = max(_FEW_PAIRS, 2 * settings.accumulate)
    times = settings.batch_size / few
    expected = times * fastest(few)
    if expected > _LONG:
        activations = max(0, _peak_memory() - held)
        return StepCost(seconds=expected, memory_bytes=held + int(times * activations))
    return StepCost(seconds=fastest(settings.batch_size), memory_bytes=_peak_memory())


def _time_mining(model: TrainableModel, data: TrainingData, lists: CandidateLists) -> MiningCost:
    """Extrapolate from a slice of the training set to all of it, on single threads.

    Keeping the hardest, and rules against false negatives, cost little beside the scores.
    """
    dataset, held = data.train.dataset, _peak_memory()
    n_images, n_texts = min(_SLICE, len(dataset)), min(_SLICE, dataset.n_texts)
    workers = torch.get_num_threads() if data.train.device.type == "cpu" else 1
    model.eval()
    with torch.no_grad(), using_threads(1):
        images, image_seconds = _timed(
            lambda: model.encode_images(data.train.regions(np.arange(n_images)))
        )
        texts, text_seconds = _timed(
            lambda: model.encode_texts(data.train.texts(np.arange(n_texts)))
        )
        pair_seconds = _time_pair(model, images, texts)
    image_share, text_share = len(dataset) / n_images, dataset.n_texts / n_texts
    encodings = int(images.vectors.nbytes * image_share + texts.vectors.nbytes * text_share)
    while_filled = sum(
        8 * len(ids) * TopLists.capacity(ids.shape[1]) for ids in (lists.i2t, lists.t2i)
    )
    seconds = image_seconds * image_share + text_seconds * text_share
    return MiningCost(
        seconds=(seconds + pair_seconds * len(dataset) * dataset.n_texts) / workers,
        disk_bytes=encodings + lists.nbytes,
        memory_bytes=held + encodings + while_filled,  # where the finished lists are held already
    )


def _time_pair(model: TrainableModel, images: Encoding, texts: Encoding) -> float:
    """Time a score in a block, a large one if that is quick."""
    for size in (_SLICE, BLOCK_SIZE):
        rows = torch.arange(size)
        block = images[rows % len(images)], texts[rows % len(texts)]
        _, seconds = _timed(partial(model.score_matrix, *block))
        if seconds > _SLOW_SLICE:
            break
    return seconds / size**2


def _timed(call: Callable[[], T]) -> tuple[T, float]:
    """Return the result of a call, and the seconds of the fastest of a few."""
    times = []
    for _ in range(_TIMED):
        started = time.perf_counter()
        result = call()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    return result, min(times)


def _given_lists(recipe: Recipe, data: TrainingData) -> CandidateLists | None:
    if not recipe.candidates:
        return None
    source = Path(recipe.candidates)
    return CandidateLists.load(source).require_fit(data.train.dataset, source=source)


def _stand_in_lists(recipe: Recipe, positives: Positives) -> CandidateLists:
    """Make lists of the right size for timing; their content does not affect the cost."""
    random, mining = np.random.default_rng(0), recipe.mining

    def draw(relation: Positives, wanted: int, what: str) -> tuple[Int32s, Floats]:
        depth = usable_depth(wanted, relation, what=what, skip_first=mining.skip_first)
        shape = relation.n_images, depth
        ids = random.integers(relation.n_texts, size=shape, dtype=np.int32)
        return ids, np.zeros(shape, np.float32)

    i2t = draw(positives, mining.depth_texts, "texts")
    t2i = draw(positives.swapped, mining.depth_images, "images")
    return CandidateLists(*i2t, *t2i, Provenance(teacher="", data=""))


def _peak_memory() -> int:
    """Return the peak memory of this process; Linux's own figure is not inherited from a parent."""
    status = Path("/proc/self/status")
    if status.is_file():
        return 1024 * int(status.read_text().split("VmHWM:")[1].split()[0])
    import resource  # not on Windows

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def duration(seconds: float) -> str:
    """Format seconds as seconds, minutes or hours."""
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
