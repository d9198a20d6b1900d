"""What aoq keeps in the user's cache, and its removal.

The cache holds what would be computed again: features of photos, vectors of texts, indexes of
folders. Nothing in it is needed; what is removed costs the time to compute it again. Below
`cache_folder()` there is a folder for each kind, and in it one for each network or index:

    features/clip-5e1f-pooled/3a/3a91...npy     an array, named by the hash of its input
    written/5be1...json                         a record of a file that --force may replace

Only files that have such a name, or are listed in a manifest, are removed.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from aoq.errors import UserError
from aoq.manifest import is_leftover, read_manifest
from aoq.storage import cache_folder, is_locked, remove_folder

_OURS = re.compile(r"[0-9a-f]{32,64}\.(npy|json)")
_DAY = 86_400


@dataclass(frozen=True)
class CacheEntry:
    """A part of the cache that can be removed alone: what one network, or one index, holds."""

    name: str
    path: Path
    files: int
    size: int
    used: float
    "Time of the last change, or of the last access where the disk records it."

    @property
    def idle_days(self) -> float:
        return max(0.0, time.time() - self.used) / _DAY


def list_cache() -> list[CacheEntry]:
    """Measure every entry of the cache, the largest first."""
    entries = map(_measure, _entry_paths(cache_folder()))
    return sorted(
        (entry for entry in entries if entry.files),
        key=lambda entry: (-entry.size, entry.name),
    )


def select_entries(names: Sequence[str], *, idle_days: float = 0) -> list[CacheEntry]:
    """Choose entries by name, or by the name of a kind; no name chooses all."""
    entries = list_cache()
    known = {name for entry in entries for name in (entry.name, entry.name.partition("/")[0])}
    unknown = [name for name in names if name.rstrip("/") not in known]
    if unknown:
        raise UserError(
            f"the cache {cache_folder()} has no entry {unknown[0]}; `aoq cache` lists them."
        )
    wanted = {name.rstrip("/") for name in names} or known
    return [
        entry
        for entry in entries
        if {entry.name, entry.name.partition("/")[0]} & wanted and entry.idle_days >= idle_days
    ]


def remove_entry(entry: CacheEntry) -> int:
    """Remove what aoq wrote to an entry; return the number of bytes that this frees."""
    if read_manifest(entry.path) is not None:
        if is_locked(entry.path):
            raise UserError(f"{entry.path} is in use by another process; wait for it to end.")
        remove_folder(entry.path)
        return entry.size
    freed = 0
    for path in _files(entry.path):
        if _OURS.fullmatch(path.name) or is_leftover(path):
            size = path.stat().st_size
            path.unlink(missing_ok=True)
            freed += size
    _remove_empty_folders(entry.path)
    return freed


def _entry_paths(cache: Path) -> Iterator[Path]:
    """Yield the folders of networks and indexes; a kind that holds files alone is one entry."""
    for kind in sorted(_folders(cache)):
        inner = sorted(_folders(kind))
        yield from inner or [kind]


def _measure(path: Path) -> CacheEntry:
    files, size, used = 0, 0, path.stat().st_mtime
    for file in _files(path):
        with suppress(FileNotFoundError):  # removed by another process
            found = file.stat()
            files, size = files + 1, size + found.st_size
            used = max(used, found.st_mtime, found.st_atime)
    return CacheEntry(str(path.relative_to(cache_folder())), path, files, size, used)


def _folders(path: Path) -> list[Path]:
    return [item for item in path.iterdir() if item.is_dir()] if path.is_dir() else []


def _files(path: Path) -> Iterator[Path]:
    return (file for file in path.rglob("*") if file.is_file() and not file.is_symlink())


def _remove_empty_folders(path: Path) -> None:
    inner = sorted((item for item in path.rglob("*") if item.is_dir()), reverse=True)
    for folder in [*inner, path]:
        with suppress(OSError):  # it holds something else
            folder.rmdir()
