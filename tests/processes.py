"""Processes that work together, as threads of one: for what only has to share work and wait."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Barrier
from typing import TypeVar

from aoq.distributed import Processes

Result = TypeVar("Result")


@dataclass(frozen=True)
class ProcessThread(Processes):
    """A process that waits for the others in the threads beside it."""

    meeting: Barrier = field(default_factory=lambda: Barrier(1))

    def barrier(self) -> None:
        self.meeting.wait(timeout=60)


def in_threads(work: Callable[[Processes], Result], *, size: int = 2) -> list[Result]:
    """Return what each process makes of `work`."""
    meeting = Barrier(size)
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(lambda rank: work(ProcessThread(rank, size, meeting)), range(size)))
