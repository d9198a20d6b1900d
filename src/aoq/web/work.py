"""Work beside the event loop: as many threads as cores, a short line before them, and a clock.

Whatever computes or reads files runs here, so that the loop is free to answer, and to refuse, at
any moment. A thread cannot be stopped: work that takes too long is no longer waited for, but keeps
its place until it ends, so that there is never more work under way than was allowed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Semaphore
from typing import ParamSpec, TypeVar

from aoq.web.limits import Limits
from aoq.web.refusals import RefusedError, busy

P = ParamSpec("P")
T = TypeVar("T")


class Workers:
    """A bounded number of threads with a bounded line before them."""

    def __init__(self, limits: Limits) -> None:
        self._pool = ThreadPoolExecutor(limits.working, "aoq-web", initializer=_one_core)
        self._places = Semaphore(limits.working + limits.waiting)
        self._seconds = limits.seconds

    async def do(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of some work; refused where the line is full or time is over."""
        if not self._places.acquire(blocking=False):
            raise busy()
        under_way = self._pool.submit(work, *args, **kwargs)
        under_way.add_done_callback(lambda _: self._places.release())
        try:
            return await asyncio.wait_for(asyncio.wrap_future(under_way), self._seconds)
        except TimeoutError:
            raise RefusedError(
                503,
                f"This took longer than {self._seconds:g} seconds and was given up; ask for less, "
                "or try again later.",
                retry_after=10,
            ) from None

    def close(self) -> None:
        """Let nothing begin any more."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _one_core() -> None:
    """Threads that each use all cores would wait for each other."""
    import torch

    torch.set_num_threads(1)
