"""Filters: which photos may be found, as a typed tree and as a line of text.

    folder = trips/2023 and date >= 2023-06-01 and not split = test
    name like "IMG_*" or (width >= 4000 and camera in (leica, "fuji x"))

A comparison is of one column with constants. A date may be a year, a month, a day or a moment, and
stands for all of it; `folder = X` includes the folders below X; `none` stands for a missing value,
which no other comparison than `!=` fits. A filter is evaluated on columns in memory, or translated
to an expression of Milvus, with the same result.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal, cast

import numpy as np

from aoq.errors import QueryError
from aoq.parsing import shown
from aoq.types import Bools

Value = str | int | float
Column = Sequence[Value | None]
Operator = Literal["=", "!=", "<", "<=", ">", ">=", "like", "in"]

_TOKEN = re.compile(
    r"""\s*(?:(?P<mark>\(|\)|,|!=|<=|>=|=|<|>)
    |"(?P<double>(?:[^"\\]|\\[^\n])*)"|'(?P<single>(?:[^'\\]|\\[^\n])*)'|(?P<word>[^\s(),=<>!"']+))""",
    re.VERBOSE,
)
_DATE = re.compile(r"\d{4}(-\d\d(-\d\d([T ]\d\d(:\d\d(:\d\d)?)?)?)?)?")
_AFTER = "~"  # follows every character of a date
_KEYWORDS = ("and", "or", "not", "in", "like", "none")
_EXAMPLE = "folder = trips/2023 and date >= 2023-06"


@dataclass(frozen=True)
class Filter:
    """A condition on the columns of an index."""

    @staticmethod
    def parse(text: str) -> Filter:
        """Read a filter from its text; the error says where it goes wrong."""
        if not isinstance(text, str) or not text.strip():
            raise QueryError(f"the filter is empty; expected one such as {_EXAMPLE}.")
        return _Parser(text).parse()

    def __and__(self, other: Filter) -> Filter:
        return All((self, other))

    def __or__(self, other: Filter) -> Filter:
        return Any((self, other))

    def __invert__(self) -> Filter:
        return Not(self)

    def mask(self, columns: Mapping[str, Column]) -> Bools:
        """Return which rows fit. (N,)"""
        raise NotImplementedError

    def expression(self, columns: Mapping[str, Column], *, negated: bool = False) -> str:
        """Translate to an expression of Milvus; the columns tell numbers from text."""
        raise NotImplementedError

    def named(self) -> set[str]:
        """Return the columns that the condition is on."""
        raise NotImplementedError


@dataclass(frozen=True)
class Compare(Filter):
    """A comparison of a column with a constant, or with several (`in`)."""

    column: str
    operator: Operator
    values: tuple[str | None, ...]
    "One, unless the operator is `in`; as written, because the column decides what they are."

    def __str__(self) -> str:
        values = ["none" if value is None else _quoted(value) for value in self.values]
        listed = f"({', '.join(values)})" if self.operator == "in" else values[0]
        return f"{self.column} {self.operator} {listed}"

    def mask(self, columns: Mapping[str, Column]) -> Bools:
        column = _find(self.column, columns)
        if self.operator == "!=":
            return ~Compare(self.column, "=", self.values).mask(columns)
        fits = np.zeros(len(column), bool)
        for value in self.values:
            if value is None:
                fits |= np.fromiter((cell is None for cell in column), bool, len(column))
                continue
            test = _Test.of(self.column, self.operator, value, column)
            fits |= np.fromiter(
                (cell is not None and test.fits(cell) for cell in column), bool, len(column)
            )
        return fits

    def expression(self, columns: Mapping[str, Column], *, negated: bool = False) -> str:
        column = _find(self.column, columns)
        if self.operator == "!=":
            return Compare(self.column, "=", self.values).expression(columns, negated=not negated)
        missing = f"{self.column} is null"
        tests = [
            missing
            if value is None
            else _Test.of(self.column, self.operator, value, column).expression(self.column)
            for value in self.values
        ]
        found = f"({' or '.join(tests)})"
        if not negated:
            return found
        if None in self.values:
            rest = [test for test in tests if test != missing]
            present = f"{self.column} is not null"
            return f"({present} and not ({' or '.join(rest)}))" if rest else present
        return f"(not {found} or {missing})"

    def named(self) -> set[str]:
        return {self.column}


@dataclass(frozen=True)
class _Joined(Filter):
    """Several filters joined by the same word."""

    parts: tuple[Filter, ...]

    def __str__(self) -> str:
        word = " and " if isinstance(self, All) else " or "
        return word.join(
            f"({part})" if isinstance(part, _Joined) else str(part) for part in self.parts
        )

    def mask(self, columns: Mapping[str, Column]) -> Bools:
        join = np.logical_and if isinstance(self, All) else np.logical_or
        return cast("Bools", join.reduce([part.mask(columns) for part in self.parts]))

    def expression(self, columns: Mapping[str, Column], *, negated: bool = False) -> str:
        word = " and " if isinstance(self, All) != negated else " or "
        parts = (part.expression(columns, negated=negated) for part in self.parts)
        return f"({word.join(parts)})"

    def named(self) -> set[str]:
        return set().union(*(part.named() for part in self.parts))


