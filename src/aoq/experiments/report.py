"""Reads the finished results of an experiment, which may still be running, into its report."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from aoq.data.dataset import PairDataset
from aoq.data.splits import open_dataset
from aoq.errors import UserError
from aoq.experiments.definition import Definition
from aoq.experiments.negatives import MinedLists
from aoq.experiments.page import ExperimentReport
from aoq.experiments.plan import GridRun, plan_grid
from aoq.experiments.results import Line, choices_made, chosen_rows, comparable, read_results
from aoq.experiments.rows import ResultRow, read_rows
from aoq.progress import count_of, warn
from aoq.recipes import load_recipe
from aoq.runs.directory import ROUND_ONE, RunDirectory


def read_experiment(
    definition: Definition,
    *,
    out: Path,
    results: Path,
    data: Path | None = None,
    seeds: Sequence[int] | None = None,
    rows: Sequence[str] | None = None,
    command: str,
) -> ExperimentReport:
    """Read the results of an experiment; `command` runs it, without rows and seeds."""
    plan = partial(plan_grid, definition, out=out, data=data, seeds=seeds, rows=rows)
    lines = read_results(results, definition)
    if not lines:
        raise UserError(f"{results} has no result of {definition.name} yet; run it first.")
    folder = data or _find_data(plan())
    if folder is None:  # the most common data set of the file is meant
        contents = Counter(line.get("data") for line in lines.values()).most_common(1)[0][0]
    else:
        contents = open_dataset(folder, "train").contents
    lines = read_results(results, definition, contents)
    runs = plan(chosen=chosen_rows(definition, lines, contents))
    split, shown = comparable(runs, lines, contents)
    own = [run for run in runs if run.is_row]
    if not any(run.key in shown for run in own):
        raise UserError(
            f"{results} has no result of {definition.name} for these rows, seeds, settings and "
            "data; run the experiment, or select its data set with --data."
        )
    dataset = None if folder is None else open_dataset(folder, split)
    return ExperimentReport(
        title=definition.name,
        description=definition.description,
        rows=read_rows(
            definition,
            runs,
            shown,
            split=split,
            choices=choices_made(definition, lines, contents),
            results=results,
            dataset=dataset,
            data=folder,
        ),
        split=split,
        dataset=dataset,
        data=folder,
        mined=None if folder is None else _open_mined(own, folder),
        settings={run.label: run.settings for run in own},
        facts=_facts([shown[run.key] for run in own if run.key in shown], dataset),
        commands={run.label: _repeat(command, run.label, own) for run in own},
    )


def recorded_rows(definition: Definition, results: Path) -> list[ResultRow]:
    """Read the rows that have results, and the ranks beside them, without the data and the runs."""
    lines = read_results(results, definition)
    runs = plan_grid(definition, out=Path(), chosen=chosen_rows(definition, lines))
    split, shown = comparable(runs, lines)
    choices = choices_made(definition, lines)
    return read_rows(definition, runs, shown, split=split, choices=choices, results=results)


def _repeat(command: str, label: str, runs: Iterable[GridRun]) -> str:
    """Make the command that repeats a row."""
    seeds = " ".join(str(run.recipe.seed) for run in runs if run.label == label)
    return f"{command} --rows {shlex.quote(label)} --seeds {seeds}"


def _find_data(runs: Iterable[GridRun]) -> Path | None:
    """Find the data set that the runs name; none, with a warning, if it or they are missing."""
    configs = (RunDirectory(run.folder).config for run in runs)
    named = (Path(load_recipe(config).data) for config in configs if config.is_file())
    folder = next(named, None)
    if folder is not None and folder.is_dir():
        return folder
    missing = "the runs are missing" if folder is None else f"the data set {folder} is missing"
    warn(f"{missing}, so examples are left out; add --data FOLDER, or --out.")
    return None


def _open_mined(runs: Iterable[GridRun], data: Path) -> MinedLists | None:
    """Open the lists of the first run that draws from a teacher's, if both are there."""
    for run in runs:
        if run.teacher is not None and run.teacher.lists.is_file():
            one, lists = run.teacher.folder / ROUND_ONE, run.teacher.lists
            if RunDirectory(one).model.is_file() and RunDirectory(run.folder).config.is_file():
                return MinedLists.open(run.folder, teacher=one, lists=lists, data=data)
    return None


def _facts(lines: Sequence[Line], dataset: PairDataset | None) -> dict[str, str]:
    """Collect what the figures depend on besides the settings."""
    data, seconds = "", sorted(line["seconds"] for line in lines)
    if dataset is not None:
        size = f"{count_of(len(dataset), 'image')}, {count_of(dataset.n_texts, 'text')}"
        data = f"{dataset.name}, {dataset.split}: {size}"
    facts = {
        "data": data,
        "seconds of a training": f"{seconds[0]:,.0f} to {seconds[-1]:,.0f}, in its last round",
        "threads of a training": _distinct(line.get("threads") for line in lines),
        "machine": _distinct(shown_machine(line.get("machine")) for line in lines),
    }
    return {name: value for name, value in facts.items() if value}


def _distinct(values: Iterable[Any]) -> str:
    return "; ".join(dict.fromkeys(str(value) for value in values if value))


def shown_machine(machine: Mapping[str, Any] | None) -> str:
    return ", ".join(f"{name} {value}" for name, value in (machine or {}).items())
