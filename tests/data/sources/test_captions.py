"""Single formats, and hostile files in each: an entry a caption, or a sentence with its place."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aoq.data.sources.captions import read_entries
from aoq.errors import UserError
from aoq.parsing import read_lines, read_text, shown

LINE = {"image": "a.jpg", "caption": "a cat", "split": "train"}
KARPATHY = {
    "images": [
        {
            "filename": "a.jpg",
            "filepath": "val",
            "split": "train",
            "cocoid": 1,
            "sentences": [{"raw": "a cat", "tokens": ["a", "cat"], "sentid": 2}],
        }
    ]
}
COCO = {
    "images": [{"id": 1, "file_name": "a.jpg"}],
    "annotations": [{"image_id": 1, "id": 2, "caption": "a cat"}],
}


def read(folder: Path, name: str, content: str | bytes) -> tuple[list[str], list[str]]:
    """The captions of a file, and what is wrong with it."""
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    problems: list[str] = []
    try:
        entries = list(read_entries(path, pictures=folder, problems=problems))
    except UserError as error:
        return [], [*problems, *error.problems]
    return [entry.caption for entry in entries], problems


def places(value: Any, *path: str | int) -> Iterator[tuple[str | int, ...]]:
    """The way to every value inside a JSON document."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in items:
        yield (*path, key)
        if isinstance(inner, dict | list):
            yield from places(inner, *path, key)


def changed(document: Any, path: tuple[str | int, ...], value: object) -> Any:
    document = copy.deepcopy(document)
    inner = document
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return document


FAULTS: dict[str, tuple[str, str | bytes, str]] = {
    "an empty table": ("x.csv", "", "x.csv is empty; expected captions"),
    "blank lines only": ("x.csv", " \r\n\n", "x.csv is empty; expected captions"),
    "an open quote in the header": (
        "x.csv",
        'image,"caption\na.jpg,a cat\n',
        "x.csv, line 1: not valid CSV (unexpected end of data); expected double quotes",
    ),
    "a header in one pair of quotes": (
        "x.csv",
        '"image,caption"\n',
        "x.csv, line 1: the columns are 'image,caption'; expected a header with image and caption",
    ),
    "an open quote before many lines": (
        "x.csv",
        'image,caption\na.jpg,"a\ncat"\nb.jpg,"a dog\n' + "c.jpg,a cow\n" * 5,
        "x.csv, line 4: not valid CSV (unexpected end of data)",
    ),
    "a row of several lines": (
        "x.csv",
        'image,caption\na.jpg,"a\ncat",train\n',
        "x.csv, line 2: 3 cells where the header has 2",
    ),
    "an endless cell": ("x.csv", 'image,caption\na.jpg,"' + "x" * 200_000, "line 2: not valid CSV"),
    "a NUL byte": (
        "x.csv",
        "image,caption\na.jpg,a\0cat\n",
        "x.csv, line 2: byte 0x00 is not text",
    ),
    "UTF-16": (
        "x.csv",
        "image,caption\n".encode("utf-16"),
        "x.csv, line 1: byte 0xff is not UTF-8",
    ),
    "an image that is a number": (
        "x.jsonl",
        '{"image": 3, "caption": "a cat"}',
        "x.jsonl, line 1: image is 3; expected the name of a picture",
    ),
    "a caption that is a list": (
        "x.jsonl",
        '{"image": "a.jpg", "caption": ["a cat"]}',
        "x.jsonl, line 1: caption is ['a cat']; expected text",
    ),
    "a split of a line that is false": (
        "x.jsonl",
        '{"image": "a.jpg", "caption": "a cat", "split": false}',
        "x.jsonl, line 1: split is False; expected text",
    ),
    "half a character": (
        "x.jsonl",
        '{"image": "a.jpg", "caption": "\\ud800"}',
        "x.jsonl, line 1: caption is '\\ud800'; expected text",
    ),
    "a later line that is no object": (
        "x.jsonl",
        json.dumps(LINE) + "\n3\n",
        "x.jsonl, line 2: 3 is not a JSON object; expected one with image and caption",
    ),
    "a first line that is no object": (
        "x.jsonl",
        "[1]\n",
        "x.jsonl, line 1: '[1]' is not a format",
    ),
    "a deep line": (
        "x.jsonl",
        json.dumps(LINE) + '\n{"image": ' + "[" * 100_000,
        "x.jsonl, line 2: not valid JSON (it is nested too deeply)",
    ),
    "a huge number": (
        "x.jsonl",
        '{"image": ' + "9" * 5000 + "}",
        "x.jsonl, line 1: not valid JSON (a number has 5,000 digits)",
    ),
    "a deep document": (
        "x.json",
        '{"images": ' + "[" * 100_000,
        "x.json: not valid JSON (it is nested too deeply)",
    ),
    "images that are no list": ("x.json", '{"images": 3}', "x.json: images is 3; expected a list"),
    "an image that is null": (
        "x.json",
        '{"images": [null]}',
        "x.json, images[0]: None is not a JSON object",
    ),
    "an image id twice": (
        "x.json",
        json.dumps(changed(COCO, ("images",), [{"id": 1, "file_name": n} for n in "ab"])),
        "x.json, images[1]: 1 is already used as",
    ),
}
FIELDS: list[tuple[Any, tuple[str | int, ...], object, str]] = [
    (KARPATHY, ("images", 0, "split"), 3, "images[0]: split is 3; expected text"),
    (KARPATHY, ("images", 0, "filename"), " ", "images[0]: filename is ' '; expected the name"),
    (KARPATHY, ("images", 0, "filepath"), 3, "images[0]: filepath is 3; expected text"),
    (KARPATHY, ("images", 0, "cocoid"), [1], "images[0]: cocoid is [1]; expected a whole number"),
    (KARPATHY, ("images", 0, "sentences"), "a cat", "images[0]: sentences is 'a cat'; expected a"),
    (KARPATHY, ("images", 0, "sentences"), {"raw": 1}, "sentences is {'raw': 1}; expected a list"),
    (
        KARPATHY,
        ("images", 0, "sentences", 0),
        "a",
        "images[0].sentences[0]: 'a' is not a JSON object",
    ),
    (KARPATHY, ("images", 0, "sentences", 0, "raw"), 3, "images[0].sentences[0]: raw is 3"),
    (KARPATHY, ("images", 0, "sentences", 0, "tokens"), "cat", "tokens is 'cat'; expected a list"),
    (COCO, ("images", 0, "id"), [1], "images[0]: id is [1]; expected a whole number or text"),
    (COCO, ("images", 0, "id"), True, "images[0]: id is True; expected a whole number or text"),
    (COCO, ("images", 0, "file_name"), 3, "images[0]: file_name is 3; expected the name"),
    (COCO, ("images", 0, "split"), 3, "images[0]: split is 3; expected text"),
    (COCO, ("annotations",), {}, "annotations is {}; expected a list"),
    (COCO, ("annotations", 0), None, "annotations[0]: None is not a JSON object"),
    (COCO, ("annotations", 0, "image_id"), [1], "annotations[0]: image_id is [1]; expected a"),
    (COCO, ("annotations", 0, "id"), {}, "annotations[0]: id is {}; expected a whole number"),
    (COCO, ("annotations", 0, "caption"), None, "annotations[0]: caption is None; expected text"),
]


