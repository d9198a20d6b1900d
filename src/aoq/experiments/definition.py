"""Definitions of experiments: TOML files of rows, each a recipe, trained with several seeds.

    name = "mine"
    seeds = [0, 1, 2]
    teacher = "VSRN"                   # mines the lists that rows draw from: a row or a recipe

    [settings]                         # overrides the recipe of every row, as does [mining]
    round_two.epochs = 4

    [[rows]]
    label = "VSRN"
    recipe = "vsrn-flickr8k+online"

    [[rows]]
    label = "VSRN + OffTri"
    recipe = "vsrn-flickr8k+off-tri"
    settings = { round_two.epochs = 8 }  # overrides this recipe
    seeds = [0]                          # fewer than the other rows

docs/experiments.md has everything: choices (the best of several rows on dev) and ensembles too.
Only the rows are needed. A teacher trains round one alone; rows that draw from lists and have no
teacher mine their own. Mistakes that would only show hours later are rejected on loading.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from statistics import mean
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct

from aoq.config import Recipe
from aoq.errors import UserError
from aoq.evaluation.power import DIFFERENCE, POWER
from aoq.parsing import read_text
from aoq.recipes import load_recipe, with_settings

T = TypeVar("T")
Label = Annotated[str, Meta(min_length=1)]
Seeds = tuple[Annotated[int, Meta(ge=0)], ...]
SomeSeeds = Annotated[Seeds, Meta(min_length=1)]
_SHIPPED = Path(__file__).resolve().parent / "definitions"


class Row(Struct, frozen=True, forbid_unknown_fields=True):
    """A row of a table: a recipe, the settings that override it, and its teacher."""

    label: Label
    recipe: Label
    settings: dict[str, Any] = msgspec.field(default_factory=dict)
    teacher: str | None = None
    "The label of another row, or a recipe; none: the definition's."
    seeds: Seeds = ()
    "Some of the definition's; none: all of them."


class Choice(Struct, frozen=True, forbid_unknown_fields=True):
    """The best of several rows: the one with the highest mean rsum on dev."""

    label: Label
    of: tuple[str, ...]
    "Labels of rows."
    seeds: Seeds = ()
    "Seeds to choose by; none: the definition's. The chosen row is trained with all of them."

    def means(self, rsums: Mapping[tuple[str, int], float]) -> dict[str, float]:
        """Return every candidate's mean, the best first; nothing until all of them are known.

        >>> choice = Choice("tuned", ("a", "b"), (0,))
        >>> choice.means({("a", 0): 240.0, ("b", 0): 250.0})
        {'b': 250.0, 'a': 240.0}
        >>> choice.means({("a", 0): 240.0})
        {}
        """
        if not all((label, seed) in rsums for label in self.of for seed in self.seeds):
            return {}
        means = {label: mean(rsums[label, seed] for seed in self.seeds) for label in self.of}
        return dict(sorted(means.items(), key=lambda found: -found[1]))

    def sentence(self, means: Mapping[str, float]) -> str:
        """Say which row is chosen, and from which.

        >>> choice = Choice("tuned", ("a", "b"), (0,))
        >>> choice.sentence({"b": 250.0, "a": 240.0})
        'tuned is the best on dev (rsum, seed 0) of: b 250.0, a 240.0.'
        """
        seeds = f"seed{'s' * (len(self.seeds) > 1)} {', '.join(map(str, self.seeds))}"
        if not means:
            return f"{self.label} is not chosen yet: {len(self.of)} rows have to finish, {seeds}."
        listed = ", ".join(f"{label} {rsum:.1f}" for label, rsum in means.items())
        return f"{self.label} is the best on dev (rsum, {seeds}) of: {listed}."


class EnsembleRow(Struct, frozen=True, forbid_unknown_fields=True):
    """A row that needs no training: the mean score of trainings of other rows."""

    label: Label
    members: Annotated[tuple[str, ...], Meta(min_length=2)]
    "Labels of rows; `LABEL, seed N` names a training with a seed of its own."
    seeds: SomeSeeds = (0,)

    def with_seed(self, seed: int) -> list[tuple[str, int]]:
        """Return the label and the seed of every member.

        >>> EnsembleRow("two", ("VSRN", "VSRN, seed 1")).with_seed(0)
        [('VSRN', 0), ('VSRN', 1)]
        """
        found = (re.fullmatch(r"(.*), seed (\d+)", member) for member in self.members)
        return [
            (member, seed) if own is None else (own[1], int(own[2]))
            for member, own in zip(self.members, found, strict=True)
        ]


class Definition(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An experiment: rows, each trained with every seed."""

    rows: Annotated[tuple[Row, ...], Meta(min_length=1)]
    ensembles: tuple[EnsembleRow, ...] = ()
    choices: tuple[Choice, ...] = ()
    name: Annotated[str, Meta(pattern=r"^[^/]*[^/.][^/]*$")] = ""
    "A name that a folder can have."
    description: str = ""
    data: str = ""
    "The data set that it is meant for."
    seeds: SomeSeeds = (0,)
    teacher: str | None = None
    "The teacher of rows that name none."
    mining: dict[str, Any] = msgspec.field(default_factory=dict)
    settings: dict[str, Any] = msgspec.field(default_factory=dict)
    difference: Annotated[float, Meta(gt=0)] = DIFFERENCE
    "Of rsum: what has to be found with the `power`; `--plan` says how many seeds that takes."
    power: Annotated[float, Meta(gt=0, lt=1)] = POWER
    deviation: Annotated[float, Meta(gt=0)] | None = None
    "Of a training's rsum, if it is known before there are results."
    source: Path = Path()
    "The file itself: recipes beside it can be named without a folder."

    def row(self, label: str) -> Row:
        if label in self.row_labels:
            return self.rows[self.row_labels.index(label)]
        known = ", ".join(map(repr, self.row_labels))
        raise UserError(f"{self.name} has no row {label!r}; expected one of: {known}.")

    @property
    def row_labels(self) -> list[str]:
        return [row.label for row in self.rows]

    @property
    def table_rows(self) -> list[Row | EnsembleRow | Choice]:
        """Everything that has a row in the table."""
        return [*self.rows, *self.ensembles, *self.choices]

    @property
    def labels(self) -> list[str]:
        return [row.label for row in self.table_rows]

    def teacher_of(self, row: Row) -> Row | None:
        """Return the row that mines for another; a recipe that is not a row becomes one.

        A teacher ends with round one, so `+online` is added to a recipe that has two rounds.
        """
        name = row.teacher or self.teacher
        if name is None or name in self.row_labels:
            return None if name is None else self.row(name)
        ends = load_recipe(self._locate(name)).rounds == "one"
        teacher = name if ends else f"{name}+online"
        same = (other for other in self.rows if other.recipe == teacher and not other.settings)
        return next(same, Row(teacher, teacher))

    def folder_of(self, row: Row) -> str:
        """Name the folder of a row's runs: by its recipe, or by its label if settings differ."""
        changed = self.settings or row.settings
        return _slug(f"{self.name}-{row.label}" if changed else row.recipe)

    def recipe_of(self, row: Row) -> Recipe:
        """Return the row's recipe with all settings that override it."""
        recipe = load_recipe(self._locate(row.recipe))
        where = f"{self.source}: row {row.label!r}"
        for over in ({"mining": self.mining}, self.settings, row.settings):
            recipe = with_settings(recipe, dict(over), where=where)
        return recipe

    def _locate(self, recipe: str) -> str:
        """Return the file beside the definition if there is one, else the name of a recipe."""
        is_beside = (self.source.parent / recipe.partition("+")[0]).is_file()
        return str(self.source.parent / recipe) if is_beside else recipe


