"""How many threads compute: workers that each compute alone, or a number found by measuring.

Threads that share every operation wait for the slowest of them; beside other programs two are often
slower than one. Encoding, mining and ranking therefore deal batches and blocks out to workers: a
core that computes a block alone waits for nobody, and what it computes does not depend, to the last
bit, on how many others there are.

The steps of a training follow each other and cannot be dealt out, and the order of their sums does
depend on the number of threads. It is measured before the first step, and again where steps have
become much slower.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import torch

Result = TypeVar("Result")
_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
_FEWEST = 100  # units of work for which measuring pays
_TURNS = 5
_SHARE = 0.03  # of all the work: measuring ends with the turn that goes beyond
_COMPARED = 20  # units whose median tells how fast the work is
_MUCH_SLOWER = 2.0
_WORTH_IT = 1.1  # how much faster another number has to be to replace the one in use


@dataclass(frozen=True)
class Workers:
    pool: ThreadPoolExecutor
    count: int

    def map(self, function: Callable[..., Result], *arguments: Iterable[Any]) -> Iterator[Result]:
        """Results in the order of the arguments, which are read, and held, a few at a time."""
        under_way: deque[Future[Result]] = deque()
        for some in zip(*arguments, strict=True):
            under_way.append(self.pool.submit(function, *some))
            if len(under_way) > self.count:
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()


@contextmanager
def worker_threads(device: str | torch.device = "cpu") -> Iterator[Workers]:
    """As many threads as torch would use for one operation; until they end, none uses several.

    A device other than the processor gets one thread: it shares operations out by itself.
    """
    before = torch.get_num_threads()
    count = before if torch.device(device).type == "cpu" else 1
    pool = ThreadPoolExecutor(count, initializer=torch.set_num_threads, initargs=(1,))
    torch.set_num_threads(1)
    try:
        yield Workers(pool, count)
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(before)


@contextmanager
def using_threads(number: int) -> Iterator[None]:
    """Let torch use so many threads for one operation; afterwards as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True)
class ThreadChoice:
    """A number of threads, and the median seconds of a unit with each number that was tried."""

    threads: int
    seconds: dict[int, float] = field(default_factory=dict)

    def beats(self, threads: int) -> bool:
        """Whether it was measured to be clearly faster than the number in use."""
        if not {self.threads, threads} <= self.seconds.keys():
            return False
        return self.seconds[threads] > _WORTH_IT * self.seconds[self.threads]


class Pace:
    """Notices that units of work take much longer than they did at first."""

    def __init__(self) -> None:
        self._first: list[float] = []
        self._last: deque[float] = deque(maxlen=_COMPARED)

    def slows(self, seconds: float) -> bool:
        """Add the time of a unit; true where the last ones took far longer than the first."""
        if len(self._first) < _COMPARED:
            self._first.append(seconds)
            return False
        self._last.append(seconds)
        is_full = len(self._last) == _COMPARED
        return is_full and median(self._last) > _MUCH_SLOWER * median(self._first)


def choose_threads(
    unit: Callable[[], object], *, units: int, clock: Callable[[], float] = time.perf_counter
) -> ThreadChoice:
    """The number of threads with which `unit`, one of so many `units`, is fastest.

    All threads, half of them and one take turns; the first unit is not counted. A number that the
    user has set stays; so does torch's own where the work is too short to measure.
    """
    most = torch.get_num_threads()
    if most == 1 or units < _FEWEST or is_set_by_user():
        return ThreadChoice(most)
    times: dict[int, list[float]] = {number: [] for number in sorted({1, most // 2, most})}
    began = clock()
    with using_threads(1):
        unit()
        for _ in range(_TURNS):
            for number, measured in times.items():
                torch.set_num_threads(number)
                started = clock()
                unit()
                measured.append(clock() - started)
            seconds = {number: median(measured) for number, measured in times.items()}
            if clock() - began > _SHARE * units * min(seconds.values()):
                break
    return ThreadChoice(min(seconds, key=seconds.__getitem__), seconds)


def is_set_by_user() -> bool:
    """Whether the environment or a call of torch.set_num_threads says how many threads to use.

    A call with the very number that torch would choose cannot be told from none.
    """
    if any(os.environ.get(name) for name in _VARIABLES):
        return True
    return torch.get_num_threads() not in _numbers_of_torch()


def _numbers_of_torch() -> set[int]:
    """What torch may choose by itself: the processors, or the cores, that this process may use."""
    if not hasattr(os, "sched_getaffinity"):
        processors = os.cpu_count() or 1
        return {processors, max(1, processors // 2)}
    usable = os.sched_getaffinity(0)
    siblings = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    files = [Path(siblings.format(processor)) for processor in usable]
    cores = {file.read_text() if file.is_file() else str(file) for file in files}
    return {len(usable), len(cores)}
