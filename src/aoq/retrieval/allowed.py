"""The entries of an index that a search may find: by a filter, or any set."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from aoq.retrieval.filters import Filter
from aoq.types import Bools, Ids


@dataclass(frozen=True, eq=False)
class Allowed:
    """Entries that may be found, by their numbers."""

    mask: Bools  # (N,)
    where: Filter | None = None
    "A filter that says the same, which a store may evaluate itself."

    @classmethod
    def of_mask(cls, mask: Bools) -> Allowed:
        return cls(mask)

    @cached_property
    def numbers(self) -> Ids:
        """The numbers of the allowed entries, ascending. (A,)"""
        return np.flatnonzero(self.mask)

    def __len__(self) -> int:
        return len(self.numbers)

    def __and__(self, other: Allowed | None) -> Allowed:
        return self if other is None else Allowed(self.mask & other.mask)
