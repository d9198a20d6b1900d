"""Runs the cells of an experiment, or what is left of them, side by side."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from aoq.data.check import check_dataset
from aoq.data.dataset import PairDataset
from aoq.data.opening import open_dataset
from aoq.evaluation.kept_ranks import keep_ranks
from aoq.experiments.cells import Cell, plan_grid
from aoq.experiments.definitions import Definition
from aoq.experiments.lanes import Job, run_side_by_side
from aoq.experiments.results import (
    chosen_rows,
    is_stale,
    ranks_beside,
    read_results,
    result_line,
    results_file,
)
from aoq.manifest import create_manifest
from aoq.progress import EventLog, count_of, say, warn
from aoq.recipes import load_recipe, save_recipe
from aoq.storage import (
    ROUND_ONE,
    ROUND_TWO,
    RunDirectory,
    append_json_line,
    atomic_folder,
    hash_file,
    is_vacant,
    read_json,
)
from aoq.training.inputs import open_training_data
from aoq.training.trained import mine_run, ranks_of
from aoq.training.two_rounds import prepare_run, run_recipe


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
    When the candidates of a choice are done, the best of them is run with the other seeds.
    """
    report = check_dataset(data)
    report.raise_for_errors()
    results = results or results_file(out)
    dataset = open_dataset(data, "train")

    def plan() -> list[Cell]:
        lines = read_results(results, definition, dataset.contents)
        chosen = chosen_rows(definition, lines, dataset.contents)
        return plan_grid(definition, out=out, data=data, seeds=seeds, rows=rows, chosen=chosen)

    run = partial(
        _run_cells, definition, results=results, dataset=dataset, lanes=lanes, force=force
    )
    cells = plan()
    report.tell_of_warnings()
    if is_vacant(out):
        out.mkdir(parents=True, exist_ok=True)
        create_manifest(out, "experiment")
    if is_vacant(results.parent):
        results.parent.mkdir(parents=True, exist_ok=True)
        create_manifest(results.parent, "results")
    problems = run(cells)
    names = {cell.name for cell in cells}
    sound = [cell for cell in plan() if cell.name not in problems]
    return problems | (run(sound) if any(cell.name not in names for cell in sound) else {})


def _run_cells(
    definition: Definition,
    cells: Sequence[Cell],
    *,
    results: Path,
    dataset: PairDataset,
    lanes: int | None,
    force: bool,
) -> dict[str, str]:
    lines = read_results(results, definition, dataset.contents)
    told = {cell.name for cell in cells if (cell.label, cell.recipe.seed) in lines}
    stale = {cell.name for cell in cells if is_stale(cell, lines, dataset.contents)}
    for name in sorted(stale):
        warn(
            f"{name} has a result of other settings or data in {results}; it "
            f"{'is done again' if force else 'stays: add --force to do it again'}."
        )
    anew = _anew(cells, told - stale, dataset.fingerprint) if force else set()
    done = told - anew - (stale if force else set())
    wanted = [cell for cell in cells if cell.is_row and cell.name not in done]
    mining = {cell.teacher.name for cell in wanted if cell.teacher is not None}
    new_rows = {cell.name for cell in wanted}

    def needs_work(cell: Cell) -> bool:
        if cell.name in new_rows | anew or not cell.is_trained:
            return True
        lacks_lists = cell.name in mining and not cell.lists.exists()
        return lacks_lists or _was_begun_otherwise(cell, dataset.fingerprint)

    todo = {cell.name: cell for cell in _with_needs(wanted, cells) if needs_work(cell)}
    jobs = [
        Job(
            name,
            partial(
                run_cell,
                cell,
                results=results if name in new_rows else None,
                mine=name in mining,
                force=name in anew,
            ),
            cell.parts,
            after=tuple(todo.keys() & {need.name for need in cell.needs}),
        )
        for name, cell in todo.items()
    ]

    def note(job: Job, line: dict[str, Any]) -> None:
        if job.name in new_rows:
            append_json_line(results, line)
            say(f"{job.name}: {_told(line)}")

    say(f"{definition.name}: {count_of(len(done), 'result')} there, {len(new_rows)} to come")
    results.parent.mkdir(parents=True, exist_ok=True)
    return run_side_by_side(jobs, title=definition.name, lanes=lanes, when_done=note)