class All(_Joined):
    """Fits what every part fits."""


class Any(_Joined):
    """Fits what at least one part fits."""


@dataclass(frozen=True)
class Not(Filter):
    """Fits what its part does not fit."""

    part: Filter

    def __str__(self) -> str:
        return f"not ({self.part})" if isinstance(self.part, _Joined) else f"not {self.part}"

    def mask(self, columns: Mapping[str, Column]) -> Bools:
        return ~self.part.mask(columns)

    def expression(self, columns: Mapping[str, Column], *, negated: bool = False) -> str:
        return self.part.expression(columns, negated=not negated)

    def named(self) -> set[str]:
        return self.part.named()


# One comparison


@dataclass(frozen=True)
class _Test:
    """A comparison of present cells, in the terms that memory and Milvus share.

    A cell fits if it is at least `low`, below `high`, equal to `equal`, or begins with `below`.
    """

    low: Value | None = None
    high: Value | None = None
    above: Value | None = None
    most: Value | None = None
    equal: Value | None = None
    below: str | None = None
    pattern: str | None = None

    @classmethod
    def of(cls, name: str, operator: Operator, text: str, column: Column) -> _Test:
        """Say what an operator means on this column."""
        if operator == "like":
            return cls(pattern=text)
        if name == "date":
            return cls._of_date(operator, text)
        value = _typed(name, text, column)
        match operator:
            case "<":
                return cls(high=value)
            case "<=":
                return cls(most=value)
            case ">":
                return cls(above=value)
            case ">=":
                return cls(low=value)
        if name == "folder" and text:
            folder = text.rstrip("/")
            return cls(equal=folder, below=f"{folder}/")
        return cls(equal=value)

    @classmethod
    def _of_date(cls, operator: Operator, text: str) -> _Test:
        if not _DATE.fullmatch(text):
            raise QueryError(
                f"{shown(text)} is not a date; expected a year, a month or a day, such as 2023, "
                "2023-06 or 2023-06-01."
            )
        first, after = text.replace(" ", "T"), f"{text.replace(' ', 'T')}{_AFTER}"
        match operator:
            case "<":
                return cls(high=first)
            case "<=":
                return cls(high=after)
            case ">":
                return cls(low=after)
            case ">=":
                return cls(low=first)
        return cls(low=first, high=after)

    def fits(self, cell: Value) -> bool:
        if self.pattern is not None:
            return _like(self.pattern).fullmatch(str(cell)) is not None
        if self.equal is not None:
            is_below = self.below is not None and str(cell).startswith(self.below)
            return cell == self.equal or is_below
        return all(bound is None or _holds(cell, sign, bound) for sign, bound in self._bounds())

    def _bounds(self) -> list[tuple[str, Value | None]]:
        return [(">=", self.low), ("<", self.high), (">", self.above), ("<=", self.most)]

    def expression(self, column: str) -> str:
        if self.pattern is not None:
            return f"{column} like {_milvus_pattern(*self.pattern.split('*'))}"
        if self.equal is not None:
            equal = f"{column} == {_milvus_constant(self.equal)}"
            if self.below is None:
                return equal
            return f"({equal} or {column} like {_milvus_pattern(self.below, '')})"
        tests = [
            f"{column} {sign} {_milvus_constant(bound)}"
            for sign, bound in self._bounds()
            if bound is not None
        ]
        return f"({' and '.join(tests)})"


def _holds(cell: Value, sign: str, bound: Value) -> bool:
    left, right = (cell, bound) if isinstance(bound, int | float) else (str(cell), str(bound))
    match sign:
        case ">=":
            return left >= right  # type: ignore[operator]
        case "<":
            return left < right  # type: ignore[operator]
        case ">":
            return left > right  # type: ignore[operator]
    return left <= right  # type: ignore[operator]


def _milvus_constant(value: Value) -> str:
    return json.dumps(value, ensure_ascii=False)  # Milvus Lite reads no escapes of letters


def _milvus_pattern(*pieces: str) -> str:
    """Match texts that have these pieces, and anything between them."""
    return _milvus_constant("%".join(re.sub(r"([%_\\])", r"\\\1", piece) for piece in pieces))


def _like(pattern: str) -> re.Pattern[str]:
    """Compile a pattern that never goes back to an earlier part: the first place of each is best.

    Otherwise, a pattern of many stars would take hours on a long text.
    """
    first, *rest = map(re.escape, pattern.split("*"))
    inner = "".join(f"(?>.*?{part})" for part in rest[:-1])
    last = f".*{rest[-1]}" if rest else ""
    return re.compile(f"{first}{inner}{last}", re.DOTALL)


