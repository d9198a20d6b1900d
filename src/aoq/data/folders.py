"""Folders that commands write: whole or not at all, and never over somebody's work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from aoq.errors import UserError
from aoq.storage import replacing_folder


@contextmanager
def written_folder(
    folder: Path, *, what: str, is_ours: Callable[[Path], bool], force: bool
) -> Iterator[Path]:
    """A folder that takes its place when it is complete; what it replaces stays until then."""
    check = partial(refuse_taken, folder, what=what, is_ours=is_ours, force=force)
    check()
    with replacing_folder(folder, check=check) as temporary:
        yield temporary


def refuse_taken(folder: Path, *, what: str, is_ours: Callable[[Path], bool], force: bool) -> None:
    """Only what we wrote ourselves is ever replaced, and it only if asked for."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not is_ours(folder):
        raise UserError(
            f"{folder} exists and is no {what} of aoq; remove it yourself or choose another place."
        )
    if not force:
        raise UserError(f"{folder} exists already; choose another place or add --force.")
