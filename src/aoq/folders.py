"""Folders that commands write: whole or not at all, and never over somebody's work.

`refuse_taken` is the one rule of every command that takes `--force`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from aoq.disk import require_writable
from aoq.errors import UserError
from aoq.manifest import NAME, read_manifest
from aoq.storage import is_vacant, replacing_folder, require_own_files


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
    if is_vacant(folder):
        return
    for source in sources:
        if place_in(folder, source) is not None:
            raise UserError(
                f"{folder} holds {source}, which is to be read; choose another place for the "
                f"{what}."
            )
    manifest = read_manifest(folder) if folder.is_dir() else None
    if manifest is None or manifest.what != what:
        found = f"it has no {NAME}" if manifest is None else f"it holds: {manifest.what}"
        raise UserError(
            f"{folder} exists and aoq did not write it as its {what} ({found}); remove it yourself "
            "or choose another place."
        )
    if not force:
        raise UserError(
            f"{folder} exists already; choose another place or add --force (in Python, force=True)."
        )
    require_own_files(folder)


def place_in(folder: Path, path: Path) -> Path | None:
    """Where a path is in a folder, if it is there: itself, or what it is a link to."""
    itself = Path(os.path.normpath(path.parent.resolve() / path.name))
    real = folder.resolve()
    for place in (itself, path.resolve()):
        if place.is_relative_to(real):
            return place.relative_to(real)
    return None
