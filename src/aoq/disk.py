"""Disk errors: the disk is full, or a place cannot be written to.

Libraries that write files hide the reason: torch and safetensors raise errors of their own, and
NumPy an OSError without a number. `disk_errors` turns them into the underlying OSError with the
name of the file, so the command line and programs can distinguish a full disk from a defect.
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
    """Raise disk errors of a writer of `path` as an OSError that names `path`.

    `written` is the file that is actually written, if it is not `path` itself.
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
    """Return whether a disk, a quota or a file size limit leaves no room."""
    return error.errno in _FULL


def is_read_only(error: OSError) -> bool:
    """Return whether the error means that the location is not writable."""
    return error.errno in _READ_ONLY


def is_writable(folder: Path) -> bool:
    """Return whether files can be created in a folder, or in its nearest existing parent."""
    above = next(filter(_is, (folder.absolute(), *folder.absolute().parents)))
    return above.is_dir() and os.access(above, os.W_OK | os.X_OK)


def require_writable(path: Path) -> None:
    """Raise a `UserError` if `path` cannot be written, before hours of work."""
    above = next(filter(_is, path.absolute().parents), Path(path.anchor))
    if not above.is_dir():
        raise UserError(f"{path} cannot be written: {above} is a file; name another place.")
    if not os.access(above, os.W_OK | os.X_OK):
        raise UserError(f"{path} cannot be written: {above} is read-only; name another place.")


def _is(place: Path) -> bool:
    return os.path.lexists(place)


def _number_of(error: BaseException, path: Path) -> int | None:
    """Return the system's error number behind an exception; None if the disk is not the cause."""
    chain: BaseException | None = error
    while chain is not None:
        if isinstance(chain, OSError) and chain.errno is not None:
            is_nameless = chain is error and chain.filename is None
            return chain.errno if is_full(chain) or is_nameless else None
        stated = re.search(r"\(os error (\d+)\)", str(chain))  # the format of Rust's libraries
        if stated:
            return int(stated[1])
        chain = chain.__cause__ or chain.__context__
    return _ask_disk(path) if isinstance(error, RuntimeError | OSError) else None


def _ask_disk(path: Path) -> int | None:
    """Write more to a file that a library failed to write, and return the disk's error number."""
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
