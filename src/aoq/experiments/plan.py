"""The runs of an experiment: its rows, each with every seed, and which run waits for which.

Every `GridRun` is a run like those of `aoq run`, in OUT/<recipe>/seed-<n>. The row of the teacher
trains round one and mines; rows that draw from its lists wait for it and train round two only. All
rows come with the first seed, then all with the next, so that a whole table is there early.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any

from aoq.config import Recipe
from aoq.experiments.definition import Definition, Row
from aoq.experiments.jobs import JobRound
from aoq.recipes import load_recipe, settings_that_matter
from aoq.runs.directory import CONFIG, ROUND_ONE, ROUND_TWO, ROUNDS, RunDirectory
from aoq.runs.summary import RunSummary
from aoq.storage import hash_parts


@dataclass(frozen=True, kw_only=True)
class GridRun:
    """One run of the grid: a row, or a teacher that is not a row, with a seed."""

    experiment: str
    label: str
    is_row: bool
    source: str
    "The recipe's name, without the settings that override it."
    recipe: Recipe
    folder: Path
    teacher: GridRun | None = None
    "The run whose lists it draws from."
    initial: GridRun | None = None
    "The run whose round one it starts from, so that it need not be trained again."

    @property
    def name(self) -> str:
        return f"{self.label}, seed {self.recipe.seed}"

    @property
    def key(self) -> tuple[str, int]:
        """The label and the seed: how results are found."""
        return self.label, self.recipe.seed

    @property
    def group(self) -> str:
        """Identify the model: its rows are compared with each other."""
        return repr(self.recipe.model)

    @property
    def needs(self) -> tuple[GridRun, ...]:
        """The runs that have to finish first."""
        return tuple(run for run in (self.teacher, self.initial) if run is not None)

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that differ from the paper's defaults, by dotted name."""
        defaults = settings_that_matter(Recipe())
        return {
            name: value
            for name, value in settings_that_matter(self.recipe).items()
            if value != defaults[name] and name != "seed"
        }

    @property
    def digest(self) -> str:
        """Identify the settings, the seed and the teacher, wherever files are."""
        teacher = None if self.teacher is None else self.teacher.digest
        content = json.dumps([self.settings, self.recipe.seed, teacher], sort_keys=True)
        return hash_parts(content.encode())

    @property
    def lists(self) -> Path:
        return RunDirectory(self.folder).candidates

    @property
    def last_round(self) -> Path:
        """The folder of the model whose results count."""
        return self.folder / ROUNDS[self.recipe.last_round]

    @property
    def is_trained(self) -> bool:
        if not RunDirectory(self.last_round).config.is_file():
            return False
        return RunSummary.read(self.last_round).stage in ("finished", "stopped early")

    @property
    def rounds(self) -> tuple[JobRound, ...]:
        """The rounds that are trained here."""
        trained = []
        if self.recipe.needs_round_one and self.initial is None:
            trained.append((ROUND_ONE, "round one", self.recipe.round_one))
        if self.recipe.rounds == "both":
            trained.append((ROUND_TWO, "round two", self.recipe.round_two))
        return tuple(
            JobRound(f"{self.name}, {title}", self.folder / round_, settings)
            for round_, title, settings in trained
        )


def plan_grid(
    definition: Definition,
    *,
    out: Path,
    data: Path | None = None,
    seeds: Sequence[int] = (),
    rows: Sequence[str] = (),
    chosen: Collection[str] = (),
) -> list[GridRun]:
    """Plan the runs of some or all rows and seeds, each after the runs that it needs.

    Rows with fewer seeds keep to them, unless they are named, or `chosen` by a choice.
    """
    wanted = [definition.row(label) for label in rows or definition.row_labels]
    found: dict[str, GridRun] = {}
    for seed in dict.fromkeys(seeds or definition.seeds):
        trained = (
            _plan_run(definition, row, seed=seed, out=out.absolute(), data=data)
            for row in wanted
            if not row.seeds or seed in row.seeds or row.label in {*rows, *chosen}
        )
        own = {run.name: run for run in trained}
        needed = {need.name: need for run in own.values() for need in run.needs}
        found |= {name: run for name, run in needed.items() if name not in own} | own
    return list(found.values())


def data_of_runs(out: Path) -> Path | None:
    """Return the data set of the runs in a folder; None without runs."""
    configs = sorted(out.glob(f"*/seed-*/{CONFIG}"))
    return Path(load_recipe(configs[0]).data) if configs else None


def _plan_run(
    definition: Definition, row: Row, *, seed: int, out: Path, data: Path | None
) -> GridRun:
    plan = partial(_plan_run, definition, seed=seed, out=out, data=data)
    recipe = replace(definition.recipe_of(row), seed=seed)
    if data is not None:
        recipe = replace(recipe, data=str(data))
    teacher_row = definition.teacher_of(row) if recipe.needs_lists else None
    teacher = None if teacher_row is None else plan(teacher_row)
    if teacher is not None:
        recipe = replace(recipe, candidates=str(teacher.lists))
    recipe, initial = recipe.resolved(), None
    if recipe.rounds == "both" and recipe.round_two.start_from == "round_one":
        online = (each for each in definition.rows if definition.recipe_of(each).rounds == "one")
        sources = chain(() if teacher is None else (teacher,), map(plan, online))
        of_one = attrgetter("data", "seed", "min_word_count", "model", "round_one")
        initial = next((run for run in sources if of_one(run.recipe) == of_one(recipe)), None)
    return GridRun(
        experiment=definition.name,
        label=row.label,
        is_row=row in definition.rows,
        source=row.recipe,
        recipe=recipe,
        folder=out / definition.folder_of(row) / f"seed-{seed}",
        teacher=teacher,
        initial=initial,
    )
