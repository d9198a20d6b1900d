"""Definitions of experiments: TOML files of rows, each a recipe, the shipped ones by name.

    name = "mine"
    description = "What it shows."
    data = "Which data set it is meant for, and how to build it."
    seeds = [0, 1, 2]
    teacher = "vsrn-flickr8k+online"   # mines the lists that rows draw from: a row or a recipe

    [mining]                           # laid over all recipes, as are [settings]
    depth_texts = 1000
    depth_images = 200

    [[rows]]
    label = "VSRN + OffTri"
    recipe = "vsrn-flickr8k+off-tri"
    settings = { round_two.epochs = 4 }  # laid over this recipe
    teacher = "VSRN"                     # instead of the one above
    seeds = [0]                          # fewer than the others

    [[choices]]                        # one row of the report: the best of some on dev
    label = "VSRN, tuned"
    of = ["VSRN, alpha 0.2", "VSRN, alpha 0.3"]
    seeds = [0]                        # those to choose by; what is chosen is trained with all

    [[ensembles]]                      # judged when the report is written, from what is trained
    label = "VSRN, two seeds"
    members = ["VSRN", "VSRN, seed 1"] # rows with the ensemble's seed, or with one of their own
    seeds = [0]

    [paper]                            # what the paper has for rows, to stand beside
    of = "table 1: MS-COCO, 1,000 test images, two models together"
    rsum."VSRN + OffTri" = 518.6

Only the rows are needed. A teacher trains round one alone; rows that draw from lists and have no
teacher mine their own.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

from aoq.config import Recipe
from aoq.errors import UserError
from aoq.recipes import load_recipe, with_settings

_SHIPPED = Path(__file__).resolve().parent
_KINDS: Mapping[str, type] = {
    "name": str,
    "description": str,
    "data": str,
    "seeds": list,
    "teacher": str,
    "mining": dict,
    "settings": dict,
    "rows": list,
    "ensembles": list,
    "choices": list,
    "paper": dict,
}
_ROW_KINDS: Mapping[str, type] = {
    "label": str,
    "recipe": str,
    "settings": dict,
    "teacher": str,
    "seeds": list,
}
_CHOICE_KINDS: Mapping[str, type] = {"label": str, "of": list, "seeds": list}
_ENSEMBLE_KINDS: Mapping[str, type] = {"label": str, "members": list, "seeds": list}
_PAPER_KINDS: Mapping[str, type] = {"of": str, "rsum": dict}
_EXPECTED: Mapping[type, str] = {str: "text", list: "a list", dict: "a table"}


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

    def row(self, label: str) -> Row:
        for row in self.rows:
            if row.label == label:
                return row
        known = ", ".join(repr(row.label) for row in self.rows)
        raise UserError(f"{self.name} has no row {label!r}; expected one of: {known}.")

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
        for over in (self.settings, row.settings, {"mining": dict(self.mining)}):
            recipe = with_settings(recipe, dict(over), where=where)
        return recipe

    def _found(self, recipe: str) -> str:
        """Files are seen from the folder of the definition first."""
        beside = self.source.parent / recipe
        is_there = (self.source.parent / recipe.partition("+")[0]).is_file()
        return str(beside) if is_there else recipe


def shipped_definitions() -> dict[str, str]:
    """The experiments that come with the package: their names and what each is."""
    return {
        path.stem: load_definition(path.stem).description
        for path in sorted(_SHIPPED.glob("*.toml"))
    }


def load_definition(name: str | Path) -> Definition:
    """A definition by its shipped name or by the path of a TOML file, with mistakes refused.

    >>> load_definition("scenes-table1").rows[1].recipe
    'scenes-tiny+off-tri'
    """
    path = Path(name) if Path(name).suffix == ".toml" else _SHIPPED / f"{name}.toml"
    if not path.is_file():
        known = ", ".join(_shipped_names())
        raise UserError(f"there is no experiment {name}; give a .toml file or one of: {known}.")
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is no TOML file: {error}.") from None
    definition = _parsed(table, path)
    _require_sound(definition)
    return definition


def _shipped_names() -> list[str]:
    return sorted(path.stem for path in _SHIPPED.glob("*.toml"))


def _parsed(table: Mapping[str, Any], path: Path) -> Definition:
    _require_kinds(table, _KINDS, where=str(path))
    if not table.get("rows"):
        raise UserError(f"{path} has no rows; add a table [[rows]] with a label and a recipe.")
    rows = [
        Row(**{**row, "seeds": tuple(row.get("seeds", ()))})
        for row in _tables(table, "rows", _ROW_KINDS, ("label", "recipe"), path=path)
    ]
    ensembles = [
        EnsembleRow(row["label"], tuple(row["members"]), tuple(row.get("seeds", (0,))))
        for row in _tables(table, "ensembles", _ENSEMBLE_KINDS, ("label", "members"), path=path)
    ]
    seeds = tuple(table.get("seeds", (0,)))
    choices = [
        Choice(row["label"], tuple(row["of"]), tuple(row.get("seeds", seeds)))
        for row in _tables(table, "choices", _CHOICE_KINDS, ("label", "of"), path=path)
    ]
    paper = table.get("paper")
    if paper is not None:
        _require_kinds(paper, _PAPER_KINDS, where=f"{path}: paper")
    found = {
        **table,
        "paper": None if paper is None else Paper(paper.get("of", ""), paper.get("rsum", {})),
        "rows": tuple(rows),
        "ensembles": tuple(ensembles),
        "choices": tuple(choices),
        "seeds": seeds,
    }
    return Definition(source=path.resolve(), **{"name": path.stem, **found})


def _tables(
    table: Mapping[str, Any],
    name: str,
    kinds: Mapping[str, type],
    needed: tuple[str, ...],
    *,
    path: Path,
) -> list[dict[str, Any]]:
    """The tables of one name, [[rows]] for instance, each sound by itself."""
    for number, row in enumerate(table.get(name, ()), start=1):
        where = f"{path}: {name.removesuffix('s')} {number}"
        if not isinstance(row, dict):
            raise UserError(f"{where} is {row!r}; expected a table [[{name}]].")
        _require_kinds(row, kinds, where=where)
        for key in needed:
            if not row.get(key):
                raise UserError(f"{where} has no {key}; each needs {' and '.join(needed)}.")
    return list(table.get(name, ()))


def _require_kinds(table: Mapping[str, Any], kinds: Mapping[str, type], *, where: str) -> None:
    for key, value in table.items():
        if key not in kinds:
            raise UserError(f"{where}: there is no {key!r}; expected one of: {', '.join(kinds)}.")
        if not isinstance(value, kinds[key]):
            raise UserError(f"{where}: {key} is {value!r}; expected {_EXPECTED[kinds[key]]}.")


def _require_sound(definition: Definition) -> None:
    """Refuse what would only be found out hours later."""
    where = definition.source
    if "/" in definition.name or not definition.name.strip("."):
        raise UserError(f"{where}: the name {definition.name!r} is no name of a folder.")
    own = [row.seeds for row in definition.rows if row.seeds]
    for seeds in (definition.seeds, *own, *(row.seeds for row in definition.made_of_rows)):
        sound = all(type(seed) is int and seed >= 0 for seed in seeds)
        if not seeds or not sound or len(set(seeds)) < len(seeds):
            raise UserError(
                f"{where}: seeds is {list(seeds)}; expected whole numbers from 0 on, each once."
            )
    folders: dict[str, str] = {}
    for row in definition.rows:
        if not set(row.seeds) <= set(definition.seeds):
            raise UserError(
                f"{where}: row {row.label!r} has seeds {list(row.seeds)}; expected some of the "
                f"experiment's, {list(definition.seeds)}."
            )
        first = folders.setdefault(definition.folder_of(row), row.label)
        if first is not row.label or row is not definition.row(row.label):
            raise UserError(
                f"{where}: the rows {first!r} and {row.label!r} would be one run; give each a "
                "label and a recipe of its own."
            )
    for row in definition.rows:
        _require_depth(definition, row)
    _require_labels(definition)
    _require_members(definition)
    _require_candidates(definition)
    _require_paper(definition)


def _require_depth(definition: Definition, row: Row) -> None:
    """A teacher has to be one, and its lists as deep as the row draws."""
    recipe, teacher = definition.recipe_of(row), definition.teacher_of(row)
    if teacher is None or not recipe.needs_lists:
        return
    where, mines = f"{definition.source}: row {row.label!r}", definition.recipe_of(teacher)
    if mines.rounds != "one":
        raise UserError(
            f"{where}: its teacher {teacher.label!r} does not end with round one; name a row or a "
            "recipe that does (+online)."
        )
    for depth in ("depth_texts", "depth_images"):
        drawn, kept = getattr(recipe.sampling, depth), getattr(mines.mining, depth)
        if drawn > kept:
            raise UserError(
                f"{where} draws from lists with {depth} {drawn}, but its teacher "
                f"{teacher.label!r} keeps {kept}; raise {depth} in [mining]."
            )


def _require_labels(definition: Definition) -> None:
    labels = [row.label for row in definition.rows]
    for row in definition.made_of_rows:
        if row.label in labels:
            raise UserError(
                f"{definition.source}: {row.label!r}: something else has this label; choose "
                "another."
            )
        labels.append(row.label)


def _require_candidates(definition: Definition) -> None:
    """A choice is between two rows or more, trained with the seeds that it goes by."""
    taken: set[str] = set()
    for choice in definition.choices:
        where = f"{definition.source}: choice {choice.label!r}"
        if len(set(choice.of)) < 2 or taken & set(choice.of):
            raise UserError(
                f"{where}: of is {list(choice.of)}; expected the labels of two rows or more that "
                "are in no other choice."
            )
        taken |= set(choice.of)
        for label in choice.of:
            _require_seeds(definition, label, choice.seeds, where=f"{where}: its row")


def _require_seeds(definition: Definition, label: str, seeds: Sequence[int], *, where: str) -> None:
    trained = definition.seeds_of(definition.row(label))
    for seed in seeds:
        if seed not in trained:
            raise UserError(
                f"{where} {label!r} with seed {seed} is never trained; its seeds are "
                f"{list(trained)}."
            )


def _require_members(definition: Definition) -> None:
    """Ensembles have at least two members, each a row and a seed of it."""
    for ensemble in definition.ensembles:
        where = f"{definition.source}: ensemble {ensemble.label!r}"
        if len(ensemble.members) < 2 or not all(isinstance(m, str) for m in ensemble.members):
            raise UserError(
                f"{where}: members is {list(ensemble.members)}; expected the labels of two rows or "
                "more, or 'LABEL, seed N'."
            )
        members = [member for seed in ensemble.seeds for member in ensemble.with_seed(seed)]
        for label, seed in members:
            _require_seeds(definition, label, [seed], where=f"{where}: its member")


def _require_paper(definition: Definition) -> None:
    if definition.paper is None:
        return
    labels = {row.label for row in (*definition.rows, *definition.made_of_rows)}
    for label, rsum in definition.paper.rsum.items():
        if label not in labels or not isinstance(rsum, float):
            raise UserError(
                f"{definition.source}: paper has {label!r} = {rsum!r}; expected the label of a row "
                "and its rsum, as in 518.6."
            )


def _slug(text: str) -> str:
    """A text as the name of a folder.

    >>> _slug("mine: VSRN + OffTri (batch 32)")
    'mine-VSRN-+-OffTri-batch-32'
    """
    return re.sub(r"[^\w.+-]+", "-", text).strip("-.")
