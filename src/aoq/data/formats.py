"""The pictures and captions that people bring, read into one form: a `Record` an image.

Recognised by their content: a table (CSV) or JSON lines of `image, caption[, split]`, a Flickr
token file, Karpathy's JSON and COCO's captions JSON. Each reader only turns its file into
`Entry`s, one a caption; what makes a source sound (every picture there, every image in one
split, no empty caption) is checked once for all of them. A source is read to its end before it
is refused, so that one report names everything there is to mend.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from aoq.errors import UserError
from aoq.progress import warn
from aoq.types import Split

PROBLEMS_SHOWN = 20
PICTURE_SUFFIXES = {".jpg", ".jpeg", ".png", ".gif", ".webp", ".bmp", ".tif", ".tiff"}
SPLIT_NAMES: dict[str, Split] = {
    "train": "train",
    "restval": "train",
    "dev": "dev",
    "val": "dev",
    "valid": "dev",
    "validation": "dev",
    "test": "test",
}


@dataclass(frozen=True)
class Record:
    """One image: where its picture is, which split it is in and what is said about it."""

    image_id: str
    picture: Path
    split: str
    captions: tuple[str, ...]
    caption_ids: tuple[str, ...]


@dataclass(frozen=True)
class Entry:
    """One caption as its file gives it, with the place for whoever has to mend it."""

    place: str
    image: str
    caption: str
    split: str | None = None
    image_id: str | None = None
    caption_id: str | None = None


@dataclass(frozen=True)
class Claim:
    """Somebody says that an image is in a split: a line of the captions or of a split list."""

    place: str
    image: str
    split: str


def read_records(
    captions_file: Path, *, pictures: Path, splits: Path | None = None
) -> list[Record]:
    """All images of a source, in the order of its captions file.

    `splits` is a folder with train.txt, dev.txt and test.txt, a picture name a line; pictures in
    none of them are left out. Otherwise the captions file names the split of an image, and
    images without one are shared out by `rank_into_splits`.
    """
    if not pictures.is_dir():
        raise UserError(f"{pictures} is no folder; name the folder that holds the pictures.")
    problems: list[str] = []
    images: dict[str, list[Entry]] = {}
    claims: list[Claim] = []
    for entry in read_entries(captions_file, pictures=pictures, problems=problems):
        images.setdefault(entry.image, []).append(entry)
        if entry.split:
            claims.append(Claim(entry.place, entry.image, entry.split))
    if splits is None:
        unmentioned = sorted(_picture_names(pictures) - set(images))
        _warn_left_out(unmentioned, f"have no caption in {captions_file}")
    else:
        listed = read_split_lists(splits)
        claims += listed
        problems += [
            f"{claim.place}: {claim.image} has no caption in {captions_file}; expected one or more."
            for claim in listed
            if claim.image not in images
        ]
        names = {claim.image for claim in listed}
        _warn_left_out(
            [name for name in images if name not in names], f"are in no list of {splits}"
        )
        images = {name: entries for name, entries in images.items() if name in names}
    split_of = settle_splits(claims, problems)
    split_of |= rank_into_splits([name for name in images if name not in split_of])
    records = _to_records(images, pictures=pictures, split_of=split_of, problems=problems)
    raise_problems(problems)
    if not records:
        raise UserError(f"{captions_file} holds no captions; expected at least one.")
    return records


def _to_records(
    images: dict[str, list[Entry]],
    *,
    pictures: Path,
    split_of: dict[str, Split],
    problems: list[str],
) -> list[Record]:
    """Join what belongs to an image, and note what is wrong with it."""
    records: list[Record] = []
    taken: dict[tuple[str, str], str] = {}
    for name, entries in images.items():
        problems += [
            f"{entry.place}: the caption of {name} is empty; write one or remove the line."
            for entry in entries
            if not entry.caption
        ]
        path, place = PurePosixPath(name), entries[0].place
        if path.is_absolute() or ".." in path.parts:
            problems.append(f"{place}: {name} leads out of {pictures}; expected a path inside it.")
        elif not (pictures / path).is_file():
            problems.append(f"{place}: the picture {name} is not in {pictures}.")
        record = Record(
            image_id=entries[0].image_id or name,
            picture=pictures / path,
            split=split_of[name],
            captions=tuple(entry.caption for entry in entries),
            caption_ids=tuple(e.caption_id or f"{name}#{k}" for k, e in enumerate(entries)),
        )
        ids = [("image", record.image_id, place)]
        ids += [("caption", i, e.place) for i, e in zip(record.caption_ids, entries, strict=True)]
        for kind, identifier, where in ids:
            first = taken.setdefault((kind, identifier), where)
            if first is not where:
                problems.append(
                    f"{where}: the {kind} id {identifier} is taken by {first}; ids must differ."
                )
        records.append(record)
    return records


# Splits


def read_split_lists(folder: Path) -> list[Claim]:
    """The picture names of train.txt, dev.txt (or val.txt) and test.txt."""
    files = [folder / f"{name}.txt" for name in SPLIT_NAMES if (folder / f"{name}.txt").is_file()]
    if not files:
        raise UserError(f"{folder} holds no train.txt, dev.txt or test.txt; name the split lists.")
    return [
        Claim(f"{file}, line {number}", _normal_name(line), file.stem)
        for file in files
        for number, line in enumerate(read_lines(file), start=1)
        if line
    ]


def settle_splits(claims: Iterable[Claim], problems: list[str]) -> dict[str, Split]:
    """The one split of every image that has a claim."""
    settled: dict[str, Split] = {}
    first: dict[str, Claim] = {}
    for claim in claims:
        split = SPLIT_NAMES.get(claim.split.strip().lower())
        if split is None:
            problems.append(
                f"{claim.place}: the split {claim.split!r} is unknown; "
                "expected train, dev (or val) or test."
            )
        elif settled.setdefault(claim.image, split) != split:
            problems.append(
                f"{claim.place}: {claim.image} is in {split} here and in "
                f"{settled[claim.image]} at {first[claim.image].place}; an image has one split."
            )
        first.setdefault(claim.image, claim)
    return settled


def rank_into_splits(names: Sequence[str], *, seed: int = 0) -> dict[str, Split]:
    """80 / 10 / 10 percent of the images, ranked by a hash of their names.

    The order of the file does not matter, and three images are enough to fill every split.
    """
    ranked = sorted(names, key=lambda name: hashlib.sha256(f"{seed}:{name}".encode()).digest())
    share = max(1, round(len(ranked) / 10)) if len(ranked) >= 3 else 0
    held_out: dict[str, Split] = dict.fromkeys(ranked[:share], "test")
    held_out |= dict.fromkeys(ranked[share : 2 * share], "dev")
    return {name: held_out.get(name, "train") for name in names}


# Readers, one a format


def read_entries(path: Path, *, pictures: Path, problems: list[str]) -> Iterator[Entry]:
    """Every caption of a file in any of the formats, recognised by its content."""
    text = read_text(path)
    header = text.lstrip().partition("\n")[0].strip()
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
        raise UserError(
            f"{path}, line 1: the columns are {header!r}; "
            "expected a header with image and caption, and split if there is one."
        )
    if "\t" in header:
        return token_entries(path, text, problems=problems)
    raise UserError(
        f"{path}, line 1: {header[:60]!r} is no format of captions; expected a CSV header "
        "`image,caption[,split]`, JSON lines with these keys, a Flickr token file "
        "`name.jpg#0<TAB>caption`, Karpathy's JSON or COCO's captions JSON."
    )


def table_entries(path: Path, text: str, *, delimiter: str, problems: list[str]) -> Iterator[Entry]:
    """CSV with a header of image, caption and perhaps split, in any order."""
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    columns = [column.strip().lower() for column in next(rows)]
    for column in ("image", "caption", "split"):
        if columns.count(column) > 1:
            raise UserError(f"{path}, line 1: the column {column} is there twice; expected once.")
    try:
        for row in rows:
            place = f"{path}, line {rows.line_num}"
            if len(row) == len(columns):
                entry = _entry_from_fields(place, dict(zip(columns, row, strict=True)), problems)
                if entry is not None:
                    yield entry
            elif row:
                problems.append(
                    f"{place}: {len(row)} cells where the header has {len(columns)}; "
                    f"put captions that contain {delimiter!r} in double quotes."
                )
    except csv.Error as error:
        problems.append(f"{path}, line {rows.line_num}: no valid CSV ({error}).")


def json_line_entries(path: Path, text: str, *, problems: list[str]) -> Iterator[Entry]:
    """One JSON object with image, caption and perhaps split a line."""
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        place = f"{path}, line {number}"
        try:
            fields = json.loads(line, object_pairs_hook=_without_repeats)
        except ValueError as error:
            problems.append(f"{place}: no valid JSON ({error}); expected one object a line.")
            continue
        if not isinstance(fields, dict):
            problems.append(
                f"{place}: {line.strip()[:60]} is no JSON object with image and caption."
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
        image = _normal_name(name if counted else key)
        if tab and image:
            caption_id = key.strip() if counted else None
            yield Entry(place, image, _normal_caption(caption), caption_id=caption_id)
        elif line.strip():
            problems.append(f"{place}: {line[:60]!r}; expected a picture name, a tab, a caption.")


def karpathy_entries(
    path: Path, document: dict[str, Any], *, pictures: Path, problems: list[str]
) -> Iterator[Entry]:
    """Karpathy's splits: images with their sentences; `cocoid` and `sentid` stay the ids."""
    seen: dict[str, str] = {}
    for number, image in enumerate(document["images"]):
        place = f"{path}, images[{number}]"
        try:
            inside = image.get("filepath") or ""
            folder = inside if (pictures / inside).is_dir() else ""
            name = _normal_name(f"{folder}/{image['filename']}" if folder else image["filename"])
            entries = [
                Entry(
                    f"{place}.sentences[{k}]",
                    name,
                    _normal_caption(sentence.get("raw") or " ".join(sentence["tokens"])),
                    split=image["split"],
                    image_id=_optional_id(image.get("cocoid")),
                    caption_id=_optional_id(sentence.get("sentid")),
                )
                for k, sentence in enumerate(image["sentences"])
            ]
        except (KeyError, TypeError, AttributeError) as error:
            problems.append(
                f"{place}: cannot be read ({error!r}); "
                "expected filename, split and sentences with raw or tokens."
            )
            continue
        if not entries:
            problems.append(f"{place}: {name} has no sentences; expected at least one.")
        if seen.setdefault(name, place) != place:
            problems.append(f"{place}: {name} is there already as {seen[name]}; expected once.")
        yield from entries


