"""A grid of runs: the rows of an experiment, each trained with every seed.

Every cell is a run like those of `aoq run`, in OUT/<recipe>/seed-<n>. The row of the teacher trains
round one and mines; rows that draw from its lists wait for it and train round two only. All rows
come with the first seed, then all with the next, so that a whole table is there early. What a cell
came to is one line of a results file, written when it ends; a cell that has its line is done.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from aoq.config import Recipe
from aoq.data.check import check_dataset
from aoq.data.dataset import open_dataset
from aoq.experiments.definitions import Definition, Row
from aoq.experiments.lanes import Job, Part, run_side_by_side
from aoq.experiments.runs import RunSummary
from aoq.progress import say, warn
from aoq.recipes import load_recipe, save_recipe, settings_that_matter
from aoq.storage import (
    ROUND_ONE,
    ROUND_TWO,
    RunDirectory,
    append_json_line,
    atomic_folder,
    hash_parts,
    read_json_lines,
)
from aoq.training.inputs import open_training_data
from aoq.training.trained import mine_run
from aoq.training.two_rounds import prepare_run, run_recipe

Results = Mapping[tuple[str, int], Mapping[str, Any]]


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
        return self.folder / (ROUND_ONE if self.recipe.rounds == "one" else ROUND_TWO)

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
            trained.append((ROUND_ONE, "round one", self.recipe.round_one.epochs))
        if self.recipe.rounds == "both":
            trained.append((ROUND_TWO, "round two", self.recipe.round_two.epochs))
        return tuple(
            Part(f"{self.name}, {title}", self.folder / round_, epochs)
            for round_, title, epochs in trained
        )


def plan_grid(
    definition: Definition,
    *,
    out: Path,
    data: Path | None = None,
    seeds: Sequence[int] | None = None,
    rows: Sequence[str] | None = None,
) -> list[Cell]:
    """The cells of some or all rows and seeds, and before them those that they need."""
    wanted = [definition.row(label) for label in rows or [row.label for row in definition.rows]]
    found: dict[str, Cell] = {}
    for seed in definition.seeds if not seeds else dict.fromkeys(seeds):
        planner = _Planner(definition, out.absolute(), data, seed)
        for row in wanted:
            cell = planner.cell(row)
            found |= {each.name: each for each in (*cell.needs, cell)}
    return list(found.values())


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


# Results


def results_file(out: Path) -> Path:
    """Where results go unless another file is named."""
    return out / "results.jsonl"


def read_results(path: Path, experiment: str) -> Results:
    """The lines of an experiment by row and seed; of several, the last."""
    return {
        (line["row"], line["seed"]): line
        for line in read_json_lines(path)
        if isinstance(line, dict) and line.get("experiment") == experiment
    }


def result_line(cell: Cell, *, threads: int | None) -> dict[str, Any]:
    """What a finished cell came to, from the files of its run.

    Seconds are those of the steps; of an interrupted epoch the part after the last start counts.
    """
    summary = RunSummary.read(cell.last_round)
    assert summary.dev is not None
    seconds, steps = 0.0, 0
    curve: dict[int, dict[str, float]] = {}
    for line in read_json_lines(RunDirectory(summary.path).events):
        if line["event"] == "epoch":
            seconds, steps = seconds + line["seconds"], steps + line["steps"]
        elif line["event"] == "validation":
            curve[line["epoch"]] = {name: line[name] for name in ("rsum", "i2t_r1", "t2i_r1")}
    return {
        "experiment": cell.experiment,
        "row": cell.label,
        "recipe": cell.source,
        "seed": cell.recipe.seed,
        "teacher": None if cell.teacher is None else cell.teacher.source,
        "settings": cell.settings,
        "digest": cell.digest,
        "data": summary.origins["data"],
        "best_epoch": summary.dev.epoch,
        "dev": dict(summary.dev.metrics),
        "test": None if summary.test is None else dict(summary.test),
        "curve": [{"epoch": epoch, **curve[epoch]} for epoch in sorted(curve)],
        "seconds": round(seconds, 2),
        "steps_per_second": round(steps / seconds, 3) if seconds else None,
        "threads": threads,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def grid_table(definition: Definition, cells: Sequence[Cell], lines: Results) -> Table:
    """Rows, their recipes and rsum by seed: on test, or on dev where there is no test."""
    shown = {(cell.label, cell.recipe.seed): cell for cell in cells if cell.is_row}
    seeds = list(dict.fromkeys(seed for _, seed in shown))
    table = Table(title=definition.description, title_justify="left", box=SIMPLE_HEAD)
    table.add_column("row", overflow="fold")
    table.add_column("recipe", overflow="fold")
    for seed in seeds:
        table.add_column(f"seed {seed}", justify="right", no_wrap=True)
    for label in dict.fromkeys(label for label, _ in shown):
        values = [_listed(shown[label, seed], lines) for seed in seeds]
        table.add_row(Text(label), Text(definition.row(label).recipe), *values)
    return table


def _listed(cell: Cell, lines: Results) -> str:
    line = lines.get((cell.label, cell.recipe.seed))
    if line is None:
        return "-"
    figure = f"{(line['test'] or line['dev'])['rsum']:.1f}"
    return f"{figure} (other settings)" if _is_stale(cell, lines) else figure


# Work


def run_grid(
    definition: Definition,
    *,
    data: Path,
    out: Path,
    seeds: Sequence[int] | None = None,
    rows: Sequence[str] | None = None,
    lanes: int | None = None,
    results: Path | None = None,
    force: bool = False,
) -> dict[str, str]:
    """Run or continue the cells that have no line in the results; what went wrong, by cell.

    A line that was made with other settings or data stays as it is, with a warning; with `force`
    its cell is done again, as are begun runs with other settings and whatever draws from either.
    """
    cells = plan_grid(definition, out=out, data=data, seeds=seeds, rows=rows)
    report = check_dataset(data)
    report.raise_for_errors()
    for warning in report.warnings:
        warn(warning)
    results = results or results_file(out)
    lines = read_results(results, definition.name)
    fingerprint = open_dataset(data, "train").fingerprint
    told = {cell.name for cell in cells if (cell.label, cell.recipe.seed) in lines}
    stale = {cell.name for cell in cells if _is_stale(cell, lines, fingerprint)}
    for name in sorted(stale):
        warn(
            f"{name} has a result of other settings or data in {results}; it "
            f"{'is done again' if force else 'stays: add --force to do it again'}."
        )
    anew = _anew(cells, stale, told - stale, fingerprint) if force else set()
    done = told - anew
    todo = _with_needs([cell for cell in cells if cell.is_row and cell.name not in done], cells)
    mining = {cell.teacher.name for cell in todo if cell.teacher is not None}
    jobs = {
        cell.name: Job(
            cell.name,
            partial(run_cell, cell, mine=cell.name in mining, force=cell.name in anew),
            cell.parts,
            after=tuple(dict.fromkeys(need.name for need in cell.needs)),
        )
        for cell in todo
    }
    new_rows = {cell.name for cell in todo if cell.is_row} - done

    def note(job: Job, line: dict[str, Any]) -> None:
        if job.name in new_rows:
            append_json_line(results, line)
            say(f"{job.name}: {_told(line)}")

    say(f"{definition.name}: {len(done)} results are there, {len(new_rows)} are to come")
    results.parent.mkdir(parents=True, exist_ok=True)
    return run_side_by_side(list(jobs.values()), title=definition.name, lanes=lanes, when_done=note)


def run_cell(cell: Cell, *, mine: bool = False, force: bool = False) -> dict[str, Any]:
    """Run a cell, or what is left of it, and mine with it if others need its lists."""
    trained_before = not force and cell.is_trained
    if force:
        reads = [Path(file) for file in (cell.recipe.data, cell.recipe.candidates) if file]
        prepare_run(cell.folder, cell.recipe, force=True, reads=reads)
    if cell.beginner is not None:
        _take_round_one(cell, cell.beginner)
    run_recipe(cell.folder, cell.recipe, data=open_training_data(cell.recipe, checked=True))
    if mine and not cell.lists.exists():
        mine_run(cell.folder / ROUND_ONE, cell.lists, config=cell.recipe.mining)
    return result_line(cell, threads=None if trained_before else torch.get_num_threads())


def _told(line: Mapping[str, Any]) -> str:
    """The result of a cell in a few words."""
    test = "" if line["test"] is None else f", test rsum {line['test']['rsum']:.1f}"
    return f"dev rsum {line['dev']['rsum']:.1f} in epoch {line['best_epoch']}{test}"


def _is_stale(cell: Cell, lines: Results, fingerprint: str | None = None) -> bool:
    """Whether a cell has a line that tells of other settings, or of other data."""
    line = lines.get((cell.label, cell.recipe.seed))
    if line is None:
        return False
    return line.get("digest") != cell.digest or fingerprint not in (None, line.get("data"))


def _anew(cells: Iterable[Cell], stale: Set[str], fitting: Set[str], fingerprint: str) -> set[str]:
    """The cells to start anew: stale ones, those begun otherwise, and who needs any of them."""
    names = set(stale)
    for cell in cells:  # those that are needed come first
        needs_one = any(need.name in names for need in cell.needs)
        if needs_one or (cell.name not in fitting and _was_begun_otherwise(cell, fingerprint)):
            names.add(cell.name)
    return names


def _was_begun_otherwise(cell: Cell, fingerprint: str) -> bool:
    """Whether the folder holds a run with other settings or on other data."""
    config = RunDirectory(cell.folder).config
    if not config.is_file():
        return False
    origins = [RunDirectory(cell.folder / name).origin for name in (ROUND_ONE, ROUND_TWO)]
    begun_on = {json.loads(origin.read_bytes())["data"] for origin in origins if origin.is_file()}
    begun = replace(cell, recipe=load_recipe(config))
    return begun.digest != cell.digest or not begun_on <= {fingerprint}


def _with_needs(chosen: Iterable[Cell], cells: Sequence[Cell]) -> list[Cell]:
    """Some cells and those that they need, in the order of all."""
    names = {each.name for cell in chosen for each in (*cell.needs, cell)}
    return [cell for cell in cells if cell.name in names]


def _take_round_one(cell: Cell, beginner: Cell) -> None:
    """Copy the finished round one of a cell with the same, as if it had been trained here."""
    prepare_run(cell.folder, cell.recipe)
    here, there = cell.folder / ROUND_ONE, RunDirectory(beginner.folder / ROUND_ONE)
    if here.exists():
        return
    with atomic_folder(here) as temporary:
        for file in (there.origin, there.vocabulary, there.events, there.model, there.trainer):
            shutil.copy2(file, temporary)
        save_recipe(cell.recipe, RunDirectory(temporary).config)
