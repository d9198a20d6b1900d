"""The manifest of a folder: which files aoq wrote there, and what they contained.

`aoq-manifest.jsonl` is an append-only log. Its first line says what the folder is, and every other
line describes one version of one file: its size and a digest of each mebibyte.

    {"what": "run", "version": 1, "check": "..."}
    {"file": "model.safetensors", "bytes": 1234, "blocks": ["..."], "check": "..."}

It answers two questions. *Is this folder ours?* Only a folder with a manifest is ever replaced, and
only files that it lists are ever removed. *Is this file what we wrote?* A file that is read whole
is checked whole; each block of a large file is checked when it is first read, so that opening a
terabyte costs nothing and no byte is read twice.

The line of a file is written before the file is renamed into place, because a process may be
killed between the two: every listed version of a file is valid, and usually the newest is present.
A log that grows (`"grows": true`) is valid if it begins with what is listed. A manifest that has
become long is rewritten with the last two versions of each file. Folders without a manifest,
written by others or by earlier versions, are opened unchecked and never removed.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import lru_cache
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, BinaryIO

from aoq.errors import UserError

NAME = "aoq-manifest.jsonl"
VERSION = 1
BLOCK = 1 << 20
LOCK = ".lock"
LEFTOVER = ".{}." + 8 * "[0-9a-f]" + ".part"  # names of files being written
_LEVELS = 4  # folders between a file and its manifest
_LONG = 1 << 18  # bytes by which a manifest grows before old lines are dropped
_COMPARED = 1 << 24  # bytes: larger files are not compared before they are removed
_WITHIN = {  # where aoq writes folders into others: (outer kind, inner kind)
    ("run", "run"): "round-*",
    ("run", "index"): "*",
    ("run", "encodings"): "encodings/*",
    ("experiment", "run"): "*/seed-*",
    ("index", "part of an index"): "*",
}
_VERSIONS_KEPT = 2  # per file: the one in place and its replacement


class DamagedFileError(UserError):
    """A file does not have the content that aoq wrote."""


def damaged_file(path: Path, problem: str) -> DamagedFileError:
    return DamagedFileError(
        f"{path} is damaged or was changed since aoq wrote it ({problem}); restore it from a copy "
        f"or make it again. If the change is intended, delete {NAME} beside it: nothing is checked "
        "then."
    )


@dataclass(frozen=True)
class Version:
    """The content of a file, as digests."""

    n_bytes: int
    blocks: tuple[str, ...]
    grows: bool = False

    @classmethod
    def of_file(
        cls, path: Path, *, grows: bool = False, begins_with: tuple[str, ...] = ()
    ) -> Version:
        """Read the digests of a file, except for the first blocks if those are known."""
        with path.open("rb") as file:
            file.seek(len(begins_with) * BLOCK)
            blocks = tuple(map(_digest, iter(lambda: file.read(BLOCK), b"")))
            return cls(file.tell(), begins_with + blocks, grows)

    def fits(self, content: bytes) -> bool:
        """Return whether `content` is this version, or a log that continues it."""
        if len(content) < self.n_bytes or (len(content) > self.n_bytes and not self.grows):
            return False
        listed = memoryview(content)[: self.n_bytes]
        return self.blocks == tuple(map(_digest, _blocks_of(listed)))


def _blocks_of(content: memoryview) -> Iterator[memoryview]:
    return (content[start : start + BLOCK] for start in range(0, len(content), BLOCK))


def _digest(content: bytes | memoryview) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


@dataclass(frozen=True)
class Manifest:
    """The content of a manifest: the kind of the folder, and the versions of each file."""

    what: str
    files: Mapping[str, tuple[Version, ...]] = field(default_factory=dict)
    patterns: frozenset[str] = frozenset()
    "Names of files that other libraries write for us; aoq never reads them back."

    def lists(self, name: str) -> bool:
        return name in self.files or any(fnmatch(name, pattern) for pattern in self.patterns)

    def entries(self) -> Iterator[dict[str, Any]]:
        """Yield the lines of an equivalent manifest without outdated versions."""
        yield {"what": self.what, "version": VERSION}
        yield from ({"pattern": pattern} for pattern in sorted(self.patterns))
        for name, versions in self.files.items():
            for version in reversed(versions[:_VERSIONS_KEPT]):
                yield _file_entry(name, version)


def create_manifest(folder: Path, what: str) -> None:
    """Mark a folder as written by aoq; an existing mark stays as it is."""
    if not (folder / NAME).exists():
        _append(folder, {"what": what, "version": VERSION})


def read_manifest(folder: Path) -> Manifest | None:
    """Read the manifest of a folder; None if it has none."""
    path = folder / NAME
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return _parse(path, (found.st_ino, found.st_size, found.st_mtime_ns))


@lru_cache(maxsize=64)
def _parse(path: Path, identity: tuple[int, int, int]) -> Manifest:
    *lines, _ = path.read_bytes().split(b"\n")  # a kill may have cut the last line short
    kind: str | None = None
    files: dict[str, tuple[Version, ...]] = {}
    patterns: set[str] = set()
    for number, line in enumerate(lines, start=1):
        if not line:
            continue
        entry = _read_line(line)
        if entry is None:
            raise UserError(
                f"{path}, line {number}: it is damaged, so nothing in {path.parent} can be "
                "checked; restore it from a copy, or delete it to open the folder unchecked."
            )
        if "what" in entry:
            kind = entry["what"]
        elif "pattern" in entry:
            patterns.add(entry["pattern"])
        else:
            version = Version(entry["bytes"], tuple(entry["blocks"]), entry.get("grows", False))
            files[entry["file"]] = (version, *files.get(entry["file"], ()))
    if kind is None:
        raise UserError(
            f"{path} is damaged: it does not say what {path.parent} is; restore it from a copy, or "
            "delete it to open the folder unchecked."
        )
    return Manifest(kind, files, frozenset(patterns))


def _read_line(line: bytes) -> dict[str, Any] | None:
    """Parse an entry; None if it is not as it was written."""
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    if not isinstance(entry, dict):
        return None
    stated = entry.pop("check", None)
    return entry if stated == check_of(entry) and _is_entry(entry) else None


def _is_entry(entry: Mapping[str, Any]) -> bool:
    """Return whether an entry has what is read of it; anybody can compute its check."""
    match entry:
        case {"what": str()} | {"pattern": str()}:
            return True
        case {"file": str(), "bytes": int(), "blocks": [*blocks]}:
            return all(isinstance(block, str) for block in blocks)
        case _:
            return False


def check_of(entry: Mapping[str, Any]) -> str:
    """Return the hash that a line of JSON carries of its other fields."""
    return _digest(json.dumps(entry, sort_keys=True).encode())[:16]


def _file_entry(name: str, version: Version) -> dict[str, Any]:
    entry = {"file": name, "bytes": version.n_bytes, "blocks": list(version.blocks)}
    return entry | ({"grows": True} if version.grows else {})


def _line_of(entry: Mapping[str, Any]) -> bytes:
    return json.dumps({**entry, "check": check_of(entry)}).encode() + b"\n"


def _append(folder: Path, entry: Mapping[str, Any]) -> None:
    path = folder / NAME
    with opened_alone(path) as file:
        line = _line_of(entry)
        end = _append_line(file, line)
        if end // _LONG > (end - len(line)) // _LONG:
            manifest = read_manifest(folder)
            assert manifest is not None
            _replace_lines(path, map(_line_of, manifest.entries()))


def _append_line(file: BinaryIO, line: bytes) -> int:
    """Append a line in one write and return its end; drop a line that a kill cut short."""
    end = file.seek(0, os.SEEK_END)
    file.seek(max(0, end - 1))
    if file.read(1) not in (b"", b"\n"):
        file.seek(0)
        end = file.read().rfind(b"\n") + 1
        file.truncate(end)
    file.write(line)
    file.flush()
    return end + len(line)


def _replace_lines(path: Path, lines: Iterable[bytes]) -> None:
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        temporary.write_bytes(b"".join(lines))
        temporary.chmod(path.stat().st_mode)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def opened_alone(path: Path) -> Iterator[BinaryIO]:
    """Open a file for appending, locked against other processes."""
    while True:
        with path.open("ab+") as file:
            with suppress(ImportError, OSError):  # Windows, or a disk without locks
                import fcntl

                fcntl.flock(file, fcntl.LOCK_EX)
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                yield file
                return


def append_checked(path: Path, line: str) -> None:
    """Append a line to a log that ends as listed, and list its new content.

    Only the last block is read, however long the log is; readers of the log check the others.
    """
    listed = next(iter(versions_of(path)), None) if path.exists() else None
    known = () if listed is None else listed.blocks[: listed.n_bytes // BLOCK]
    with path.open("ab+") as file:
        if listed is not None:
            file.seek(len(known) * BLOCK)
            tail = file.read(listed.n_bytes - len(known) * BLOCK)
            if tuple(map(_digest, _blocks_of(memoryview(tail)))) != listed.blocks[len(known) :]:
                raise damaged_file(path, "its last lines differ")
        _append_line(file, line.encode() + b"\n")
    home = home_of(path)
    if home is not None:
        version = Version.of_file(path, grows=True, begins_with=known)
        _append(home[0], _file_entry(home[1], version))


def home_of(path: Path) -> tuple[Path, str] | None:
    """Return the folder whose manifest lists a file, and the file's name there."""
    for folder in list(path.parents)[:_LEVELS]:
        if (folder / NAME).is_file():
            return folder, path.relative_to(folder).as_posix()
    return None


