"""Reads the batches of coming steps while the present one computes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from aoq.threads import map_in_order

T = TypeVar("T")


def prefetch(make: Callable[[int], T], steps: Iterable[int], *, ahead: int) -> Iterator[T]:
    """Yield what is made for each step, in order; up to `ahead` of them are made beforehand.

    >>> list(prefetch(lambda step: step * step, range(4), ahead=2))
    [0, 1, 4, 9]
    """
    if not ahead:
        yield from map(make, steps)
        return
    # One thread, on one core: the steps need the others.
    with ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        yield from map_in_order(pool, make, steps, ahead=ahead)