def _find(name: str, columns: Mapping[str, Column]) -> Column:
    if name in columns:
        return columns[name]
    near = get_close_matches(name, columns, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    raise QueryError(f"there is no column {shown(name)}; {hint}there are {', '.join(columns)}.")


def _typed(name: str, text: str, column: Column) -> Value:
    """Read a constant as a number if the column holds numbers."""
    if not any(isinstance(cell, int | float) for cell in column):
        return text
    for kind in (int, float):
        with suppress(ValueError, OverflowError):
            value = kind(text)
            if math.isfinite(value):
                return value
    raise QueryError(
        f"the column {name} holds numbers; {shown(text)} is none, expected such as {name} >= 100."
    )


def _quoted(text: str) -> str:
    plain = _TOKEN.fullmatch(text)
    is_plain = plain is not None and plain["word"] == text and text.lower() not in _KEYWORDS
    escaped = re.sub(r'(["\\])', r"\\\1", text)
    return text if is_plain else f'"{escaped}"'


# The text


@dataclass(frozen=True)
class _Token:
    text: str
    is_quoted: bool
    place: int

    def says(self, *words: str) -> bool:
        return not self.is_quoted and self.text.lower() in words


class _Parser:
    """Reads a filter by recursive descent: or, and, not, comparison."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(self._split())
        self._next = 0

    def _split(self) -> Iterator[_Token]:
        place, end = 0, len(self._text.rstrip())
        while place < end:
            found = _TOKEN.match(self._text, place)
            if found is None:
                raise self._error(place, "a name, a value or an operator")
            kind = cast("str", found.lastgroup)
            quoted = kind in ("double", "single")
            inner = re.sub(r"\\(.)", r"\1", found[kind]) if quoted else found[kind]
            yield _Token(inner, quoted, found.start(kind))
            place = found.end()

    def parse(self) -> Filter:
        try:
            found = self._alternatives()
        except RecursionError:
            raise QueryError("the filter has too many parts inside each other.") from None
        if self._next < len(self._tokens):
            raise self._unexpected("and, or, or the end")
        return found

    def _alternatives(self) -> Filter:
        parts = [self._conjunction()]
        while self._take("or"):
            parts.append(self._conjunction())
        return parts[0] if len(parts) == 1 else Any(tuple(parts))

    def _conjunction(self) -> Filter:
        parts = [self._unary()]
        while self._take("and"):
            parts.append(self._unary())
        return parts[0] if len(parts) == 1 else All(tuple(parts))

    def _unary(self) -> Filter:
        if self._take("not"):
            return Not(self._unary())
        if self._take("("):
            found = self._alternatives()
            self._require(")")
            return found
        return self._comparison()

    def _comparison(self) -> Filter:
        column = self._word("the name of a column")
        for operator in ("=", "!=", "<", "<=", ">", ">=", "like"):
            if self._take(operator):
                value = self._value()
                if value is None and operator not in ("=", "!="):
                    raise QueryError(
                        f"the comparison {operator} none has no meaning; use = none or != none."
                    )
                return Compare(column, operator, (value,))
        if self._take("in"):
            self._require("(")
            values = [self._value()]
            while self._take(","):
                values.append(self._value())
            self._require(")")
            return Compare(column, "in", tuple(values))
        raise self._unexpected("=, !=, <, <=, >, >=, like or in")

    def _take(self, word: str) -> bool:
        is_there = self._next < len(self._tokens) and self._tokens[self._next].says(word)
        self._next += is_there
        return is_there

    def _require(self, word: str) -> None:
        if not self._take(word):
            raise self._unexpected(word)

    def _word(self, what: str) -> str:
        if self._next == len(self._tokens) or self._is_mark(self._tokens[self._next]):
            raise self._unexpected(what)
        token = self._tokens[self._next]
        self._next += 1
        return token.text

    def _value(self) -> str | None:
        is_none = self._next < len(self._tokens) and self._tokens[self._next].says("none")
        word = self._word("a value, in quotes if it has spaces")
        return None if is_none else word

    @staticmethod
    def _is_mark(token: _Token) -> bool:
        return token.says("(", ")", ",", "=", "!=", "<", "<=", ">", ">=", "and", "or", "not", "in")

    def _unexpected(self, expected: str) -> QueryError:
        is_end = self._next == len(self._tokens)
        return self._error(None if is_end else self._tokens[self._next].place, expected)

    def _error(self, place: int | None, expected: str) -> QueryError:
        at = "its end" if place is None else shown(self._text[place:])
        return QueryError(
            f"the filter {shown(self._text)} cannot be read at {at}; expected {expected}, as in "
            f"{_EXAMPLE}."
        )
