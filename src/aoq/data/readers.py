"""The files that people bring, one reader a format: every caption becomes an `Entry`.

Recognised by their content: a table (CSV) or JSON lines of `image, caption[, split]`, a Flickr
token file, Karpathy's JSON and COCO's captions JSON. A reader trusts nothing: whatever is no text
or no id where one is expected becomes a sentence among the `problems`, with its place, and the
reader goes on, so that one report names everything there is to mend. Whether the entries make a
sound source together is for `aoq.data.formats` to say.
"""

from __future__ import annotations

import csv
import io
import json
import re
import reprlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, TypeGuard

from aoq.errors import UserError

MOST_DIGITS = 100  # of a whole number; ids have far fewer
CHARACTERS_SHOWN = 60

_BYTE_STRING = re.compile(r"""b(['"]).*\1""", re.DOTALL)
_shortener = reprlib.Repr()
_shortener.maxstring = _shortener.maxother = _shortener.maxlong = CHARACTERS_SHOWN


@dataclass(frozen=True)
class Entry:
    """One caption as its file gives it, with the place for whoever has to mend it."""

    place: str
    image: str
    caption: str
    split: str | None = None
    image_id: str | None = None
    caption_id: str | None = None


def read_entries(path: Path, *, pictures: Path, problems: list[str]) -> Iterator[Entry]:
    """Every caption of a file in any of the formats, recognised by its content."""
    text = read_text(path)
    if "\n" not in text:
        text = text.replace("\r", "\n")  # line ends of old Macs
    header = text.lstrip().partition("\n")[0].strip()
    if not header:
        raise UserError(f"{path} is empty; expected captions.")
    if header.startswith("{"):
        document = _parse_document(path, text)
        if document is None:
            return json_line_entries(path, text, problems=problems)
        if "annotations" in document:
            return coco_entries(path, document, problems=problems)
        return karpathy_entries(path, document, pictures=pictures, problems=problems)
    for delimiter in ",;\t":
        columns = {column.strip(' "').lower() for column in header.split(delimiter)}
        if {"image", "caption"} <= columns:
            return table_entries(path, text, delimiter=delimiter, problems=problems)
    if path.suffix.lower() == ".csv":
        raise _wrong_columns(f"{path}, line 1", header)
    if "\t" in header:
        return token_entries(path, text, problems=problems)
    raise UserError(
        f"{path}, line 1: {shown(header)} is no format of captions; expected a CSV header "
        "`image,caption[,split]`, JSON lines with these keys, a Flickr token file "
        "`name.jpg#0<TAB>caption`, Karpathy's JSON or COCO's captions JSON."
    )


def table_entries(path: Path, text: str, *, delimiter: str, problems: list[str]) -> Iterator[Entry]:
    """CSV with a header of image, caption and perhaps split, in any order."""
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    columns: list[str] = []
    began = 1  # a row has several lines where a cell in quotes has
    try:
        for row in rows:
            place = f"{path}, line {began}"
            began = rows.line_num + 1
            if not any(cell.strip() for cell in row):
                continue
            if not columns:
                columns = _read_header(place, row)
            elif len(row) == len(columns):
                entry = _entry_from_fields(place, dict(zip(columns, row, strict=True)), problems)
                if entry is not None:
                    yield entry
            else:
                problems.append(
                    f"{place}: {len(row)} cells where the header has {len(columns)}; "
                    f"put captions that contain {delimiter!r} in double quotes."
                )
    except csv.Error as error:
        problems.append(
            f"{path}, line {began}: no valid CSV ({error}); "
            "expected every double quote of the row that begins here to be closed."
        )


def json_line_entries(path: Path, text: str, *, problems: list[str]) -> Iterator[Entry]:
    """One JSON object with image, caption and perhaps split a line."""
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        place = f"{path}, line {number}"
        try:
            fields = parse_json(line, object_pairs_hook=_without_repeats)
        except ValueError as error:
            problems.append(f"{place}: no valid JSON ({error}); expected one object a line.")
            continue
        if not isinstance(fields, dict):
            problems.append(
                f"{place}: {line.strip()[:CHARACTERS_SHOWN]} is no JSON object; "
                "expected one with image and caption."
            )
        elif entry := _entry_from_fields(place, fields, problems):
            yield entry


