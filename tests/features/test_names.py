"""A name that is nearly right is answered with the right one."""

from __future__ import annotations

import unicodedata

import pytest

from aoq.features.names import Names


@pytest.mark.parametrize(
    ("written", "there"),
    [
        ("img.jpg", "IMG.JPG"),
        ("a.jpg", "a.jpeg"),
        ("1007129816", "1007129816.jpg"),
        ("photos\\a.jpg", "photos/a.jpg"),
        ("a.jpg", "train2014/a.jpg"),
        ("photos/a.jpg", "a.jpg"),
        (unicodedata.normalize("NFD", "CAFÉ.jpg"), "café.jpg"),
    ],
)
def test_a_name_that_is_nearly_there_is_named(written: str, there: str) -> None:
    assert Names([there, "other.jpg"]).hint(written) == f"{there} exists: write that name"


NFC, NFD = (unicodedata.normalize(form, "ä/ö.jpg") for form in ("NFC", "NFD"))
MIXED = NFC[0] + NFD[2:]


@pytest.mark.parametrize(
    ("there", "written", "found"),
    [
        ([NFD], NFC, NFD),
        ([NFC], NFD, NFC),
        ([NFC, NFD], NFC, NFC),
        ([NFC, NFD], NFD, NFD),
        ([NFC, NFD], MIXED, None),
        ([NFD], "ö.jpg", None),
        ([NFD], NFC.upper(), None),
    ],
)
def test_a_name_that_looks_the_same_is_found_unless_several_do(
    there: list[str], written: str, found: str | None
) -> None:
    assert Names(there).find(written) == found


def test_several_names_that_look_the_same_are_distinguished_from_none() -> None:
    assert "several look the same" in Names([NFC, NFD]).hint(MIXED)
    assert Names([NFC, NFD]).hint(NFC) == Names([NFD]).hint(NFC) == ""


def test_nothing_is_said_where_several_may_be_meant() -> None:
    assert Names(["x/a.jpg", "y/a.jpg"]).hint("a.jpg") == ""
    assert Names(["x/a.jpg", "y/a.jpg"]).hint("Y/A.jpg") == "y/a.jpg exists: write that name"
    assert Names(["b.jpg"]).hint("a.jpg") == ""


@pytest.mark.parametrize("name", ["", ".", "..", "/", ".jpg", "a" * 5000, "a\0.jpg"])
def test_any_name_can_be_asked_for(name: str) -> None:
    assert Names(["b.jpg", name]).hint("c.jpg") == ""
    Names(["b.jpg"]).hint(name)
