"""Times two ways of doing the same thing, turn by turn, and measures the memory of each.

A shared machine is noisy: absolute seconds mean little, the ratio of medians of interleaved
repeats means something. Memory is the peak of a fresh process that does nothing else, less what
the process held before it began.
"""

from __future__ import annotations

import json
import multiprocessing
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch

from aoq.experiments.results import machine

RESULTS = Path(__file__).parent / "results"
Task = Callable[[], object]


@dataclass(frozen=True)
class Comparison:
    """A task, the baseline it is held against, and how to set both up.

    `setup` is called once a process and returns the two tasks, ours first. A baseline that takes
    too long may do only a share of the work; its time is scaled up, its memory is not.
    """

    name: str
    what: str
    baseline: str
    setup: Callable[[], tuple[Task, Task]]
    repeats: int = 7
    baseline_share: float = 1.0
    facts: Mapping[str, Any] = field(default_factory=dict)
    "Figures that belong to the result and need no clock."

    def run(self) -> dict[str, Any]:
        tasks = self.setup()
        if self.repeats > 1:
            for task in tasks:  # once without the clock
                task()
        seconds: tuple[list[float], list[float]] = ([], [])
        for _ in range(self.repeats):
            for task, times in zip(tasks, seconds, strict=True):
                started = time.perf_counter()
                task()
                times.append(time.perf_counter() - started)
        ours, baseline = median(seconds[0]), median(seconds[1]) / self.baseline_share
        memory, baseline_memory = self.measure_memory(0), self.measure_memory(1)
        return {
            "name": self.name,
            "what": self.what,
            "baseline": self.baseline,
            "repeats": self.repeats,
            "seconds": round(ours, 5),
            "baseline_seconds": round(baseline, 5),
            "times_faster": round(baseline / ours, 2),
            "peak_mib": memory.peak,
            "baseline_peak_mib": baseline_memory.peak,
            "process_mib": memory.process,
            **({"baseline_share": self.baseline_share} if self.baseline_share < 1 else {}),
            **self.facts,
        }

    def measure_memory(self, which: int) -> Memory:
        """The memory of one task, in a process of its own."""
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(max_workers=1, mp_context=context) as pool:
            return pool.submit(_measure, self.setup, which).result()


@dataclass(frozen=True)
class Memory:
    """In MiB: the peak beyond what the process held before, and the whole process at its peak."""

    peak: float
    process: float


def _measure(setup: Callable[[], tuple[Task, Task]], which: int) -> Memory:
    task = setup()[which]
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far (Linux)
    before = memory_now("VmRSS")
    task()
    peak = memory_now("VmHWM")
    return Memory(peak=round(peak - before, 1), process=round(peak, 1))


def memory_now(field: str) -> float:
    """A line of this process's /proc status, in MiB."""
    status = Path("/proc/self/status").read_text()
    return int(status.split(f"{field}:")[1].split()[0]) / 1024


def save(name: str, results: list[dict[str, Any]]) -> Path:
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    measured_on = {**machine(), "threads": torch.get_num_threads()}
    path.write_text(json.dumps({"machine": measured_on, "results": results}, indent=2) + "\n")
    return path
