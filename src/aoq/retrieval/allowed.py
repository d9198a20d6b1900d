"""The entries of an index that a search may find: by a filter, or any set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from aoq.retrieval.filters import Column, Filter
from aoq.types import Bools, Ids


@dataclass(frozen=True, eq=False)
class Allowed:
    """Entries that may be found, by their numbers."""

    mask: Bools  # (N,)
    where: Filter | None = None
    "A filter that says the same, which a store may evaluate itself."
    columns: Mapping[str, Column] = field(default_factory=dict)
    "The columns that the filter is about."

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
