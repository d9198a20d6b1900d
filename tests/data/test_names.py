"""A name that is nearly right is answered with the right one."""

from __future__ import annotations

import unicodedata

import pytest

from aoq.data.names import NameHints


@pytest.mark.parametrize(
    ("written", "there"),
    [
        ("img.jpg", "IMG.JPG"),
        ("a.jpg", "a.jpeg"),
        ("1007129816", "1007129816.jpg"),
        ("photos\\a.jpg", "photos/a.jpg"),
        ("a.jpg", "train2014/a.jpg"),
        ("photos/a.jpg", "a.jpg"),
        (unicodedata.normalize("NFD", "café.jpg"), "café.jpg"),
    ],
)
def test_a_name_that_is_nearly_there_is_named(written: str, there: str) -> None:
    assert NameHints([there, "other.jpg"]).hint(written) == f"{there} is there: write that name"


def test_nothing_is_said_where_several_may_be_meant() -> None:
    assert NameHints(["x/a.jpg", "y/a.jpg"]).hint("a.jpg") == ""
    assert NameHints(["x/a.jpg", "y/a.jpg"]).hint("Y/A.jpg") == "y/a.jpg is there: write that name"
    assert NameHints(["b.jpg"]).hint("a.jpg") == ""


@pytest.mark.parametrize("name", ["", ".", "..", "/", ".jpg", "a" * 5000, "a\0.jpg"])
def test_any_name_can_be_asked_for(name: str) -> None:
    assert NameHints(["b.jpg", name]).hint("c.jpg") == ""
    NameHints(["b.jpg"]).hint(name)