def shipped_definitions() -> dict[str, str]:
    """Return the descriptions of the experiments that come with the package, by name."""
    return {name: load_definition(name).description for name in _shipped_names()}


def load_definition(name: str | Path) -> Definition:
    """Load a definition by its shipped name or from a TOML file; reject mistakes.

    >>> load_definition("scenes-table1").rows[1].recipe
    'scenes-tiny+off-tri'
    """
    path = Path(name) if Path(name).suffix == ".toml" else _SHIPPED / f"{name}.toml"
    if not path.is_file():
        raise UserError(
            f"unknown experiment {name}; expected a .toml file or one of: "
            f"{', '.join(_shipped_names())}. The paper's tables have a command of their own in the "
            "repository: python -m reproduction."
        )
    read = read_toml(path, Definition)
    choices = (msgspec.structs.replace(c, seeds=c.seeds or read.seeds) for c in read.choices)
    definition = msgspec.structs.replace(
        read, source=path.resolve(), name=read.name or path.stem, choices=tuple(choices)
    )
    for mistake in _mistakes(definition):
        raise UserError(f"{definition.source}: {mistake}")
    return definition


def read_toml(path: Path, kind: type[T]) -> T:
    """Read a TOML file into a `Struct`; one sentence says what is wrong with it, and where."""
    try:
        return msgspec.toml.decode(read_text(path), type=kind)
    except msgspec.DecodeError as error:
        raise UserError(f"{path}: {error}; see docs/experiments.md for what is expected.") from None