def token_entries(path: Path, text: str, *, problems: list[str]) -> Iterator[Entry]:
    """Flickr's `name.jpg#k<TAB>caption`; the `#k` may be missing."""
    for number, line in enumerate(text.split("\n"), start=1):
        place = f"{path}, line {number}"
        key, tab, caption = line.strip("\r").partition("\t")
        name, mark, position = key.rpartition("#")
        counted = bool(mark) and position.isdecimal()
        image = normal_name(name if counted else key)
        if tab and image:
            caption_id = key.strip() if counted else None
            yield Entry(place, image, normal_caption(caption), caption_id=caption_id)
        elif line.strip():
            problems.append(f"{place}: {shown(line)}; expected a picture name, a tab, a caption.")


def karpathy_entries(
    path: Path, document: dict[str, Any], *, pictures: Path, problems: list[str]
) -> Iterator[Entry]:
    """Karpathy's splits: images with their sentences; `cocoid` and `sentid` stay the ids."""
    seen: dict[str, str] = {}
    for number, image in enumerate(document["images"]):
        place = f"{path}, images[{number}]"
        wrong = wrong_fields(place, image, filename="name", split="text", sentences="list")
        wrong = wrong or wrong_fields(place, image, filepath="text?", cocoid="id?")
        if wrong:
            problems += wrong
            continue
        name = normal_name(image["filename"])
        folder = image.get("filepath")
        if folder and (is_folder(pictures / folder) or not is_file(pictures / name)):
            name = normal_name(f"{folder}/{name}")
        if not image["sentences"]:
            problems.append(f"{place}: {name} has no sentences; expected at least one.")
        _note_repeat(seen, name, place=place, problems=problems)
        for k, sentence in enumerate(image["sentences"]):
            inner = f"{place}.sentences[{k}]"
            if wrong := wrong_fields(inner, sentence, raw="text?", tokens="tokens?", sentid="id?"):
                problems += wrong
                continue
            yield Entry(
                inner,
                name,
                normal_caption(sentence.get("raw") or " ".join(sentence.get("tokens") or ())),
                split=image["split"],
                image_id=_optional_id(image.get("cocoid")),
                caption_id=_optional_id(sentence.get("sentid")),
            )


def coco_entries(path: Path, document: dict[str, Any], *, problems: list[str]) -> Iterator[Entry]:
    """COCO's captions: images by id, perhaps with a split, and annotations that refer to them."""
    if wrong := wrong_fields(str(path), document, annotations="list"):
        raise UserError(*wrong)
    names: dict[str, str] = {}
    splits: dict[str, str | None] = {}
    seen_ids: dict[str, str] = {}
    seen_names: dict[str, str] = {}
    for number, image in enumerate(document["images"]):
        place = f"{path}, images[{number}]"
        if wrong := wrong_fields(place, image, id="id", file_name="name", split="text?"):
            problems += wrong
            continue
        image_id, name = str(image["id"]), normal_name(image["file_name"])
        _note_repeat(seen_ids, image_id, place=place, problems=problems)
        _note_repeat(seen_names, name, place=place, problems=problems)
        names.setdefault(image_id, name)
        splits.setdefault(image_id, (image.get("split") or "").strip() or None)
    described: set[str] = set()
    for number, annotation in enumerate(document["annotations"]):
        place = f"{path}, annotations[{number}]"
        if wrong := wrong_fields(place, annotation, image_id="id", id="id?"):
            problems += wrong
            continue
        image_id = str(annotation["image_id"])
        described.add(image_id)
        if image_id not in names:
            problems.append(
                f"{place}: the image {image_id} is not among the readable images of the file; "
                "expected the id of one."
            )
        elif wrong := wrong_fields(place, annotation, caption="text"):
            problems += wrong
        else:
            yield Entry(
                place,
                names[image_id],
                normal_caption(annotation["caption"]),
                split=splits[image_id],
                image_id=image_id,
                caption_id=_optional_id(annotation.get("id")),
            )
    problems += [
        f"{path}: the image {image_id} ({name}) has no annotation; expected at least one."
        for image_id, name in names.items()
        if image_id not in described
    ]


# Files