def run_cell(
    cell: Cell, *, results: Path | None = None, mine: bool = False, force: bool = False
) -> dict[str, Any]:
    """Run a cell, or what is left of it, and mine with it if others need its lists.

    The line for its results is what it returns; its ranks are kept beside them.
    """
    trained_before = not force and cell.is_trained
    if force:
        prepare_run(cell.folder, cell.recipe, force=True, reads=cell.recipe.files)
    if cell.beginner is not None:
        _take_round_one(cell, cell.beginner)
    data = open_training_data(cell.recipe, checked=True)
    run_recipe(cell.folder, cell.recipe, data=data)
    if mine and not cell.lists.exists():
        mine_run(cell.folder / ROUND_ONE, cell.lists, config=cell.recipe.mining)
    line = result_line(
        cell,
        contents=data.train.dataset.contents,
        threads=None if trained_before else _threads_of(cell),
    )
    if results is not None:
        judged_on = (data.test or data.dev).dataset
        ranks = ranks_of([cell.last_round], judged_on, data=None)
        keep_ranks(ranks_beside(results, line, split=judged_on.split), ranks)
    return line


def _threads_of(cell: Cell) -> int | None:
    """With which the last round took its steps, as its log tells."""
    events = EventLog(RunDirectory(cell.last_round).events).read()
    starts = [line.get("threads") for line in events if line.get("event") == "start"]
    return starts[-1] if starts else None


def _told(line: Mapping[str, Any]) -> str:
    """The result of a cell in a few words."""
    test = "" if line["test"] is None else f", test rsum {line['test']['rsum']:.1f}"
    return f"dev rsum {line['dev']['rsum']:.1f} in epoch {line['best_epoch']}{test}"


def _anew(cells: Iterable[Cell], fitting: Set[str], fingerprint: str) -> set[str]:
    """The cells to start anew: those begun otherwise, and who needs any of them.

    One that was begun as it should be goes on, also where its line in the results is an older one.
    """
    names: set[str] = set()
    for cell in sorted(cells, key=lambda cell: len(cell.needs)):  # who is needed needs nobody
        needs_one = any(need.name in names for need in cell.needs)
        if needs_one or (cell.name not in fitting and _was_begun_otherwise(cell, fingerprint)):
            names.add(cell.name)
    return names


def _was_begun_otherwise(cell: Cell, fingerprint: str) -> bool:
    """Whether the folder holds a run with other settings, on other data or from other lists."""
    config = RunDirectory(cell.folder).config
    if not config.is_file():
        return False
    begun = replace(cell, recipe=load_recipe(config))
    files = [RunDirectory(cell.folder / name).origin for name in (ROUND_ONE, ROUND_TWO)]
    origins = [read_json(file) for file in files if file.is_file()]
    drawn_from = {lists for origin in origins if (lists := origin.get("candidates")) is not None}
    lists = cell.teacher.lists if cell.teacher is not None else None
    return (
        begun.digest != cell.digest
        or any(origin.get("data") != fingerprint for origin in origins)
        or (bool(drawn_from) and lists is not None and drawn_from != _hash_where_there(lists))
    )


def _hash_where_there(file: Path) -> set[str]:
    return {hash_file(file)} if file.is_file() else set()


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
    with atomic_folder(here, what="run") as temporary:
        for file in (there.origin, there.vocabulary, there.events, there.model, there.trainer):
            shutil.copy2(file, temporary)
        save_recipe(cell.recipe, RunDirectory(temporary).config)
