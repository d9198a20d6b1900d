"""Half-finished lists on disk: mining that was killed goes on after the last saved stripe.

A file belongs to one plan: the same model, data, settings and share of the work. One that fits
nothing is ignored, as if nothing had been saved.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from aoq.mining.sweep import Sweep
from aoq.mining.toplists import TopLists
from aoq.storage import atomic_file

_TIMES_THE_COST = 50  # between two saves: saving takes no more than 2 % of the time
_ARRAYS = ("keys", "fills", "floors", "n_dropped")


@dataclass
class SavedSweep:
    """Where a sweep is saved, and when next."""

    path: Path
    plan: str
    at_least: float = 10.0
    "Seconds between two saves."
    _next: float = field(init=False)

    def __post_init__(self) -> None:
        self._next = time.monotonic() + self.at_least

    def is_due(self) -> bool:
        return time.monotonic() >= self._next

    def save(self, sweep: Sweep[Any], *, stripes_done: int) -> None:
        started = time.monotonic()
        rows = sweep.stripes[stripes_done - 1].stop - sweep.images.start
        arrays = {
            **_arrays_of(sweep.i2t, rows, prefix="i2t."),
            **_arrays_of(sweep.t2i, len(sweep.t2i), prefix="t2i."),
        }
        with atomic_file(self.path) as temporary:
            metadata = {"plan": self.plan, "stripes_done": str(stripes_done)}
            save_file(arrays, temporary, metadata=metadata)
        ended = time.monotonic()
        self._next = ended + max(self.at_least, _TIMES_THE_COST * (ended - started))

    def restore(self, sweep: Sweep[Any]) -> int:
        """Fill the lists with what was saved; how many stripes are in them."""
        try:
            with safe_open(self.path, framework="np") as file:
                metadata = file.metadata() or {}
                if metadata.get("plan") != self.plan:
                    return 0
                for prefix, lists in (("i2t.", sweep.i2t), ("t2i.", sweep.t2i)):
                    for name in _ARRAYS:
                        stored = file.get_tensor(prefix + name)
                        target = getattr(lists, name)
                        target[tuple(slice(0, size) for size in stored.shape)] = stored
                return int(metadata["stripes_done"])
        except FileNotFoundError:
            return 0
        except (SafetensorError, OSError):  # atomic writes leave no half file; the disk may
            return 0


def _arrays_of(lists: TopLists, rows: int, *, prefix: str) -> dict[str, npt.NDArray[Any]]:
    """What there is to know about the first `rows` lists."""
    width = int(lists.fills[:rows].max(initial=0))
    return {
        prefix + "keys": np.ascontiguousarray(lists.keys[:rows, :width]),
        prefix + "fills": lists.fills[:rows],
        prefix + "floors": lists.floors[:rows],
        prefix + "n_dropped": lists.n_dropped[:rows],
    }
