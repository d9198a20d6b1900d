"""Captions files, one reader per format: every caption becomes an `Entry`.

Formats are recognised by content: a table (CSV) or JSON lines of `image, caption[, split]`, a
Flickr token file, Karpathy's JSON and COCO's captions JSON. A reader trusts nothing: a value that
is not the expected text or id becomes a sentence among the `problems`, with its place, and the
reader goes on, so that one report lists everything to fix. `aoq.data.sources.records` then checks
whether the entries form a valid source.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aoq.errors import UserError
from aoq.parsing import (
    CHARACTERS_SHOWN,
    is_file,
    is_folder,
    json_fault,
    normal_caption,
    normal_name,
    parse_json,
    read_text,
    shown,
    wrong_fields,
)

_OWN_COLUMNS = ("image", "caption", "split")


@dataclass(frozen=True)
class Entry:
    """One caption as its file states it, with its place for error messages."""

    place: str
    image: str
    caption: str
    split: str | None = None
    image_id: str | None = None
    caption_id: str | None = None
    columns: Mapping[str, Any] = field(default_factory=dict)
    "What else a table or JSON lines say of it, by the name of the column."


def read_entries(path: Path, *, pictures: Path, problems: list[str]) -> Iterator[Entry]:
    """Read every caption of a file in any of the formats, recognised by content."""
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
        f"{path}, line 1: {shown(header)} is not a format of captions; expected a CSV header "
        "`image,caption[,split]`, JSON lines with these keys, a Flickr token file "
        "`name.jpg#0<TAB>caption`, Karpathy's JSON or COCO's captions JSON."
    )


def table_entries(path: Path, text: str, *, delimiter: str, problems: list[str]) -> Iterator[Entry]:
    """Read a CSV file with a header of image, caption and perhaps split, in any order."""
    columns: list[str] = []
    for place, row in _rows(path, text, delimiter=delimiter, problems=problems):
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


def _rows(
    path: Path, text: str, *, delimiter: str, problems: list[str]
) -> Iterator[tuple[str, list[str]]]:
    """Yield the readable rows of a table, each with its place; a row may span several lines."""
    rows = csv.reader(
        io.StringIO(text, newline=""), delimiter=delimiter, strict=True, skipinitialspace=True
    )
    while True:
        place = f"{path}, line {rows.line_num + 1}"
        try:
            yield place, next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            problems.append(
                f"{place}: not valid CSV ({error}); expected double quotes around whole cells, "
                'each closed, and those inside of a cell doubled ("").'
            )


def json_line_entries(path: Path, text: str, *, problems: list[str]) -> Iterator[Entry]:
    """Read one JSON object with image, caption and perhaps split per line."""
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        place = f"{path}, line {number}"
        try:
            fields = parse_json(line, object_pairs_hook=_without_repeats)
        except ValueError as error:
            problems.append(f"{place}: not valid JSON ({error}); expected one object per line.")
            continue
        if not isinstance(fields, dict):
            problems.append(
                f"{place}: {line.strip()[:CHARACTERS_SHOWN]} is not a JSON object; "
                "expected one with image and caption."
            )
        elif entry := _entry_from_fields(place, fields, problems):
            yield entry


def token_entries(path: Path, text: str, *, problems: list[str]) -> Iterator[Entry]:
    """Read Flickr's `name.jpg#k<TAB>caption`; the `#k` may be missing."""
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
    """Read Karpathy's splits: images with their sentences; `cocoid` and `sentid` stay the ids."""
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
    """Read COCO's captions: images by id, perhaps with a split, and annotations for them."""
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


def _entry_from_fields(place: str, fields: dict[str, Any], problems: list[str]) -> Entry | None:
    if wrong := wrong_fields(place, fields, image="name", caption="text", split="text?"):
        problems += wrong
        return None
    image, caption = normal_name(fields["image"]), normal_caption(fields["caption"])
    split = (fields.get("split") or "").strip() or None
    others = {name: value for name, value in fields.items() if name not in _OWN_COLUMNS}
    return Entry(place, image, caption, split=split, columns=others)


def _read_header(place: str, row: Sequence[str]) -> list[str]:
    columns = [column.strip().lower() for column in row]
    for column in ("image", "caption", "split"):
        if columns.count(column) > 1:
            raise UserError(f"{place}: the column {column} occurs twice; expected once.")
    if not {"image", "caption"} <= set(columns):
        raise _wrong_columns(place, ",".join(row))
    return columns


def _wrong_columns(place: str, header: str) -> UserError:
    return UserError(
        f"{place}: the columns are {shown(header)}; "
        "expected a header with image and caption, and split if there is one."
    )


def _parse_document(path: Path, text: str) -> dict[str, Any] | None:
    """Parse a JSON document with images; None if the file holds JSON lines."""
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
        problems.append(f"{place}: {key} is already used as {first}; expected once.")


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("a key occurs twice")
    return fields


def _optional_id(value: object) -> str | None:
    return None if value is None else str(value)