def record(path: Path, *, content: Path | None = None) -> None:
    """List a file in the manifest of its folder, if any; `content` is the file before renaming."""
    home = home_of(path)
    if home is not None and path.name != NAME:
        folder, name = home
        _append(folder, _file_entry(name, Version.of_file(content or path)))


def record_pattern(folder: Path, pattern: str) -> None:
    """List files that another library writes below a folder of ours."""
    manifest = read_manifest(folder)
    if manifest is not None and pattern not in manifest.patterns:
        _append(folder, {"pattern": pattern})


def record_rest(folder: Path) -> None:
    """List every file of a folder that was filled by other means."""
    for file in foreign_files(folder):
        record(file)


def versions_of(path: Path) -> tuple[Version, ...]:
    """Return the valid contents of a file, newest first; none if no manifest lists it."""
    home = home_of(path)
    manifest = None if home is None else read_manifest(home[0])
    versions = () if home is None or manifest is None else manifest.files.get(home[1], ())
    return versions[:1] if versions and versions[0].grows else versions


def read_checked(path: Path) -> bytes:
    """Read a whole file, checked against the manifest of its folder."""
    content = path.read_bytes()
    check_content(path, content)
    return content


def check_content(path: Path, content: bytes, versions: tuple[Version, ...] | None = None) -> None:
    """Raise an error if the content read from a file is not what its manifest lists.

    A log that grows needs the `versions` that were listed before it was read.
    """
    versions = versions_of(path) if versions is None else versions
    if versions and not any(version.fits(content) for version in versions):
        expected = versions[0]
        size = f"{len(content):,} bytes instead of {expected.n_bytes:,}"
        same = len(content) == expected.n_bytes
        raise damaged_file(path, "its content differs" if same else size)


