"""What a store of vectors does.

A vector is known by its key, a whole number that says which image or text it is and that stays the
same however others come and go. Rows of metadata go with the vectors, for stores that evaluate
filters themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from aoq.retrieval.filters import Column, Filter
from aoq.retrieval.metadata import Metadata
from aoq.types import Floats, Ids


@dataclass(frozen=True)
class Found:
    """The nearest vectors of each query, nearest first; missing ones have the key -1. (Q, top)"""

    keys: Ids
    scores: Floats


@dataclass(frozen=True, eq=False)
class Selection:
    """The vectors that may be found: their keys, ascending, and a filter that says the same."""

    keys: Ids
    where: Filter | None = None
    columns: Mapping[str, Column] = field(default_factory=dict)
    "What the filter is about; says which columns hold numbers."


class VectorStore(Protocol):
    """Vectors that are compared by their inner product; may be used from several threads."""

    @property
    def exact(self) -> bool:
        """Whether a search never misses anything, up to rounding."""
        ...

    @property
    def longest(self) -> float:
        """Length of the longest vector, or more."""
        ...

    def __len__(self) -> int: ...

    def keys(self) -> Ids:
        """Return the keys of all vectors, ascending."""
        ...

    def add(self, keys: Ids, vectors: Floats, rows: Metadata | None = None) -> None:
        """Store vectors with their metadata, also in place of others with these keys."""
        ...

    def remove(self, keys: Ids) -> None:
        """Remove vectors; keys that are not there are ignored."""
        ...

    def search(self, queries: Floats, *, top: int, among: Selection | None = None) -> Found:
        """Find the `top` vectors of the highest inner product with each query."""
        ...

    def vectors(self, keys: Ids) -> Floats:
        """Return vectors by their keys, all of which are there. (K, D)"""
        ...

    def close(self) -> None: ...
