"""What a definition of an experiment consists of."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from statistics import mean
from typing import Any

from aoq.config import Recipe
from aoq.errors import UserError
from aoq.recipes import load_recipe, with_settings


@dataclass(frozen=True)
class Row:
    """A row of a table: a recipe, what is laid over it, and who mines for it."""

    label: str
    recipe: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    teacher: str | None = None
    "The label of another row, or a recipe; none: the definition's."
    seeds: tuple[int, ...] = ()
    "Where it is trained with fewer than the definition's."


@dataclass(frozen=True)
class Choice:
    """A row of a table that is one of several: that with the best mean rsum on dev."""

    label: str
    of: tuple[str, ...]
    "Labels of rows."
    seeds: tuple[int, ...]
    "Those to choose by. What is chosen is trained with all of the definition's."

    def chosen(self, rsums: Mapping[tuple[str, int], float]) -> dict[str, float]:
        """The mean of every candidate, the best first; empty until all of them are known.

        >>> choice = Choice("tuned", ("a", "b"), (0,))
        >>> choice.chosen({("a", 0): 240.0, ("b", 0): 250.0})
        {'b': 250.0, 'a': 240.0}
        >>> choice.chosen({("a", 0): 240.0})
        {}
        """
        if not all((label, seed) in rsums for label in self.of for seed in self.seeds):
            return {}
        means = {label: mean(rsums[label, seed] for seed in self.seeds) for label in self.of}
        return dict(sorted(means.items(), key=lambda found: -found[1]))

    def sentence(self, means: Mapping[str, float]) -> str:
        """What was chosen, and before what.

        >>> choice = Choice("tuned", ("a", "b"), (0,))
        >>> choice.sentence({"b": 250.0, "a": 240.0})
        'tuned is the best on dev (rsum, seed 0) of: b 250.0, a 240.0.'
        """
        seeds = f"seed{'s' * (len(self.seeds) > 1)} {', '.join(map(str, self.seeds))}"
        if not means:
            return (
                f"{self.label} is not chosen yet: its {len(self.of)} rows have to be done, {seeds}."
            )
        told = ", ".join(f"{label} {rsum:.1f}" for label, rsum in means.items())
        return f"{self.label} is the best on dev (rsum, {seeds}) of: {told}."


@dataclass(frozen=True)
class EnsembleRow:
    """A row of a table that nobody trains: the mean score of trainings of other rows."""

    label: str
    members: tuple[str, ...]
    "Labels of rows; `LABEL, seed N` is one that has a seed of its own."
    seeds: tuple[int, ...] = (0,)

    def with_seed(self, seed: int) -> list[tuple[str, int]]:
        """The label and seed of every member.

        >>> EnsembleRow("two", ("VSRN", "VSRN, seed 1")).with_seed(0)
        [('VSRN', 0), ('VSRN', 1)]
        """
        found = (re.fullmatch(r"(.*), seed (\d+)", member) for member in self.members)
        return [
            (member, seed) if own is None else (own[1], int(own[2]))
            for member, own in zip(self.members, found, strict=True)
        ]


@dataclass(frozen=True)
class Paper:
    """What the paper has for the rows."""

    of: str
    "Where its figures stand, and what they are about."
    rsum: Mapping[str, float]
    "By label."


@dataclass(frozen=True)
class Claim:
    """That rsum of a row, or what it has more than another's, lies between two bounds."""

    says: str
    rows: tuple[str, ...]
    "Labels; of several, their mean."
    than: tuple[str, ...] = ()
    "What they are held against, one each; none: the claim is about rsum itself."
    low: float = -inf
    high: float = inf

    @property
    def sentence(self) -> str:
        """What it comes to.

        >>> Claim("offline pairs help", ("VSRN + OffTri",), ("VSRN",), low=0).sentence
        'offline pairs help: VSRN + OffTri above VSRN'
        >>> Claim("h hardly matters", ("h = 200",), ("h = 300",), -5, 5).sentence
        'h hardly matters: h = 200 within 5 of h = 300'
        """
        rows, than = (", ".join(labels) for labels in (self.rows, self.than))
        if not self.than:
            return f"{self.says}: {rows} below {self.high:g}"
        if self.low == 0:
            return f"{self.says}: {rows} above {than}"
        if self.low == -inf:
            return f"{self.says}: {rows} less than {self.high:g} above {than}"
        return f"{self.says}: {rows} within {self.high:g} of {than}"


@dataclass(frozen=True, kw_only=True)
class Definition:
    """An experiment: rows, each trained with every seed."""

    name: str
    source: Path
    rows: tuple[Row, ...]
    ensembles: tuple[EnsembleRow, ...] = ()
    choices: tuple[Choice, ...] = ()
    seeds: tuple[int, ...] = (0,)
    description: str = ""
    data: str = ""
    "What data set it is meant for."
    teacher: str | None = None
    "Who mines for rows that do not say it themselves."
    mining: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    paper: Paper | None = None
    claims: tuple[Claim, ...] = ()

    def row(self, label: str) -> Row:
        for row in self.rows:
            if row.label == label:
                return row
        known = ", ".join(repr(row.label) for row in self.rows)
        raise UserError(f"{self.name} has no row {label!r}; expected one of: {known}.")

    @property
    def labels(self) -> list[str]:
        """Of everything that the table has."""
        return [row.label for row in (*self.rows, *self.made_of_rows)]

    @property
    def made_of_rows(self) -> tuple[EnsembleRow | Choice, ...]:
        return (*self.ensembles, *self.choices)

    def seeds_of(self, row: Row) -> tuple[int, ...]:
        return row.seeds or self.seeds

    def teacher_of(self, row: Row) -> Row | None:
        """The row that mines for another; where a recipe is to do it that is no row, that as one.

        A teacher ends with round one: a recipe goes on to `+online` unless it does so by itself.
        """
        name = row.teacher or self.teacher
        if name is None or name in (other.label for other in self.rows):
            return None if name is None else self.row(name)
        ends = load_recipe(self._found(name)).rounds == "one"
        teacher = name if ends else f"{name}+online"
        same = (other for other in self.rows if other.recipe == teacher and not other.settings)
        return next(same, Row(teacher, teacher))

    def folder_of(self, row: Row) -> str:
        """The recipe's name, which says it all; with settings laid over it, the row's."""
        changed = self.settings or row.settings
        return _slug(f"{self.name}-{row.label}" if changed else row.recipe)

    def recipe_of(self, row: Row) -> Recipe:
        """The row's recipe with everything laid over it."""
        recipe = load_recipe(self._found(row.recipe))
        where = f"{self.source}: row {row.label!r}"
        for over in ({"mining": dict(self.mining)}, self.settings, row.settings):
            recipe = with_settings(recipe, dict(over), where=where)
        return recipe

    def _found(self, recipe: str) -> str:
        """Files are seen from the folder of the definition first."""
        beside = self.source.parent / recipe
        is_there = (self.source.parent / recipe.partition("+")[0]).is_file()
        return str(beside) if is_there else recipe


def _slug(text: str) -> str:
    """A text as the name of a folder.

    >>> _slug("mine: VSRN + OffTri (batch 32)")
    'mine-VSRN-+-OffTri-batch-32'
    """
    return re.sub(r"[^\w.+-]+", "-", text).strip("-.")