@pytest.mark.parametrize("case", FAULTS)
def test_a_hostile_file_is_refused_with_a_sentence(tmp_path: Path, case: str) -> None:
    name, content, sentence = FAULTS[case]
    assert sentence in "\n".join(read(tmp_path, name, content)[1])


@pytest.mark.parametrize(("document", "path", "value", "sentence"), FIELDS)
def test_a_field_of_another_kind_is_refused_with_its_place(
    tmp_path: Path, document: Any, path: tuple[str | int, ...], value: object, sentence: str
) -> None:
    problems = read(tmp_path, "x.json", json.dumps(changed(document, path, value)))[1]
    assert sentence in "\n".join(problems)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data(), value=JSON, document=st.sampled_from([KARPATHY, COCO, LINE]))
def test_any_value_anywhere_gives_captions_or_sentences(
    tmp_path: Path, data: st.DataObject, value: object, document: Any
) -> None:
    path = data.draw(st.sampled_from(list(places(document))))
    captions, problems = read(tmp_path, "x.json", json.dumps(changed(document, path, value)))
    assert captions or problems or path[-1] in ("images", "annotations", "sentences")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(content=st.binary(max_size=60), start=st.sampled_from([b"", b"image,caption\n", b"a.jpg\t"]))
def test_any_bytes_give_captions_or_sentences(tmp_path: Path, content: bytes, start: bytes) -> None:
    read(tmp_path, "x.txt", start + content)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.csv", "image,caption\na.jpg,a cat\n"),
        ("x.csv", "\n\nimage,caption\n\na.jpg,a cat\n,\n"),
        ("x.jsonl", json.dumps(LINE)),
        ("x.json", json.dumps(KARPATHY)),
        ("x.json", json.dumps(COCO)),
        ("x.token", "a.jpg#0\ta cat"),
    ],
)
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_a_byte_order_mark_is_accepted(tmp_path: Path, name: str, content: str, mark: str) -> None:
    assert read(tmp_path, name, mark + content) == (["a cat"], [])


def test_line_ends_of_old_macs_are_line_ends(tmp_path: Path) -> None:
    assert read(tmp_path, "x.token", "a.jpg\ta cat\ra.jpg\ta dog\r") == (["a cat", "a dog"], [])


def test_lines_are_read_without_their_ends(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"\xef\xbb\xbfone\r\n two\n\n")
    assert read_lines(tmp_path / "x") == ["one", "two", ""]
    with pytest.raises(UserError, match="cannot be read"):
        read_text(tmp_path)


def test_a_quoted_value_is_short_however_long_it_is() -> None:
    deep: list[object] = []
    for _ in range(5000):
        deep = [deep]
    assert max(len(shown(value)) for value in ("x" * 999, list(range(999)), deep, 9**99)) <= 62
