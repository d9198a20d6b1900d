"""The cells of an experiment: its rows, each with every seed, and who has to wait for whom.

Every cell is a run like those of `aoq run`, in OUT/<recipe>/seed-<n>. The row of the teacher trains
round one and mines; rows that draw from its lists wait for it and train round two only. All rows
come with the first seed, then all with the next, so that a whole table is there early.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from aoq.config import Recipe
from aoq.errors import UserError
from aoq.experiments.definitions import Definition, Row
from aoq.experiments.lanes import Part
from aoq.experiments.runs import RunSummary
from aoq.recipes import load_recipe, settings_that_matter
from aoq.storage import CONFIG, ROUND_ONE, ROUND_TWO, ROUNDS, RunDirectory, hash_parts


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One run of the grid: a row, or a teacher that is no row, with a seed."""

    experiment: str
    label: str
    is_row: bool
    source: str
    "The recipe's name, before anything was laid over it."
    recipe: Recipe
    folder: Path
    teacher: Cell | None = None
    "Whose lists it draws from."
    beginner: Cell | None = None
    "Whose round one it starts from, so that it need not be trained again."

    @property
    def name(self) -> str:
        return f"{self.label}, seed {self.recipe.seed}"

    @property
    def needs(self) -> tuple[Cell, ...]:
        """The cells that have to be done before."""
        return tuple(cell for cell in (self.teacher, self.beginner) if cell is not None)

    @property
    def settings(self) -> dict[str, Any]:
        """What differs from the paper's defaults, by dotted name."""
        defaults = settings_that_matter(Recipe())
        return {
            name: value
            for name, value in settings_that_matter(self.recipe).items()
            if value != defaults[name] and name != "seed"
        }

    @property
    def digest(self) -> str:
        """Says "the same settings, seed and teacher"; where files lie makes no difference."""
        teacher = None if self.teacher is None else self.teacher.digest
        told = json.dumps([self.settings, self.recipe.seed, teacher], sort_keys=True)
        return hash_parts(told.encode())

    @property
    def lists(self) -> Path:
        return RunDirectory(self.folder).candidates

    @property
    def last_round(self) -> Path:
        """The folder of the model that the cell is about."""
        return self.folder / ROUNDS[self.recipe.last_round]

    @property
    def is_trained(self) -> bool:
        if not RunDirectory(self.last_round).config.is_file():
            return False
        return RunSummary.read(self.last_round).stage in ("finished", "stopped early")

    @property
    def parts(self) -> tuple[Part, ...]:
        """The rounds that are trained here."""
        trained = []
        if self.recipe.needs_round_one and self.beginner is None:
            trained.append((ROUND_ONE, "round one", self.recipe.round_one))
        if self.recipe.rounds == "both":
            trained.append((ROUND_TWO, "round two", self.recipe.round_two))
        return tuple(
            Part(f"{self.name}, {title}", self.folder / round_, settings)
            for round_, title, settings in trained
        )


def plan_grid(
    definition: Definition,
    *,
    out: Path,
    data: Path | None = None,
    seeds: Sequence[int] | None = None,
    rows: Sequence[str] | None = None,
    chosen: Collection[str] = (),
) -> list[Cell]:
    """The cells of some or all rows and seeds in their order, before them others that they need.

    Rows with fewer seeds keep to them, unless they are named, or `chosen` by a choice.
    """
    free = {*(rows or ()), *chosen}
    wanted = [definition.row(label) for label in rows or [row.label for row in definition.rows]]
    found: dict[str, Cell] = {}
    for seed in definition.seeds if not seeds else dict.fromkeys(seeds):
        planner = _Planner(definition, out.absolute(), data, seed)
        trained = (
            planner.cell(row)
            for row in wanted
            if not row.seeds or seed in row.seeds or row.label in free
        )
        own = {cell.name: cell for cell in trained}
        needed = {need.name: need for cell in own.values() for need in cell.needs}
        found |= {name: cell for name, cell in needed.items() if name not in own} | own
    return list(found.values())


def begun_with(out: Path) -> Path:
    """The data set of an experiment that was begun in a folder."""
    for config in sorted(out.glob(f"*/seed-*/{CONFIG}")):
        return Path(load_recipe(config).data)
    raise UserError(f"{out} holds no runs to go on with; begin with --data FOLDER.")


@dataclass(frozen=True)
class _Planner:
    """Makes the cells of one seed."""

    definition: Definition
    out: Path
    data: Path | None
    seed: int

    def cell(self, row: Row) -> Cell:
        definition = self.definition
        recipe = replace(definition.recipe_of(row), seed=self.seed)
        if self.data is not None:
            recipe = replace(recipe, data=str(self.data))
        teacher = definition.teacher_of(row) if recipe.needs_lists else None
        taught = None if teacher is None else self.cell(teacher)
        if taught is not None:
            recipe = replace(recipe, candidates=str(taught.lists))
        recipe = recipe.resolved()
        return Cell(
            experiment=definition.name,
            label=row.label,
            is_row=row in definition.rows,
            source=row.recipe,
            recipe=recipe,
            folder=self.out / definition.folder_of(row) / f"seed-{self.seed}",
            teacher=taught,
            beginner=self._beginner(recipe, taught),
        )

    def _beginner(self, recipe: Recipe, teacher: Cell | None) -> Cell | None:
        """The teacher or another online row, if its round one is the one to start from."""
        if recipe.rounds == "one" or recipe.round_two.start_from == "scratch":
            return None
        if teacher is not None and _same_round_one(recipe, teacher.recipe):
            return teacher
        for row in self.definition.rows:
            other = self.definition.recipe_of(row)
            if other.rounds == "one":
                cell = self.cell(row)
                if _same_round_one(recipe, cell.recipe):
                    return cell
        return None


def _same_round_one(one: Recipe, other: Recipe) -> bool:
    names = ("data", "seed", "min_word_count", "model", "round_one")
    return all(getattr(one, name) == getattr(other, name) for name in names)
