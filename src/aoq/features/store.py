"""Arrays in the cache, each under the hash of what it was computed from, and checked when read."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from aoq.storage import atomic_file, hash_parts

HASH_BYTES = 64  # SHA-256 in hex, at the end of a file

Array = npt.NDArray[Any]


def keep_array(place: Path, rows: Array) -> None:
    """Write an array, followed by the hash of the file so far, which NumPy does not read."""
    buffer = BytesIO()
    np.save(buffer, rows)
    with atomic_file(place) as temporary:
        temporary.write_bytes(buffer.getvalue() + hash_parts(buffer.getbuffer()).encode())


def open_array(place: Path, *, mapped: bool = False) -> Array | None:
    """Read an array; None if it is missing or damaged.

    One that is `mapped` is read once, to check it, and stays on disk.
    """
    try:
        content = np.memmap(place, mode="r").data if mapped else memoryview(place.read_bytes())
        if hash_parts(content[:-HASH_BYTES]).encode() != content[-HASH_BYTES:].tobytes():
            return None
        if mapped:
            return np.lib.format.open_memmap(place, mode="r")
        rows: Array = np.load(BytesIO(content), allow_pickle=False)
    except Exception:  # damaged files make NumPy raise almost anything
        return None
    return rows
