"""Folders that commands write: whole or not at all, and never over somebody's work."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from aoq.errors import UserError
from aoq.storage import replacing_folder


@contextmanager
def written_folder(
    folder: Path,
    *,
    what: str,
    is_ours: Callable[[Path], bool],
    force: bool,
    sources: Sequence[Path] = (),
) -> Iterator[Path]:
    """A folder that takes its place when it is complete; what it replaces stays until then."""
    check = partial(refuse_taken, folder, what=what, is_ours=is_ours, force=force, sources=sources)
    with replacing_folder(folder, check=check) as temporary:
        yield temporary


def refuse_taken(
    folder: Path,
    *,
    what: str,
    is_ours: Callable[[Path], bool],
    force: bool,
    sources: Sequence[Path] = (),
) -> None:
    """Only what we wrote ourselves is ever replaced, if asked for, and if no source lies in it."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    for source in sources:
        if place_in(folder, source) is not None:
            raise UserError(
                f"{folder} holds {source}, which is to be read; choose another place for the "
                f"{what}."
            )
    if not is_ours(folder):
        raise UserError(
            f"{folder} exists and is no {what} of aoq; remove it yourself or choose another place."
        )
    if not force:
        raise UserError(
            f"{folder} exists already; choose another place or add --force (in Python, force=True)."
        )


def place_in(folder: Path, path: Path) -> Path | None:
    """Where a path is in a folder, if it is there: itself, or what it is a link to."""
    itself = Path(os.path.normpath(path.parent.resolve() / path.name))
    real = folder.resolve()
    for place in (itself, path.resolve()):
        if place.is_relative_to(real):
            return place.relative_to(real)
    return None
