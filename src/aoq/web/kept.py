"""Bytes kept in memory for a while: those asked for longest ago go first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from threading import Lock
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class KeptBytes(Generic[K]):
    """No more than `most` bytes, by key; safe to use from several threads.

    >>> kept = KeptBytes[str](most=8)
    >>> kept.keep("a", b"1234"); kept.keep("b", b"1234"); kept.get("a"); kept.keep("c", b"1")
    b'1234'
    >>> kept.get("b"), kept.get("c")
    (None, b'1')
    """

    def __init__(self, *, most: int) -> None:
        self._most = most
        self._held = 0
        self._items: OrderedDict[K, bytes] = OrderedDict()
        self._lock = Lock()

    def get(self, key: K) -> bytes | None:
        with self._lock:
            if key in self._items:
                self._items.move_to_end(key)
            return self._items.get(key)

    def keep(self, key: K, value: bytes) -> None:
        """What is larger than all there is room for is not kept."""
        if len(value) > self._most:
            return
        with self._lock:
            self._held += len(value) - len(self._items.pop(key, b""))
            self._items[key] = value
            while self._held > self._most:
                _, dropped = self._items.popitem(last=False)
                self._held -= len(dropped)
