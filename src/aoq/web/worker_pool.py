"""Threads beside the event loop: one a core, a bounded queue before them, and a time limit.

Everything that computes or reads files runs here, so the event loop can always answer or reject. A
thread cannot be stopped: a job over its time limit is abandoned but keeps its place until it ends,
so there are never more jobs than the limits allow.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import ParamSpec, TypeVar

from starlette.exceptions import HTTPException

from aoq.web.errors import busy
from aoq.web.limits import Limits

P = ParamSpec("P")
T = TypeVar("T")


class WorkerPool:
    """A bounded number of threads with a bounded queue."""

    def __init__(self, limits: Limits) -> None:
        self._threads = ThreadPoolExecutor(limits.working, "aoq-web", initializer=_use_one_core)
        self._places = limits.working + limits.waiting
        self._lock = Lock()
        self.jobs = 0  # that are computed or wait
        self._seconds = limits.seconds

    async def run(self, job: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return a job's result; raise 429 if the queue is full, 503 if it takes too long."""
        self._take_place()
        future = self._threads.submit(job, *args, **kwargs)
        future.add_done_callback(lambda _: self._leave_place())
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), self._seconds)
        except TimeoutError:
            raise HTTPException(
                503,
                f"This took longer than {self._seconds:g} seconds and was given up; ask for less, "
                "or try again later.",
                headers={"Retry-After": "10"},
            ) from None

    def _take_place(self) -> None:
        with self._lock:
            if self.jobs >= self._places:
                raise busy()
            self.jobs += 1

    def _leave_place(self) -> None:
        with self._lock:
            self.jobs -= 1

    def close(self) -> None:
        """Start no further job."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _use_one_core() -> None:
    """Use one core, because threads that each use all of them would wait for each other."""
    import torch

    torch.set_num_threads(1)