def check_file(path: Path) -> None:
    """Check all blocks of a file that another library is about to read."""
    blocks = BlockCheck(path)
    with path.open("rb") as file:
        for number, content in enumerate(iter(lambda: file.read(BLOCK), b"")):
            blocks.check_block(number, content)


def mapped(path: Path) -> memoryview:
    """Map a file into memory, to be read and checked without a copy."""
    with path.open("rb") as file:
        return memoryview(mmap(file.fileno(), 0, access=ACCESS_READ))


class BlockCheck:
    """Checks the blocks of a large file when they are first read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        n_bytes = path.stat().st_size
        listed = versions_of(path)
        self._versions = [version for version in listed if version.n_bytes == n_bytes]
        if listed and not self._versions:
            raise damaged_file(path, f"{n_bytes:,} bytes instead of {listed[0].n_bytes:,}")
        self._checked: set[int] = set()

    def check(self, content: memoryview, start: int, stop: int) -> None:
        """Check the blocks that hold the bytes from `start` to `stop` of a mapped file."""
        for block in range(start // BLOCK, -(-stop // BLOCK)):
            if self._versions and block not in self._checked:
                self.check_block(block, content[block * BLOCK : (block + 1) * BLOCK])

    def is_checked(self, start: int, stop: int) -> bool:
        """Return whether all blocks from byte `start` to `stop` have been checked."""
        blocks = range(start // BLOCK, -(-stop // BLOCK))
        return not self._versions or self._checked.issuperset(blocks)

    def check_block(self, number: int, content: bytes | memoryview) -> None:
        """Check one block."""
        if not self._versions:  # no manifest lists the file
            return
        digest = _digest(content)
        self._versions = [each for each in self._versions if each.blocks[number] == digest]
        if not self._versions:
            raise damaged_file(self.path, f"its {number + 1:,}. mebibyte differs")
        self._checked.add(number)


def foreign_files(folder: Path) -> list[Path]:
    """List the files below a folder that are not ours, and so are never removed.

    These are files that no manifest lists, files whose content is not as listed, and files in a
    folder of ours that does not belong there, such as a run that a user keeps within a data set.
    """
    return [
        file
        for file in sorted(folder.rglob("*"))
        if (file.is_symlink() or not file.is_dir())
        and not _is_leftover_of(file, folder)
        and not _is_own(file, folder)
    ]


def is_leftover(path: Path) -> bool:
    """Return whether a path is a lock, or was being written by a killed process."""
    return path.name == LOCK or _is_half_written(path)


def _is_half_written(path: Path) -> bool:
    return any(fnmatch(part, LEFTOVER.format("*")) for part in path.parts)


def _is_leftover_of(file: Path, root: Path) -> bool:
    """Return whether a file is the lock of one of our folders, or of a file written for one."""
    if file.name == LOCK and (file.parent / NAME).is_file():
        return True
    parts = file.relative_to(root).parts
    places = [root.joinpath(*parts[:depth]) for depth in range(1, len(parts) + 1)]
    return any(
        _is_half_written(Path(place.name)) and home_of(place) is not None for place in places
    )


def _is_own(file: Path, root: Path) -> bool:
    """Return whether the manifest of its folder lists a file with its current content."""
    for folder in (each for each in file.parents if each.is_relative_to(root)):
        manifest = read_manifest(folder)
        if manifest is not None:
            name = _name(file, folder)
            is_as_written = name == NAME or _is_as_listed(file, manifest, name)
            return is_as_written and _may_be_in(folder, root)
    return False


def _may_be_in(folder: Path, root: Path) -> bool:
    """Return whether a folder of ours is where aoq writes folders of its kind, or is the root."""
    while folder != root:
        inner, home = read_manifest(folder), home_of(folder)
        outer = None if home is None else read_manifest(home[0])
        if home is None or inner is None or outer is None:
            return False
        if not fnmatch(home[1], _WITHIN.get((outer.what, inner.what), "")):
            return False
        folder = home[0]
    return True


def _is_as_listed(file: Path, manifest: Manifest, name: str) -> bool:
    versions = manifest.files.get(name, ())
    if not versions:
        return manifest.lists(name)
    if file.is_symlink() or file.stat().st_size > _COMPARED:
        return not file.is_symlink()
    content = file.read_bytes()
    return any(version.fits(content) for version in versions)


def _name(file: Path, folder: Path) -> str:
    return file.relative_to(folder).as_posix()
