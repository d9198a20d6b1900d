"""Threads that score blocks, each by itself.

A core that scores a block alone wastes less than cores that share every operation, and what it
computes does not depend, to the last bit, on how many others there are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

Result = TypeVar("Result")


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
