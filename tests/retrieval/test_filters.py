"""Filters: what a line of text lets through, and what is said of one that cannot be read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aoq.errors import QueryError
from aoq.retrieval.filters import All, Any, Compare, Filter, Not
from aoq.retrieval.metadata import typed_column

COLUMNS = {
    "folder": ("trips/2023", "trips/2023/june", "trips", "", "trips/2023b"),
    "name": ("IMG_1.jpg", "IMG_2.jpg", "a b.png", "IMG*.jpg", "x.jpg"),
    "date": ("2023-06-01T10:00:00", "2023-06-30T23:59:59", "2022-12-31T00:00:00", None, None),
    "width": (4000, 300, None, 1, 300),
    "split": ("test", None, "train", "dev", "test"),
    "f_number": (1.8, 2, None, None, 11.5),
}


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("split = test", [0, 4]),
        ("split != test", [1, 2, 3]),
        ("not split = test", [1, 2, 3]),
        ("split = none", [1]),
        ("split != none", [0, 2, 3, 4]),
        ("folder = trips/2023", [0, 1]),
        ("folder = trips", [0, 1, 2, 4]),
        ("folder = trips/", [0, 1, 2, 4]),
        ('folder = ""', [3]),
        ("folder = 'trips/2023/june'", [1]),
        ("name like IMG*", [0, 1, 3]),
        ("name like *.png", [2]),
        ("name like *_*jpg", [0, 1]),
        ("name like *jpg*", [0, 1, 3, 4]),
        ("name like I*1*1*", []),
        ('name = "a b.png"', [2]),
        ('name in ("a b.png", x.jpg)', [2, 4]),
        ("split in (dev, none)", [1, 3]),
        ("date >= 2023", [0, 1]),
        ("date > 2023", []),
        ("date < 2023", [2]),
        ("date <= 2023-06", [0, 1, 2]),
        ("date > 2023-06-01", [1]),
        ("date = 2023-06", [0, 1]),
        ("date = '2023-06-01 10'", [0]),
        ("date != 2023-06", [2, 3, 4]),
        ("date = none", [3, 4]),
        ("width >= 300", [0, 1, 4]),
        ("width > 300", [0]),
        ("width = 300.0", [1, 4]),
        ("not width > 300", [1, 2, 3, 4]),
        ("f_number < 2.5", [0, 1]),
        ("split = test and width < 1000", [4]),
        ("split = test or split = dev and width = 1", [0, 3, 4]),
        ("(split = test or split = dev) AND NOT width = 1", [0, 4]),
        ("not (split = test or split = dev)", [1, 2]),
    ],
)
def test_a_filter_lets_through_what_it_says(text, rows):
    parsed = Filter.parse(text)
    assert parsed.mask(COLUMNS).nonzero()[0].tolist() == rows
    again = Filter.parse(str(parsed))
    assert again == parsed, "its text is read as the same filter"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "empty"),
        ("split", "at its end; expected =, !="),
        ("split = ", "at its end; expected a value"),
        ("split = a b", "at 'b'; expected and, or, or the end"),
        ("(split = a", "at its end; expected )"),
        ("split in (a", "at its end; expected )"),
        ("split in a", "at 'a'; expected ("),
        ("= 3", "expected the name of a column"),
        ("name = 'open", "cannot be read at"),
        ("date > none", "> none has no meaning"),
    ],
)
def test_a_filter_that_cannot_be_read_is_refused_where_it_goes_wrong(text, sentence):
    with pytest.raises(QueryError) as refused:
        Filter.parse(text)
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("fodler = a", "did you mean folder?"),
        ("date > june", "'june' is not a date"),
        ("width = wide", "width holds numbers"),
    ],
)
def test_a_filter_that_does_not_fit_the_columns_is_refused(text, sentence):
    with pytest.raises(QueryError) as refused:
        Filter.parse(text).mask(COLUMNS)
    assert sentence in str(refused.value)


WORDS = st.text(min_size=1, max_size=6)
COMPARISONS = st.builds(
    Compare, st.just("name"), st.sampled_from(["=", "!=", "like"]), st.tuples(WORDS)
)
FILTERS = st.recursive(
    COMPARISONS,
    lambda inner: st.one_of(
        st.builds(Not, inner),
        st.builds(All, st.tuples(inner, inner)),
        st.builds(Any, st.tuples(inner, inner)),
    ),
    max_leaves=4,
)


@given(FILTERS)
def test_any_filter_survives_its_text(made):
    read = Filter.parse(str(made))
    assert read == made
    assert (read.mask(COLUMNS) == made.mask(COLUMNS)).all()


def test_filters_are_joined_by_operators():
    test, narrow = Filter.parse("split = test"), Filter.parse("width < 1000")
    assert (test & narrow).mask(COLUMNS).nonzero()[0].tolist() == [4]
    assert (test | narrow).mask(COLUMNS).nonzero()[0].tolist() == [0, 1, 3, 4]
    assert (~test).mask(COLUMNS).nonzero()[0].tolist() == [1, 2, 3]


def test_a_pattern_of_many_stars_takes_no_time_on_a_long_text():
    texts = {"note": ("see the tree " * 200, "eeeeeeeeeeeeeq")}
    found = Filter.parse("note like '" + "*e" * 12 + "*q'").mask(texts)
    assert found.tolist() == [False, True]


@pytest.mark.parametrize("number", ["nan", "inf", "1e999"])
def test_only_finite_numbers_are_compared(number):
    with pytest.raises(QueryError, match="holds numbers"):
        Filter.parse(f"width < {number}").mask(COLUMNS)


@pytest.mark.parametrize(
    ("cells", "column"),
    [
        (["1", "", "3"], (1, None, 3)),
        (["1", "2.5", "nan"], (1.0, 2.5, None)),
        ([1, 4.5], (1.0, 4.5)),
        ([4.0, 2], (4, 2)),
        (["inf", "1"], ("inf", "1")),
        (["1", "b "], ("1", "b")),
    ],
)
def test_a_column_of_numbers_is_read_as_it_is_written(cells, column):
    found = typed_column(cells)
    assert found == column
    assert [type(cell) for cell in found] == [type(cell) for cell in column]
