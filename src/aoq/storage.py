"""Atomic files (complete or absent), and content hashes.

Every file is written under a temporary name in its own folder and renamed when it is complete,
so an interruption leaves the previous version or nothing.
"""

from __future__ import annotations

import errno
import glob
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aoq.disk import disk_errors
from aoq.errors import UserError
from aoq.manifest import (
    LEFTOVER,
    LOCK,
    NAME,
    append_checked,
    check_content,
    check_of,
    create_manifest,
    foreign_files,
    is_leftover,
    read_checked,
    read_manifest,
    record,
    record_rest,
    versions_of,
)

if TYPE_CHECKING:
    import numpy.typing as npt

EVENTS = "events.jsonl"


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to; it becomes `path` if the block ends without an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary(path)
    try:
        with disk_errors(path, written=temporary):
            temporary.touch()
            mode = temporary.stat().st_mode
            yield temporary
            temporary.chmod(mode)  # some writers create a private file (mode 600)
            record(path, content=temporary)
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: Path, *, what: str) -> Iterator[Path]:
    """Yield a temporary folder to fill; it becomes `path` if the block ends without an error.

    Its manifest says `what` it is, and lists all its files.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(path.parent, of=path.name)
    temporary = _temporary(path)
    temporary.mkdir()
    try:
        with locked(temporary), disk_errors(path, written=temporary):  # locked: not a leftover
            create_manifest(temporary, what)
            yield temporary
            record_rest(temporary)
            temporary.replace(path)
        (path / LOCK).unlink(missing_ok=True)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _temporary(path: Path) -> Path:
    """Return a name beside a path that `remove_leftovers` recognises."""
    return _beside(path, f".{path.name}.{secrets.token_hex(4)}.part")


def _beside(path: Path, name: str) -> Path:
    """Return a name beside a path, unless it is the root or contains the working folder."""
    if Path.cwd().is_relative_to(path.resolve()):
        raise UserError(
            f"{path} is the folder you are in, or above it, and cannot be replaced; name another."
        )
    return path.with_name(name)


def remove_leftovers(folder: Path, *, of: str = "*") -> None:
    """Remove what a killed process had begun to write in `folder`, under the name `of`.

    A lock marks a folder that is still being filled; for files, `folder` has to be locked.
    """
    for leftover in folder.glob(LEFTOVER.format(of if of == "*" else glob.escape(of))):
        if leftover.is_file():
            leftover.unlink()
        elif not is_locked(leftover):
            shutil.rmtree(leftover)


@contextmanager
def replacing_folder(path: Path, *, what: str, check: Callable[[], None]) -> Iterator[Path]:
    """Yield a folder to fill like `atomic_folder`; an existing one stays whole until then.

    `check` may raise an error at the start, and again when the new folder is complete.
    """
    before = _beside(path, f".{path.name}.before")
    _settle_replacement(path, before)
    check()
    try:
        with atomic_folder(path, what=what) as temporary:
            yield temporary
            check()
            if path.exists():
                path.replace(before)
    finally:
        _settle_replacement(path, before)


def _settle_replacement(path: Path, before: Path) -> None:
    """Finish a replacement, or undo it if the new folder is missing, also after a kill."""
    if read_manifest(before) is None:  # not a folder of aoq
        return
    if not path.exists():
        before.replace(path)
    if before.exists():
        require_own_files(before)
        shutil.rmtree(before)


def remove_folder(path: Path) -> None:
    """Remove a folder that aoq wrote, in one step; never with files of others in it."""
    require_own_files(path)
    shutil.rmtree(path.replace(_temporary(path)))


def require_own_files(folder: Path) -> None:
    """Raise a `UserError` if a folder holds files that aoq did not write."""
    foreign = foreign_files(folder)
    if foreign:
        more = f" and {len(foreign) - 1:,} more" if len(foreign) > 1 else ""
        raise UserError(
            f"{folder} holds {foreign[0].relative_to(folder)}{more}, which aoq did not write or "
            "which has changed, so nothing is removed; move it away, or choose another folder."
        )


def write_text(path: Path, text: str) -> None:
    with atomic_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object that aoq wrote."""
    content = read_checked(path)
    with suppress(ValueError):
        value = json.loads(content)
        if isinstance(value, dict):
            return value
    raise UserError(
        f"{path} is damaged: it is not a JSON object; restore it from a copy or make it again."
    )


def write_array(path: Path, array: npt.NDArray[Any]) -> None:
    import numpy as np  # slow; commands that only read files do not need it

    with atomic_file(path) as temporary, temporary.open("wb") as file:
        np.save(file, array)


def append_json_line(path: Path, value: dict[str, Any], *, with_check: bool = False) -> None:
    """Append one line to a log that ends as it did after the last line.

    `with_check` adds a hash of the line, so that it is checked wherever it is copied.
    """
    check = {"check": check_of(value)} if with_check else {}
    with disk_errors(path):
        append_checked(path, json.dumps(value | check, ensure_ascii=False, allow_nan=False))


def read_json_lines(path: Path | str) -> list[dict[str, Any]]:
    """Read all lines of a log, except a last line that a crash cut short."""
    path = Path(path)
    if not path.exists():
        return []
    listed = versions_of(path)  # another process may append while this one reads
    content = path.read_bytes()
    *lines, _ = content.split(b"\n")
    values = [parse_line(path, number, line) for number, line in enumerate(lines, 1) if line]
    check_content(path, content, listed)
    return values


def parse_line(path: Path, number: int, line: bytes) -> dict[str, Any]:
    """Parse one line of a log, without its check; the error for a damaged line names it."""
    with suppress(ValueError):
        value = json.loads(line)
        if isinstance(value, dict):
            stated = value.pop("check", None)
            if stated not in (None, check_of(value)):
                raise UserError(
                    f"{path}, line {number}: it is damaged or was changed since aoq wrote it; "
                    "restore the file from a copy, or remove that line. If the change is intended, "
                    'delete "check" from it.'
                )
            return value
    raise UserError(
        f"{path}, line {number}: it is damaged; expected a JSON object. Restore the file from a "
        f"copy, or remove that line and {NAME} beside it: nothing is checked then."
    )


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file's content, as hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hash_parts(*parts: bytes | memoryview) -> str:
    """Return the SHA-256 of bytes and contiguous arrays, one after the other, as hex."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def cache_folder() -> Path:
    """Return `AOQ_CACHE`, or `aoq` in the user's cache folder."""
    if own := os.environ.get("AOQ_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "aoq"


def is_vacant(path: Path) -> bool:
    """Return whether a path can be written: absent, or a folder with nothing but leftovers."""
    if not path.is_dir():
        return not path.exists()
    return all(item.name == NAME or is_leftover(Path(item.name)) for item in path.iterdir())


@contextmanager
def locked(folder: Path, *, doing: str = "trained", wait: bool = False) -> Iterator[None]:
    """Lock a folder against other writers, where the system and the disk support locks.

    A folder that is locked already is refused, unless `wait` is set.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    with (folder / LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            raise UserError(
                f"{folder} is being {doing} by another process; wait for it, or choose another "
                "folder."
            ) from None
        except OSError as error:
            if error.errno not in (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP):
                raise
        yield


def is_locked(folder: Path) -> bool | None:
    """Return whether a process writes to a folder; None if the system or disk has no locks."""
    try:
        import fcntl

        with (folder / LOCK).open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    except (ImportError, OSError):
        return None
    return False
