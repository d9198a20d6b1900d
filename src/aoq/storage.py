"""Files that are whole or absent, content hashes, and the run directory.

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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from difflib import get_close_matches
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
    create_manifest,
    foreign_files,
    is_leftover,
    read_checked,
    read_manifest,
    record,
    record_rest,
)

if TYPE_CHECKING:
    import numpy.typing as npt

CONFIG = "config.toml"
EVENTS = "events.jsonl"
MANIFEST = "dataset.json"
ROUND_ONE, ROUND_TWO = "round-one", "round-two"
ROUNDS = {"one": ROUND_ONE, "two": ROUND_TWO}


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """A temporary path to write to; it becomes `path` when the block ends without an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary(path)
    try:
        with disk_errors(path, written=temporary):
            temporary.touch()
            mode = temporary.stat().st_mode
            yield temporary
            temporary.chmod(mode)  # some writers put a file of their own there, for nobody else
            record(path, content=temporary)
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: Path, *, what: str) -> Iterator[Path]:
    """A temporary folder to fill; it becomes `path` when the block ends without an error.

    Its manifest says `what` it is, and lists all that it holds.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(path.parent, of=path.name)
    temporary = _temporary(path)
    temporary.mkdir()
    try:
        with locked(temporary), disk_errors(path, written=temporary):  # locked: it is no leftover
            create_manifest(temporary, what)
            yield temporary
            record_rest(temporary)
            temporary.replace(path)
        (path / LOCK).unlink(missing_ok=True)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _temporary(path: Path) -> Path:
    """A name beside a path that `remove_leftovers` knows."""
    return _beside(path, f".{path.name}.{secrets.token_hex(4)}.part")


def _beside(path: Path, name: str) -> Path:
    """A name beside a path, which is not the root or a folder that this process works in."""
    if Path.cwd().is_relative_to(path.resolve()):
        raise UserError(
            f"{path} is the folder you are in, or above it, and cannot be replaced; name another."
        )
    return path.with_name(name)


def remove_leftovers(folder: Path, *, of: str = "*") -> None:
    """Remove what a killed process had begun to write in `folder`, under the name `of`.

    A folder that is being filled is known by its lock; for files, `folder` has to be locked.
    """
    for leftover in folder.glob(LEFTOVER.format(of if of == "*" else glob.escape(of))):
        if leftover.is_file():
            leftover.unlink()
        elif not is_locked(leftover):
            shutil.rmtree(leftover)


@contextmanager
def replacing_folder(path: Path, *, what: str, check: Callable[[], None]) -> Iterator[Path]:
    """Like `atomic_folder`, also over a folder that is there, which stays whole until then.

    `check` may refuse at once, and still when the new one is complete: much can happen meanwhile.
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
    """End a replacement, or undo it where the new folder is not there: also one that was killed."""
    if read_manifest(before) is None:  # somebody's own
        return
    if not path.exists():
        before.replace(path)
    if before.exists():
        require_own_files(before)
        shutil.rmtree(before)


def remove_folder(path: Path) -> None:
    """Remove a folder that aoq wrote, at once for all who look; never with a file of others."""
    require_own_files(path)
    shutil.rmtree(path.replace(_temporary(path)))


