"""Folders that commands write: whole or not at all, and never over somebody's work.

`refuse_taken` is the one rule of every command that writes a folder and takes `--force`,
`refuse_taken_file` of those that write a single file. A folder is ours by its manifest; a file
that no manifest lists, by a record of its hash in the user's cache.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from aoq.disk import require_writable
from aoq.errors import UserError
from aoq.manifest import NAME, read_manifest, versions_of
from aoq.storage import (
    cache_folder,
    hash_file,
    hash_parts,
    is_vacant,
    read_json,
    replacing_folder,
    require_own_files,
    write_json,
)


@contextmanager
def written_folder(
    folder: Path, *, what: str, force: bool, sources: Sequence[Path] = ()
) -> Iterator[Path]:
    """A folder that takes its place when it is complete; what it replaces stays until then."""
    check = partial(refuse_taken, folder, what=what, force=force, sources=sources)
    with replacing_folder(folder, what=what, check=check) as temporary:
        yield temporary


def refuse_taken(folder: Path, *, what: str, force: bool, sources: Sequence[Path] = ()) -> None:
    """Refuse to replace anything but a folder of the same kind that holds our own files only.

    It also has to be asked for with `force`, and to hold none of the `sources` that are read.
    """
    if Path.cwd().is_relative_to(folder.resolve()):
        raise UserError(f"{folder} is the folder you are in, or above it; name another place.")
    require_writable(folder)
    for source in sources:
        if place_in(folder, source) is not None:
            raise UserError(
                f"{folder} holds {source}, which is to be read; choose another place for the "
                f"{what}."
            )
    if folder.is_symlink():
        raise UserError(
            f"{folder} is a link to {folder.resolve()}; name that folder, or another place."
        )
    if is_vacant(folder):
        return
    require_kind(folder, what=what)
    if not force:
        raise UserError(
            f"{folder} exists already; choose another place or add --force (in Python, force=True)."
        )
    require_own_files(folder)


def refuse_taken_file(path: Path, *, force: bool) -> None:
    """Refuse to replace a file, unless it is asked for and holds what aoq wrote there."""
    if path.is_dir() or (path.exists() and not force):
        hint = "name a file" if path.is_dir() else "name another file or add --force"
        raise UserError(f"{path} exists already; {hint}.")
    if path.exists() and not is_own_file(path):
        raise UserError(
            f"{path} exists and aoq did not write it as it is; remove it yourself or name another "
            "file."
        )
    require_writable(path)


def remember_file(path: Path) -> None:
    """Record that aoq wrote a file, so that --force may replace it."""
    if not versions_of(path.absolute()):
        with suppress(OSError):  # a cache that cannot be written to: the file is not replaced
            write_json(_record_of(path), {"file": str(path.absolute()), "sha256": hash_file(path)})


def is_own_file(path: Path) -> bool:
    """Whether a file is there and holds what aoq wrote there."""
    if not path.is_file():
        return False
    listed = versions_of(path.absolute())
    if listed:
        content = path.read_bytes()
        return any(version.fits(content) for version in listed)
    record = _record_of(path)
    return record.is_file() and read_json(record).get("sha256") == hash_file(path)


def _record_of(path: Path) -> Path:
    return cache_folder() / "written" / f"{hash_parts(str(path.absolute()).encode())[:32]}.json"


def require_kind(folder: Path, *, what: str) -> None:
    """Refuse a folder that aoq did not write as what it is to be."""
    manifest = read_manifest(folder) if folder.is_dir() else None
    if manifest is None or manifest.what != what:
        found = f"it has no {NAME}" if manifest is None else f"it holds: {manifest.what}"
        raise UserError(
            f"{folder} exists and aoq did not write it as its {what} ({found}); remove it yourself "
            "or choose another place."
        )


def place_in(folder: Path, path: Path) -> Path | None:
    """Where a path is in a folder, if it is there: itself, or what it is a link to."""
    itself = Path(os.path.normpath(path.parent.resolve() / path.name))
    real = folder.resolve()
    for place in (itself, path.resolve()):
        if place.is_relative_to(real):
            return place.relative_to(real)
    return None