def read_text(path: Path) -> str:
    """A whole UTF-8 file, with or without a byte order mark; what is no text is named by line."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(
            f"{path} cannot be read ({error.strerror}); expected a text file."
        ) from error
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UserError(
            f"{path}, line {line}: byte 0x{content[error.start]:02x} is no UTF-8; "
            "save the file as UTF-8."
        ) from error
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise UserError(f"{path}, line {line}: byte 0x00 is no text; save the file as UTF-8.")
    return text


def read_lines(path: Path) -> list[str]:
    """The lines of a UTF-8 file without their ends; a final line end begins no line."""
    lines = [line.strip() for line in read_text(path).split("\n")]
    return lines[:-1] if not lines[-1] else lines


def is_file(path: Path) -> bool:
    """Whether there is a file; never is one where the name is too long for any."""
    return _is_there(path) and path.is_file()


def is_folder(path: Path) -> bool:
    return _is_there(path) and path.is_dir()


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def parse_json(text: str, *, object_pairs_hook: Callable[..., Any] | None = None) -> Any:
    """JSON of which every fault is a `ValueError`, those of hostile files included."""
    try:
        return json.loads(text, object_pairs_hook=object_pairs_hook, parse_int=_parse_int)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def json_fault(path: Path, error: ValueError) -> str:
    """Where and why a document is no JSON, to begin a sentence with."""
    if isinstance(error, json.JSONDecodeError):
        return f"{path}, line {error.lineno}: no valid JSON ({error.msg})"
    return f"{path}: no valid JSON ({error})"


# Values


def wrong_fields(place: str, item: object, /, **kinds: str) -> list[str]:
    """What keeps a JSON object from having fields of these `KINDS`; with a `?`, it may be null."""
    if not isinstance(item, dict):
        return [f"{place}: {shown(item)} is no JSON object; expected one."]
    wrong: list[str] = []
    for field, kind in kinds.items():
        value = item.get(field)
        fits, expected = KINDS[kind.rstrip("?")]
        if not (fits(value) or (value is None and kind.endswith("?"))):
            wrong.append(f"{place}: {field} is {shown(value)}; expected {expected}.")
    return wrong


def is_text(value: object) -> TypeGuard[str]:
    """A string that a file can hold: the escapes of JSON also spell halves of characters."""
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
    """A value as a sentence can quote it: short, however long or deep it is."""
    return _shortener.repr(value)


def normal_name(name: str) -> str:
    return PurePosixPath(name.strip()).as_posix() if name.strip() else ""


def normal_caption(caption: str) -> str:
    return " ".join(caption.split())


def is_byte_string(caption: str) -> bool:
    """Whether a caption is Python's spelling of bytes, of which a model learns the b and quotes.

    >>> is_byte_string("b'a dog'"), is_byte_string("a dog")
    (True, False)
    """
    return _BYTE_STRING.fullmatch(caption) is not None


def byte_string_problems(captions: Iterable[tuple[str, str]]) -> list[str]:
    """One sentence about all captions, each with its place, that are byte strings."""
    found = [(place, caption) for place, caption in captions if is_byte_string(caption)]
    if not found:
        return []
    place, caption = found[0]
    return [
        f"{place}: the caption {shown(caption)} is a byte string, {len(found):,} such captions in "
        "all; expected text: decode captions before they are written, in Python with "
        "caption.decode()."
    ]


def _entry_from_fields(place: str, fields: dict[str, Any], problems: list[str]) -> Entry | None:
    if wrong := wrong_fields(place, fields, image="name", caption="text", split="text?"):
        problems += wrong
        return None
    image, caption = normal_name(fields["image"]), normal_caption(fields["caption"])
    return Entry(place, image, caption, split=(fields.get("split") or "").strip() or None)


def _read_header(place: str, row: Sequence[str]) -> list[str]:
    columns = [column.strip().lower() for column in row]
    for column in ("image", "caption", "split"):
        if columns.count(column) > 1:
            raise UserError(f"{place}: the column {column} is there twice; expected once.")
    if not {"image", "caption"} <= set(columns):
        raise _wrong_columns(place, ",".join(row))
    return columns


def _wrong_columns(place: str, header: str) -> UserError:
    return UserError(
        f"{place}: the columns are {shown(header)}; "
        "expected a header with image and caption, and split if there is one."
    )


def _parse_document(path: Path, text: str) -> dict[str, Any] | None:
    """A JSON document with images, or nothing where the file holds JSON lines."""
    try:
        document: dict[str, Any] = parse_json(text)
    except ValueError as error:
        several = isinstance(error, json.JSONDecodeError) and error.msg.startswith("Extra data")
        if path.suffix.lower() == ".json" and not several:
            raise UserError(
                f"{json_fault(path, error)}; expected Karpathy's JSON or COCO's captions JSON."
            ) from error
        return None
    if not document.keys() & {"images", "annotations"}:
        return None
    if wrong := wrong_fields(str(path), document, images="list"):
        raise UserError(*wrong)
    return document


def _note_repeat(seen: dict[str, str], key: str, *, place: str, problems: list[str]) -> None:
    first = seen.setdefault(key, place)
    if first != place:
        problems.append(f"{place}: {key} is there already as {first}; expected once.")


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("a key is there twice")
    return fields


def _parse_int(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise ValueError(f"a number has {len(digits):,} digits")
    return int(digits)


def _optional_id(value: object) -> str | None:
    return None if value is None else str(value)
