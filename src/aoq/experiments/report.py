"""Reads the finished results of an experiment, which may still be running, into its report."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from aoq.data.dataset import PairDataset
from aoq.data.splits import open_dataset
from aoq.errors import UserError
from aoq.experiments.negatives import MinedLists
from aoq.experiments.page import ExperimentReport
from aoq.experiments.plan import GridRun, data_of_runs
from aoq.experiments.results import Experiment, Line
from aoq.experiments.rows import RankReader, ResultRow, read_rows
from aoq.progress import count_of, warn
from aoq.runs.directory import ROUND_ONE, RunDirectory


def read_experiment(experiment: Experiment, *, command: str) -> ExperimentReport:
    """Read the results of an experiment; `command` runs it, without rows and seeds."""
    definition, file = experiment.definition, experiment.results_file
    results = experiment.read()
    if not results.lines:
        raise UserError(f"{file} has no result of {definition.name} yet; run it first.")
    folder = experiment.data or _find_data(experiment.out)
    if folder is None:  # the most common data set of the file is meant
        data_sets = Counter(line.get("data") for line in results.lines.values())
        contents = data_sets.most_common(1)[0][0]
    else:
        contents = open_dataset(folder, "train").contents
    results = experiment.read(contents)
    runs = experiment.plan(results)
    split, shown = results.comparable(runs)
    own = [run for run in runs if run.is_row]
    lines = [shown.lines[run.key] for run in own if run.key in shown.lines]
    if not lines:
        raise UserError(
            f"{file} has no result of {definition.name} for these rows, seeds, settings and "
            "data; run the experiment, or select its data set with --data."
        )
    dataset = None if folder is None else open_dataset(folder, split)
    reader = RankReader(file, split, dataset, folder)
    rows = read_rows(runs, shown, choices=results.choices, reader=reader)
    settings = {run.label: run.settings for run in own}
    planned = {row.label: " ".join(map(str, row.seeds)) for row in rows if row.label in settings}
    return ExperimentReport(
        title=definition.name,
        description=definition.description,
        rows=rows,
        split=split,
        dataset=dataset,
        data=folder,
        mined=None if folder is None else _open_mined(own, folder),
        settings=settings,
        facts=_facts(lines, dataset),
        commands={
            label: f"{command} --rows {shlex.quote(label)} --seeds {seeds}"
            for label, seeds in planned.items()
        },
    )


def recorded_rows(experiment: Experiment) -> list[ResultRow]:
    """Read the rows that have results, and the ranks beside them, without the data and the runs."""
    results = experiment.read()
    runs = experiment.plan(results)
    split, shown = results.comparable(runs)
    reader = RankReader(experiment.results_file, split)
    return read_rows(runs, shown, choices=results.choices, reader=reader)


def _find_data(out: Path) -> Path | None:
    """Find the data set that the runs name; none, with a warning, if it or they are missing."""
    folder = data_of_runs(out)
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