def _shipped_names() -> list[str]:
    return sorted(path.stem for path in _SHIPPED.glob("*.toml"))


def _slug(text: str) -> str:
    """Make the name of a folder out of a text.

    >>> _slug("mine: VSRN + OffTri (batch 32)")
    'mine-VSRN-+-OffTri-batch-32'
    """
    return re.sub(r"[^\w.+-]+", "-", text).strip("-.")


def _mistakes(definition: Definition) -> Iterator[str]:
    """Yield mistakes that would otherwise only show hours later."""
    for seeds in (definition.seeds, *(row.seeds for row in definition.table_rows)):
        if len(set(seeds)) < len(seeds):
            yield f"seeds is {list(seeds)}; expected no seed twice."
    for label, count in Counter(definition.labels).items():
        if count > 1:
            yield f"the label {label!r} is used twice; choose another."
    folders: dict[str, str] = {}
    for row in definition.rows:
        first = folders.setdefault(definition.folder_of(row), row.label)
        if first != row.label:
            yield (
                f"the rows {first!r} and {row.label!r} would share one run; give each its own "
                "recipe."
            )
        if not set(row.seeds) <= set(definition.seeds):
            yield (
                f"row {row.label!r} has seeds {list(row.seeds)}; expected some of the "
                f"experiment's, {list(definition.seeds)}."
            )
        yield from _mistakes_of_teacher(definition, row)
    for ensemble in definition.ensembles:
        members = (member for seed in ensemble.seeds for member in ensemble.with_seed(seed))
        yield from _never_trained(definition, f"ensemble {ensemble.label!r}", members)
    candidates = Counter(label for choice in definition.choices for label in choice.of)
    for choice in definition.choices:
        if len(choice.of) < 2 or any(candidates[label] > 1 for label in choice.of):
            yield (
                f"choice {choice.label!r}: of is {list(choice.of)}; expected the labels of two or "
                "more rows that are in no other choice."
            )
        trainings = ((label, seed) for label in choice.of for seed in choice.seeds)
        yield from _never_trained(definition, f"choice {choice.label!r}", trainings)


def _mistakes_of_teacher(definition: Definition, row: Row) -> Iterator[str]:
    """Require a teacher that ends with round one and keeps lists as deep as the row draws."""
    recipe, teacher = definition.recipe_of(row), definition.teacher_of(row)
    if teacher is None or not recipe.needs_lists:
        return
    mines = definition.recipe_of(teacher)
    if mines.rounds != "one":
        yield (
            f"row {row.label!r}: its teacher {teacher.label!r} does not end with round one; choose "
            "a row or recipe that does (+online)."
        )
    for depth in ("depth_texts", "depth_images"):
        drawn, kept = getattr(recipe.sampling, depth), getattr(mines.mining, depth)
        if drawn > kept:
            yield (
                f"row {row.label!r} draws from lists with {depth} {drawn}, but its teacher "
                f"{teacher.label!r} keeps {kept}; raise {depth} in [mining]."
            )


def _never_trained(
    definition: Definition, where: str, trainings: Iterable[tuple[str, int]]
) -> Iterator[str]:
    for label, seed in trainings:
        trained = definition.row(label).seeds or definition.seeds
        if seed not in trained:
            yield (
                f"{where}: {label!r} is never trained with seed {seed}; its seeds are "
                f"{list(trained)}."
            )