def coco_entries(path: Path, document: dict[str, Any], *, problems: list[str]) -> Iterator[Entry]:
    """COCO's captions: images by id, and annotations that refer to them."""
    try:
        names = {image["id"]: _normal_name(image["file_name"]) for image in document["images"]}
        annotations = [(a["image_id"], a["caption"], a.get("id")) for a in document["annotations"]]
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{path}: cannot be read ({error!r}); expected images with id and file_name, "
            "and annotations with image_id and caption."
        ) from error
    described = {image_id for image_id, _, _ in annotations}
    problems += [
        f"{path}: the image {image_id} ({name}) has no annotation; expected at least one."
        for image_id, name in names.items()
        if image_id not in described
    ]
    for number, (image_id, caption, caption_id) in enumerate(annotations):
        place = f"{path}, annotations[{number}]"
        if image_id not in names:
            problems.append(f"{place}: the image {image_id} is not among the images of the file.")
            continue
        yield Entry(
            place,
            names[image_id],
            _normal_caption(str(caption)),
            image_id=str(image_id),
            caption_id=_optional_id(caption_id),
        )


# Small parts


def read_text(path: Path) -> str:
    """A whole UTF-8 file; a byte that is none is named by its line."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(
            f"{path} cannot be read ({error.strerror}); expected a text file."
        ) from error
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UserError(
            f"{path}, line {line}: byte 0x{content[error.start]:02x} is no UTF-8; "
            "save the file as UTF-8."
        ) from error


def read_lines(path: Path) -> list[str]:
    """The lines of a UTF-8 file without their ends; a final line end begins no line."""
    lines = [line.strip() for line in read_text(path).split("\n")]
    return lines[:-1] if not lines[-1] else lines


def raise_problems(problems: Sequence[str]) -> None:
    """Refuse with every problem in one report, the first of them in full."""
    more = len(problems) - PROBLEMS_SHOWN
    if problems:
        rest = [f"and {more:,} more."] if more > 0 else []
        raise UserError(*problems[:PROBLEMS_SHOWN], *rest)


def _entry_from_fields(place: str, fields: dict[str, Any], problems: list[str]) -> Entry | None:
    for key in ("image", "caption"):
        if not isinstance(fields.get(key), str) or (key == "image" and not fields[key].strip()):
            problems.append(f"{place}: {key} is {fields.get(key)!r}; expected text.")
            return None
    split = fields.get("split")
    image, caption = _normal_name(fields["image"]), _normal_caption(fields["caption"])
    return Entry(place, image, caption, split=str(split).strip() if split else None)


def _parse_document(path: Path, text: str) -> dict[str, Any] | None:
    """A JSON document with images, or nothing where the file holds JSON lines."""
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        if path.suffix.lower() == ".json" and not error.msg.startswith("Extra data"):
            raise UserError(f"{path}, line {error.lineno}: no valid JSON ({error.msg}).") from error
        return None
    return document if isinstance(document.get("images"), list) else None


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("a key is there twice")
    return fields


def _normal_name(name: str) -> str:
    return PurePosixPath(name.strip()).as_posix() if name.strip() else ""


def _normal_caption(caption: str) -> str:
    return " ".join(caption.split())


def _optional_id(value: object) -> str | None:
    return None if value is None else str(value)


def _picture_names(folder: Path) -> set[str]:
    files = (path for path in folder.rglob("*") if path.suffix.lower() in PICTURE_SUFFIXES)
    return {path.relative_to(folder).as_posix() for path in files}


def _warn_left_out(names: Sequence[str], reason: str) -> None:
    if names:
        warn(f"{len(names):,} pictures {reason} and are left out, the first is {names[0]}.")
