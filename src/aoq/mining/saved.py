"""Half-finished lists on disk: mining that was killed goes on after the last saved stripe.

A file belongs to one plan: the same model, data, settings and share of the work. One that fits
nothing is ignored, as if nothing had been saved.
"""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from aoq.config import MiningConfig
from aoq.mining.candidates import Provenance
from aoq.mining.sweep import Sweep
from aoq.mining.toplists import TopLists
from aoq.processes import Processes
from aoq.storage import atomic_file, hash_parts

_FORMAT = 1  # of the saved arrays and of what they mean
_TIMES_THE_COST = 50  # between two saves: saving takes no more than 2 % of the time


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
            metadata = {
                "plan": self.plan,
                "stripes_done": str(stripes_done),
                "sha256": _hash(arrays),
            }
            save_file(arrays, temporary, metadata=metadata)
        ended = time.monotonic()
        self._next = ended + max(self.at_least, _TIMES_THE_COST * (ended - started))

    def restore(self, sweep: Sweep[Any]) -> int:
        """Fill the lists with what was saved; how many stripes are in them."""
        stored = self._read()
        if stored is None:
            return 0
        stripes_done, arrays = stored
        for name, array in arrays.items():
            side, field_name = name.split(".")
            target = getattr(getattr(sweep, side), field_name)
            target[tuple(map(slice, array.shape))] = array
        return stripes_done

    def _read(self) -> tuple[int, dict[str, npt.NDArray[Any]]] | None:
        """What the file holds, if it is of this plan and as it was written."""
        try:
            with safe_open(self.path, framework="np") as file:
                metadata = file.metadata() or {}
                arrays = {name: file.get_tensor(name) for name in sorted(file.keys())}
        except (SafetensorError, OSError):
            return None
        if metadata.get("plan") != self.plan or metadata.get("sha256") != _hash(arrays):
            return None
        return int(metadata["stripes_done"]), arrays


def _hash(arrays: dict[str, npt.NDArray[Any]]) -> str:
    names = sorted(arrays)
    contents = (np.ascontiguousarray(arrays[name]).data for name in names)
    return hash_parts(" ".join(names).encode(), *contents)


def plan_of(
    sweep: Sweep[Any], config: MiningConfig, provenance: Provenance, processes: Processes
) -> str:
    """All that half-finished lists depend on; the budget of memory only counts by its blocks."""
    settings = {**asdict(config), "memory": None}
    share = processes.rank, processes.size
    return json.dumps([_FORMAT, asdict(provenance), settings, share, *sweep.plan])


def saved_file(lists: Path, processes: Processes) -> Path:
    """Where a process saves what it has of `lists`: in one folder with all others."""
    return saved_folder(lists) / f"{processes.rank}-of-{processes.size}.safetensors"


def remove_saved(lists: Path) -> None:
    """Remove what any number of processes saved, or began to save, on the way to `lists`."""
    shutil.rmtree(saved_folder(lists), ignore_errors=True)


def saved_folder(lists: Path) -> Path:
    """Where everything is kept on the way to `lists`; it is removed when they are there."""
    return lists.with_name(f".{lists.name}.saved")


def _arrays_of(lists: TopLists, rows: int, *, prefix: str) -> dict[str, npt.NDArray[Any]]:
    """What there is to know about the first `rows` lists, none of it copied."""
    names = ("keys", "fills", "floors", "n_dropped")
    return {prefix + name: getattr(lists, name)[:rows] for name in names}
