"""What a disk refuses: it is full, or it cannot be written to.

Libraries that write files hide the reason: torch and safetensors raise errors of their own, and
NumPy an OSError without a number. `disk_errors` turns them into the OSError that they are, with
the name of the file, so the command line and programs can tell a full disk from a defect.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from aoq.errors import UserError

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)
_PROBE = 2**20  # bytes


@contextmanager
def disk_errors(path: Path, *, written: Path | None = None) -> Iterator[None]:
    """Raise what a writer of `path` says about the disk as an OSError that names `path`.

    `written` is the file that is written in its place, if it is another one.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        number = _number_of(error, written or path)
        if number is None:
            raise
        raise OSError(number, os.strerror(number), str(path)) from error


def is_full(error: OSError) -> bool:
    """Whether a disk, a quota or the largest size of a file leaves no room."""
    return error.errno in _FULL


def is_read_only(error: OSError) -> bool:
    """Whether the place of a file cannot be written to."""
    return error.errno in _READ_ONLY


def is_writable(folder: Path) -> bool:
    """Whether files can be made in a folder, or in the nearest one above it that exists."""
    above = next(filter(_is, (folder.absolute(), *folder.absolute().parents)))
    return above.is_dir() and os.access(above, os.W_OK | os.X_OK)


def require_writable(path: Path) -> None:
    """Refuse a place where nothing can be written, before hours of work."""
    above = next(filter(_is, path.absolute().parents), Path(path.anchor))
    if not above.is_dir():
        raise UserError(f"{path} cannot be written: {above} is a file; name another place.")
    if not os.access(above, os.W_OK | os.X_OK):
        raise UserError(f"{path} cannot be written: {above} is read-only; name another place.")


def _is(place: Path) -> bool:
    return os.path.lexists(place)


def _number_of(error: BaseException, path: Path) -> int | None:
    """The number of the system's error behind another; none where the disk is not to blame."""
    chain: BaseException | None = error
    while chain is not None:
        if isinstance(chain, OSError) and chain.errno is not None:
            is_nameless = chain is error and chain.filename is None
            return chain.errno if is_full(chain) or is_nameless else None
        stated = re.search(r"\(os error (\d+)\)", str(chain))  # as Rust's libraries write it
        if stated:
            return int(stated[1])
        chain = chain.__cause__ or chain.__context__
    return _ask_disk(path) if isinstance(error, RuntimeError | OSError) else None


def _ask_disk(path: Path) -> int | None:
    """What the disk says when more is written to a file that a library failed to write."""
    place = path / ".room" if path.is_dir() else path
    try:
        with place.open("ab", buffering=0) as file:
            room = bytes(_PROBE)
            while room:
                room = room[file.write(room) :]
    except OSError as error:
        return error.errno if is_full(error) else None
    finally:
        if place != path:
            with suppress(OSError):
                place.unlink(missing_ok=True)
    return None
