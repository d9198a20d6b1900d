"""Half-finished lists on disk: mining that was killed continues after the last saved stripe.

A file belongs to one sweep: the same model, data, settings and share of the work. A file of
another sweep is ignored.
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
from aoq.distributed import Processes
from aoq.mining.candidates import Provenance
from aoq.mining.sweep import Sweep
from aoq.progress import say
from aoq.storage import atomic_file, hash_parts

_FORMAT = 2  # of the saved arrays and of what they mean
_TIMES_THE_COST = 50  # between two saves: saving takes no more than 2 % of the time


@dataclass
class SweepFile:
    """Where a sweep is saved, and when next."""

    path: Path
    key: str
    "All that half-finished lists depend on."
    at_least: float = 10.0
    "Seconds between two saves."
    _next: float = field(init=False)

    def __post_init__(self) -> None:
        self._next = time.monotonic() + self.at_least

    def run(self, sweep: Sweep[Any], *, loud: bool) -> None:
        """Run what is left of a sweep, and save it on the way."""
        done = self.restore(sweep)
        if done and loud:
            say(f"mining continues after {done} of {len(sweep.stripes)} stripes of images")
        for stripes_done in sweep.run(first_stripe=done, pause=self.is_due):
            self.save(sweep, stripes_done=stripes_done)

    def is_due(self) -> bool:
        """Return whether it is time to save."""
        return time.monotonic() >= self._next

    def save(self, sweep: Sweep[Any], *, stripes_done: int) -> None:
        """Save the lists as they are after so many stripes."""
        started = time.monotonic()
        n_images = sweep.stripes[stripes_done - 1].stop - sweep.images.start
        arrays = {
            f"{direction}.{name}": getattr(lists, name)[:count]
            for direction, lists, count in (
                ("i2t", sweep.i2t, n_images),
                ("t2i", sweep.t2i, len(sweep.t2i)),
            )
            for name in ("keys", "fills", "floors", "n_dropped")
        }
        arrays["counts"] = sweep.counts
        metadata = {"plan": self.key, "stripes_done": str(stripes_done), "sha256": _hash(arrays)}
        with atomic_file(self.path) as temporary:
            save_file(arrays, temporary, metadata=metadata)
        ended = time.monotonic()
        self._next = ended + max(self.at_least, _TIMES_THE_COST * (ended - started))

    def restore(self, sweep: Sweep[Any]) -> int:
        """Fill the lists with what was saved; return how many stripes are in them."""
        stored = self._read()
        if stored is None:
            return 0
        stripes_done, arrays = stored
        sweep.counts[:] = arrays.pop("counts")
        for name, array in arrays.items():
            direction, field_name = name.split(".")
            target = getattr(getattr(sweep, direction), field_name)
            target[tuple(map(slice, array.shape))] = array
        return stripes_done

    def _read(self) -> tuple[int, dict[str, npt.NDArray[Any]]] | None:
        """Read stripes and arrays, if the file is of this sweep and undamaged."""
        try:
            with safe_open(self.path, framework="np") as file:
                metadata = file.metadata() or {}
                arrays = {name: file.get_tensor(name) for name in sorted(file.keys())}
        except (SafetensorError, OSError):
            return None
        if metadata.get("plan") != self.key or metadata.get("sha256") != _hash(arrays):
            return None
        return int(metadata["stripes_done"]), arrays


def _hash(arrays: dict[str, npt.NDArray[Any]]) -> str:
    names = sorted(arrays)
    contents = (np.ascontiguousarray(arrays[name]).data for name in names)
    return hash_parts(" ".join(names).encode(), *contents)


def sweep_key(
    sweep: Sweep[Any], config: MiningConfig, provenance: Provenance, processes: Processes
) -> str:
    """Collect all that half-finished lists depend on; of the budget of memory, its blocks."""
    settings = {**asdict(config), "memory": None}
    share = processes.rank, processes.size
    return json.dumps([_FORMAT, asdict(provenance), settings, share, *sweep.key])


def sweep_file(lists: Path, processes: Processes) -> Path:
    """Name the file in which a process saves its sweep on the way to `lists`."""
    return sweep_folder(lists) / f"{processes.rank}-of-{processes.size}.safetensors"


def sweep_folder(lists: Path) -> Path:
    """Name the folder of what is kept until `lists` are complete; it is removed then."""
    return lists.with_name(f".{lists.name}.saved")


def remove_sweep_files(lists: Path) -> None:
    """Remove what any number of processes saved on the way to `lists`."""
    shutil.rmtree(sweep_folder(lists), ignore_errors=True)
