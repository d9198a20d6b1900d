"""Reads untrusted files and values carefully, and quotes them briefly in error messages."""

from __future__ import annotations

import json
import re
import reprlib
from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath
from typing import Any, TypeGuard

from aoq.errors import UserError
from aoq.manifest import read_checked

MOST_DIGITS = 100  # of an integer; ids have far fewer
CHARACTERS_SHOWN = 60

_BYTE_STRING = re.compile(r"""b(['"]).*\1""", re.DOTALL)
_shortener = reprlib.Repr()
_shortener.maxstring = _shortener.maxother = _shortener.maxlong = CHARACTERS_SHOWN


def read_text(path: Path) -> str:
    """Read a whole UTF-8 file, with or without a byte order mark; errors name the line."""
    try:
        content = read_checked(path)
    except OSError as error:
        raise UserError(
            f"{path} cannot be read ({error.strerror}); expected a text file."
        ) from error
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UserError(
            f"{path}, line {line}: byte 0x{content[error.start]:02x} is not UTF-8; "
            "save the file as UTF-8."
        ) from error
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise UserError(f"{path}, line {line}: byte 0x00 is not text; save the file as UTF-8.")
    return text


def read_lines(path: Path) -> list[str]:
    """Read the lines of a UTF-8 file without line ends; a final line end starts no new line."""
    lines = [line.strip() for line in read_text(path).split("\n")]
    return lines[:-1] if not lines[-1] else lines


def is_file(path: Path) -> bool:
    """Return whether there is a file; False if the name is too long for the file system."""
    return _is_there(path) and path.is_file()


def is_folder(path: Path) -> bool:
    return _is_there(path) and path.is_dir()


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def parse_json(text: str, *, object_pairs_hook: Callable[..., Any] | None = None) -> Any:
    """Parse JSON; every fault, also in hostile files, is raised as a `ValueError`."""
    try:
        return json.loads(text, object_pairs_hook=object_pairs_hook, parse_int=_parse_int)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def json_fault(path: Path, error: ValueError) -> str:
    """Describe where and why a document is not valid JSON, to begin a sentence with."""
    if isinstance(error, json.JSONDecodeError):
        return f"{path}, line {error.lineno}: not valid JSON ({error.msg})"
    return f"{path}: not valid JSON ({error})"


def wrong_fields(place: str, item: object, /, **kinds: str) -> list[str]:
    """List the fields of a JSON object that are not of these `KINDS`; a `?` allows null."""
    if not isinstance(item, dict):
        return [f"{place}: {shown(item)} is not a JSON object; expected one."]
    wrong: list[str] = []
    for field, kind in kinds.items():
        value = item.get(field)
        fits, expected = KINDS[kind.rstrip("?")]
        if not (fits(value) or (value is None and kind.endswith("?"))):
            wrong.append(f"{place}: {field} is {shown(value)}; expected {expected}.")
    return wrong


def is_text(value: object) -> TypeGuard[str]:
    """Return whether a value is text that a file can hold; JSON escapes allow half characters."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_id(value: object) -> bool:
    return is_text(value) or (isinstance(value, int) and not isinstance(value, bool))


def is_filled(value: object) -> bool:
    return is_text(value) and bool(value.strip())


def is_list(value: object) -> bool:
    return isinstance(value, list)


def is_tokens(value: object) -> bool:
    return isinstance(value, list) and all(is_text(word) for word in value)


KINDS: dict[str, tuple[Callable[[object], bool], str]] = {
    "text": (is_text, "text"),
    "words": (is_filled, "words"),
    "name": (is_filled, "the name of a picture"),
    "id": (is_id, "a whole number or text"),
    "list": (is_list, "a list"),
    "tokens": (is_tokens, "a list of words"),
}


def shown(value: object) -> str:
    """Format a value for a sentence: short, however long or deep it is."""
    return _shortener.repr(value)


def normal_name(name: str) -> str:
    return PurePosixPath(name.strip()).as_posix() if name.strip() else ""


def normal_caption(caption: str) -> str:
    return " ".join(caption.split())


def is_byte_string(caption: str) -> bool:
    """Return whether a caption is the repr of Python bytes; a model would learn its b and quotes.

    >>> is_byte_string("b'a dog'"), is_byte_string("a dog")
    (True, False)
    """
    return _BYTE_STRING.fullmatch(caption) is not None


def byte_string_problems(captions: Iterable[tuple[str, str]]) -> list[str]:
    """Return one sentence about all captions that are byte strings, each with its place."""
    found = [(place, caption) for place, caption in captions if is_byte_string(caption)]
    if not found:
        return []
    place, caption = found[0]
    return [
        f"{place}: the caption {shown(caption)} is a byte string, {len(found):,} such captions in "
        "all; expected text: decode captions before they are written, in Python with "
        "caption.decode()."
    ]


def _parse_int(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise ValueError(f"a number has {len(digits):,} digits")
    return int(digits)
