"""Things kept in memory for a while: those asked for longest ago go first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Kept(Generic[K, V]):
    """No more than `most` bytes, as `size` counts them, by key; for several threads.

    >>> kept = Kept[str, bytes](most=8, size=len)
    >>> kept.keep("a", b"1234"); kept.keep("b", b"1234"); kept.get("a"); kept.keep("c", b"1")
    b'1234'
    >>> kept.get("b"), kept.get("c")
    (None, b'1')
    """

    def __init__(self, *, most: int, size: Callable[[V], int]) -> None:
        self._most = most
        self._size = size
        self._held = 0
        self._items: OrderedDict[K, V] = OrderedDict()
        self._lock = Lock()

    def get(self, key: K) -> V | None:
        with self._lock:
            if key in self._items:
                self._items.move_to_end(key)
            return self._items.get(key)

    def keep(self, key: K, value: V) -> None:
        """What is larger than all there is room for is not kept."""
        if self._size(value) > self._most:
            return
        with self._lock:
            if key in self._items:
                self._held -= self._size(self._items.pop(key))
            self._items[key] = value
            self._held += self._size(value)
            while self._held > self._most:
                _, dropped = self._items.popitem(last=False)
                self._held -= self._size(dropped)
