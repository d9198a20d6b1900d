"""The chosen way of using the cores against one thread and all threads, alone and beside others.

Training steps take the number that `choose_threads` finds in the same surroundings; encoding,
mining and ranking deal their work out to single threads. The three ways take turns, and what counts
is the time of the chosen way over that of the better of the two plain ones.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from aoq.config import LossConfig, MiningConfig
from aoq.evaluation.protocols import judge_folds
from aoq.mining.candidates import Provenance
from aoq.mining.mine import mine
from aoq.models import build_model
from aoq.recipes import load_recipe
from aoq.scoring.encoded import EncodedDataset
from aoq.scoring.inner_product import InnerProduct
from aoq.threads import choose_threads, using_threads, worker_threads
from aoq.types import Encoding
from benchmarks.harness import Task
from benchmarks.mining import Size
from benchmarks.steps import VOCABULARY, draw_texts, step_batch, step_task

SIZE = Size(1_000, 5_000, 128)
PAIRS = Size(3_000, 15_000, 128)  # of mining and ranking: half a second each
REGIONS, FEATURES, AT_ONCE = 9, 1280, 128
LONGEST = 120.0  # seconds of a busy process, should nobody end it
UNITS = 2_000  # steps of a round, of which measuring may take its share


@dataclass(frozen=True)
class Ways:
    """A task with one thread, with all, and as the library does it."""

    one: Task
    all: Task
    chosen: Task
    threads: int | None = None
    "That measuring chose."


def step_ways(recipe: str) -> Ways:
    """An AdapOffQuin step; the number of threads is chosen here, beside whatever is busy."""
    torch.manual_seed(0)
    settings = load_recipe(recipe)
    model = build_model(settings.model, feature_width=FEATURES, vocabulary_size=VOCABULARY)
    size = settings.round_two.batch_size
    batch = step_batch(draw_texts(3 * size), 3, size=size, regions=REGIONS, features=FEATURES)
    step = step_task(model, LossConfig(name="adap_off_quin"), batch)
    threads = choose_threads(step, units=UNITS).threads
    return Ways(_with(1, step), _with(torch.get_num_threads(), step), _with(threads, step), threads)


def encoding_ways(recipe: str) -> Ways:
    """A dev set of photos and captions; plainly one batch after the other."""
    torch.manual_seed(0)
    settings = load_recipe(recipe)
    model = build_model(settings.model, feature_width=FEATURES, vocabulary_size=VOCABULARY).eval()
    texts = draw_texts(SIZE.texts)
    batches = [texts[rows] for rows in texts.lengths.argsort(stable=True).split(AT_ONCE)]
    regions = torch.randn(AT_ONCE, REGIONS, FEATURES)

    def encode(number: int) -> Encoding:
        with torch.no_grad():
            if number < len(batches):
                return model.encode_texts(batches[number])
            return model.encode_images(regions)

    numbers = range(len(batches) + SIZE.images // AT_ONCE)

    def plain() -> object:
        return [encode(number) for number in numbers]

    def dealt_out() -> object:
        with worker_threads() as workers:
            return list(workers.map(encode, numbers))

    return Ways(_with(1, plain), _with(torch.get_num_threads(), plain), dealt_out)


def mining_ways() -> Ways:
    """Both lists; one worker, and as many workers as cores, which is also what is chosen."""
    images, texts = PAIRS.vectors()
    encoded, positives = EncodedDataset(Encoding(images), Encoding(texts)), PAIRS.positives()

    def both_lists() -> object:
        return mine(
            InnerProduct(),
            encoded,
            positives,
            config=MiningConfig(depth_texts=100, depth_images=100),
            provenance=Provenance(teacher="", data=""),
            block_size=512,
        )

    return Ways(_with(1, both_lists), _with(torch.get_num_threads(), both_lists), both_lists)


def ranking_ways() -> Ways:
    """Ranks of all pairs, as mining."""
    images, texts = PAIRS.vectors()
    encoded, positives = EncodedDataset(Encoding(images), Encoding(texts)), PAIRS.positives()

    def rank() -> object:
        return judge_folds(InnerProduct(), encoded, positives)

    return Ways(_with(1, rank), _with(torch.get_num_threads(), rank), rank)


def _with(number: int, task: Task) -> Task:
    def run() -> None:
        with using_threads(number):
            task()

    return run


@dataclass(frozen=True)
class Beside:
    """The three ways of a task, turn by turn, beside some busy processes."""

    name: str
    setup: Callable[[], Ways]
    busy: int
    repeats: int

    def run(self) -> dict[str, Any]:
        with busy_processes(self.busy):
            ways = self.setup()
            tasks = {"one": ways.one, "all": ways.all, "chosen": ways.chosen}
            seconds: dict[str, list[float]] = {name: [] for name in tasks}
            for turn in range(self.repeats + 1):
                for name, task in tasks.items():
                    started = time.perf_counter()
                    task()
                    if turn:  # the first is not counted
                        seconds[name].append(time.perf_counter() - started)
        medians = {name: round(median(times), 5) for name, times in seconds.items()}
        ratio = medians["chosen"] / min(medians["one"], medians["all"])
        listed = ", ".join(f"{name} {1000 * value:.0f} ms" for name, value in medians.items())
        return {
            "name": f"{self.name}, {self.busy} busy",
            "busy": self.busy,
            "repeats": self.repeats,
            "seconds": medians,
            "threads": ways.threads,
            "chosen_over_better": round(ratio, 2),
            "sentence": f"{listed}; {ratio:.2f} times the better",
        }


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Processes that compute something all the time, and end with this or after a while."""
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_be_busy, daemon=True) for _ in range(count)]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.join()


def _be_busy() -> None:
    end = time.monotonic() + LONGEST
    while time.monotonic() < end:
        pass


TASKS: dict[str, Callable[[], Ways]] = {
    "VSRN step": lambda: step_ways("vsrn-flickr8k"),
    "BFAN step": lambda: step_ways("bfan-flickr8k"),
    "VSRN encoding": lambda: encoding_ways("vsrn-flickr8k"),
    "BFAN encoding": lambda: encoding_ways("bfan-flickr8k"),
}
TASKS_OF_PAIRS: dict[str, Callable[[], Ways]] = {"mining": mining_ways, "ranking": ranking_ways}
COMPARISONS, COMPARISONS_OF_PAIRS = (
    [Beside(name, setup, busy, repeats) for name, setup in tasks.items() for busy in (0, 1, 2)]
    for tasks, repeats in ((TASKS, 7), (TASKS_OF_PAIRS, 21))
)