def require_own_files(folder: Path) -> None:
    """Refuse to remove a folder that holds files which aoq did not write."""
    foreign = foreign_files(folder)
    if foreign:
        more = f" and {len(foreign) - 1:,} more" if len(foreign) > 1 else ""
        raise UserError(
            f"{folder} holds {foreign[0].relative_to(folder)}{more}, which aoq did not write, or "
            "not as it is, so nothing is removed; move it away, or choose another folder."
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
    import numpy as np  # which commands that only look at files do without

    with atomic_file(path) as temporary, temporary.open("wb") as file:
        np.save(file, array)


def append_json_line(path: Path, value: dict[str, Any]) -> None:
    """Add one line to a log that ends as it did when the last line was added."""
    with disk_errors(path):
        append_checked(path, json.dumps(value, ensure_ascii=False, allow_nan=False))


def read_json_lines(path: Path | str) -> list[dict[str, Any]]:
    """Read all lines of a log; a last line that a crash cut short is left out."""
    path = Path(path)
    if not path.exists():
        return []
    content = path.read_bytes()
    *lines, _ = content.split(b"\n")
    values = [parse_line(path, number, line) for number, line in enumerate(lines, 1) if line]
    check_content(path, content)
    return values


def parse_line(path: Path, number: int, line: bytes) -> dict[str, Any]:
    """Parse one line of a log; a damaged one is an error that names it."""
    with suppress(ValueError):
        value = json.loads(line)
        if isinstance(value, dict):
            return value
    raise UserError(
        f"{path}, line {number}: it is damaged; expected a JSON object. Restore the file from a "
        f"copy, or remove that line and {NAME} beside it: nothing is checked then."
    )


def hash_file(path: Path) -> str:
    """SHA-256 of a file's content, as hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hash_parts(*parts: bytes | memoryview) -> str:
    """SHA-256 of some bytes and contiguous arrays, one after the other, as hex."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def cache_folder() -> Path:
    """`AOQ_CACHE`, or `aoq` in the user's cache folder."""
    if own := os.environ.get("AOQ_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "aoq"


def is_vacant(path: Path) -> bool:
    """Whether something can be written there: nothing, or an empty folder but for leftovers."""
    if not path.is_dir():
        return not path.exists()
    return all(item.name == NAME or is_leftover(Path(item.name)) for item in path.iterdir())


@contextmanager
def locked(folder: Path, *, doing: str = "trained") -> Iterator[None]:
    """Nobody else writes to a folder that says so, where the system and the disk know locks."""
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    with (folder / LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
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
    """Whether somebody writes to a folder; None where the system or the disk cannot tell."""
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


@dataclass(frozen=True)
class RunDirectory:
    """The unit people keep: what was asked for, what happened, and what came out."""

    path: Path

    @property
    def config(self) -> Path:
        return self.path / CONFIG

    @property
    def origin(self) -> Path:
        """Where it comes from: its round, data and lists, or the files it was imported from."""
        return self.path / "origin.json"

    @property
    def vocabulary(self) -> Path:
        return self.path / "vocabulary.json"

    @property
    def events(self) -> Path:
        return self.path / EVENTS

    @property
    def board(self) -> Path:
        """The same for TensorBoard, where it is installed."""
        return self.path / "tensorboard"

    @property
    def results(self) -> Path:
        return self.path / "results.jsonl"

    @property
    def model(self) -> Path:
        """The weights of the best epoch on dev."""
        return self.path / "model.safetensors"

    @property
    def trainer(self) -> Path:
        """Everything needed to go on where training stopped."""
        return self.path / "trainer.pt"

    @property
    def candidates(self) -> Path:
        return self.path / "candidates.safetensors"

    @property
    def encodings(self) -> Path:
        """What the model made of data sets; can be deleted, and is then computed again."""
        return self.path / "encodings"

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    def last_round(self) -> RunDirectory:
        """This folder, if it holds a trained model; of a run of rounds, the last that does."""
        rounds = (RunDirectory(self.path / name) for name in ("", ROUND_TWO, ROUND_ONE))
        found = next((each for each in rounds if each.model.is_file()), self)
        return found.require_trained()

    def require_trained(self) -> RunDirectory:
        """This run, if it holds a trained model."""
        if not self.path.is_dir():
            near = get_close_matches(self.path.name, _names_in(self.path.parent), n=1)
            hint = f"did you mean {self.path.with_name(near[0])}?" if near else "name a run."
            raise UserError(f"there is no folder {self.path}; {hint}")
        for file in (self.config, self.model):
            if not file.is_file():
                rounds = ", ".join(str(model.parent) for model in self.path.glob("*/model.*"))
                hint = f"name one of {rounds}" if rounds else "name the folder of a trained round"
                raise UserError(
                    f"{self.path} holds no trained model: {file.name} is missing; {hint}."
                )
        return self


def _names_in(folder: Path) -> list[str]:
    return [item.name for item in folder.iterdir() if item.is_dir()] if folder.is_dir() else []


def is_ensemble(line: Mapping[str, Any]) -> bool:
    """Whether a line of results.jsonl is about several models together."""
    return "+" in str(line.get("model"))
