"""Folders that commands write: complete or absent, and never over other people's files.

`check_output_folder` is the one rule for all commands that write a folder and take `--force`, and
`check_output_file` for those that write a single file. A folder is ours by its manifest;
a file that no manifest lists, by a record of its hash in the user's cache.
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
    """Yield a folder that replaces the old one when complete; until then the old one stays."""
    check = partial(check_output_folder, folder, what=what, force=force, sources=sources)
    with replacing_folder(folder, what=what, check=check) as temporary:
        yield temporary


def check_output_folder(
    folder: Path, *, what: str, force: bool, sources: Sequence[Path] = ()
) -> None:
    """Raise a `UserError` unless `folder` may be replaced.

    Only a folder of the same kind that holds nothing but our own files may be replaced, only with
    `force`, and only if it holds none of the `sources` that are read.
    """
    if Path.cwd().is_relative_to(folder.resolve()):
        raise UserError(f"{folder} is the folder you are in, or above it; name another place.")
    require_writable(folder)
    for source in sources:
        if place_in(folder, source) is not None:
            raise UserError(
                f"{folder} holds {source}, which is an input; choose another place for the {what}."
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


def check_output_file(path: Path, *, force: bool) -> None:
    """Raise a `UserError` if a file exists, unless `force` is set and aoq wrote its content."""
    if path.is_dir() or (path.exists() and not force):
        hint = "name a file" if path.is_dir() else "name another file or add --force"
        raise UserError(f"{path} exists already; {hint}.")
    if path.exists() and not is_own_file(path):
        raise UserError(
            f"{path} exists, and its content was not written by aoq; remove it yourself or name "
            "another file."
        )
    require_writable(path)


def remember_file(path: Path) -> None:
    """Record that aoq wrote a file, so that --force may replace it."""
    if not versions_of(path.absolute()):
        with suppress(OSError):  # with a read-only cache, the file cannot be replaced later
            write_json(_record_of(path), {"file": str(path.absolute()), "sha256": hash_file(path)})


def is_own_file(path: Path) -> bool:
    """Check that a file exists and holds what aoq wrote to it."""
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
    """Raise a `UserError` if aoq did not write a folder as this kind."""
    manifest = read_manifest(folder) if folder.is_dir() else None
    if manifest is None or manifest.what != what:
        found = f"it has no {NAME}" if manifest is None else f"it holds: {manifest.what}"
        raise UserError(
            f"{folder} exists and aoq did not write it as its {what} ({found}); remove it yourself "
            "or choose another place."
        )


def place_in(folder: Path, path: Path) -> Path | None:
    """Return the path relative to a folder, also through a link; None if it is outside."""
    itself = Path(os.path.normpath(path.parent.resolve() / path.name))
    real = folder.resolve()
    for place in (itself, path.resolve()):
        if place.is_relative_to(real):
            return place.relative_to(real)
    return None
