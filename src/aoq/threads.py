"""How many threads compute: workers that each compute alone, or a number found by measuring.

Threads that share every operation wait for the slowest of them; beside other programs two are often
slower than one. Encoding, mining and ranking therefore distribute batches and blocks to workers: a
core that computes a block alone waits for no other, and its result does not depend, to the last
bit, on how many others there are.

The steps of a training follow each other and cannot be distributed, and the order of their sums
does depend on the number of threads. It is measured before the first step, and again if steps have
become much slower.
"""

from __future__ import annotations

import multiprocessing
import os
import platform
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import torch

Result = TypeVar("Result")
_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
_FEWEST = 100  # minimum units of work for which measuring pays off
_TURNS = 5
_SHARE = 0.03  # of all the work: measuring ends after the turn that exceeds it
_COMPARED = 20  # units whose median gives the speed
_MUCH_SLOWER = 2.0
_WORTH_IT = 1.1  # speed-up that another number needs to replace the current one


def processor_name() -> str:
    """Return what the processor calls itself."""
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text(errors="replace") if cpuinfo.is_file() else ""
    found = re.search(r"^model name\s*: (.+)", text, re.M)
    return found[1] if found else platform.processor() or platform.machine()


def map_in_order(
    pool: Executor, function: Callable[..., Result], *arguments: Iterable[Any], ahead: int
) -> Iterator[Result]:
    """Yield results in the order of the arguments, with up to `ahead` of them made beforehand."""
    under_way: deque[Future[Result]] = deque()
    try:
        for some in zip(*arguments, strict=True):
            under_way.append(pool.submit(function, *some))
            if len(under_way) > ahead:
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()
    finally:
        for future in under_way:
            future.cancel()


def exit_with_parent() -> None:
    """Let this process end when the one that started it ends, even if that is killed."""

    def wait() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
            os._exit(1)

    Thread(target=wait, daemon=True).start()


@dataclass(frozen=True)
class WorkerThreads:
    """Threads that each compute a block alone."""

    pool: ThreadPoolExecutor
    count: int

    def map(self, function: Callable[..., Result], *arguments: Iterable[Any]) -> Iterator[Result]:
        """Yield results in the order of the arguments, which are read a few at a time."""
        return map_in_order(self.pool, function, *arguments, ahead=self.count)


@contextmanager
def worker_threads(device: str | torch.device = "cpu") -> Iterator[WorkerThreads]:
    """Start as many workers as torch has threads; meanwhile no operation uses several threads.

    Other devices than the CPU get one worker: they parallelise operations themselves.
    """
    import torch

    before = torch.get_num_threads()
    count = before if torch.device(device).type == "cpu" else 1
    pool = ThreadPoolExecutor(count, initializer=torch.set_num_threads, initargs=(1,))
    torch.set_num_threads(1)
    try:
        yield WorkerThreads(pool, count)
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(before)


@contextmanager
def using_threads(number: int) -> Iterator[None]:
    """Let torch use this many threads per operation; restore the previous number afterwards."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True)
class ThreadChoice:
    """A number of threads, and the median seconds per unit for each number that was tried."""

    threads: int
    seconds: dict[int, float] = field(default_factory=dict)

    def beats(self, threads: int) -> bool:
        """Return whether it was measured to be clearly faster than the number in use."""
        if not {self.threads, threads} <= self.seconds.keys():
            return False
        return self.seconds[threads] > _WORTH_IT * self.seconds[self.threads]


class Pace:
    """Detects that units of work take much longer than they did at first."""

    def __init__(self) -> None:
        self._first: list[float] = []
        self._last: deque[float] = deque(maxlen=_COMPARED)

    def slows(self, seconds: float) -> bool:
        """Add the time of a unit; return whether the last ones were far slower than the first."""
        if len(self._first) < _COMPARED:
            self._first.append(seconds)
            return False
        self._last.append(seconds)
        is_full = len(self._last) == _COMPARED
        return is_full and median(self._last) > _MUCH_SLOWER * median(self._first)


def choose_threads(
    unit: Callable[[], object], *, units: int, clock: Callable[[], float] = time.perf_counter
) -> ThreadChoice:
    """Choose the number of threads with which `unit` is fastest; there are `units` of them.

    All threads, half of them and one take turns; the first unit is not counted. A number that the
    user has set is kept; so is torch's own if the work is too short to measure.
    """
    import torch

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
    """Return whether the environment or torch.set_num_threads sets the number of threads.

    A call with the number that torch would choose anyway cannot be detected.
    """
    if any(os.environ.get(name) for name in _VARIABLES):
        return True
    import torch

    return torch.get_num_threads() not in _numbers_of_torch()


def _numbers_of_torch() -> set[int]:
    """Return torch's possible defaults: the processors, or the cores, of this process."""
    if not hasattr(os, "sched_getaffinity"):
        processors = os.cpu_count() or 1
        return {processors, max(1, processors // 2)}
    usable = os.sched_getaffinity(0)
    siblings = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    files = [Path(siblings.format(processor)) for processor in usable]
    cores = {file.read_text() if file.is_file() else str(file) for file in files}
    return {len(usable), len(cores)}
