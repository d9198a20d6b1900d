"""Runs the part of an experiment that has no result yet, several runs at a time."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from aoq.data.checks.dataset import check_dataset
from aoq.data.dataset import PairDataset
from aoq.data.splits import open_dataset
from aoq.errors import UserError
from aoq.evaluation.rank_archive import RankArchive
from aoq.experiments.forecast import forecasts
from aoq.experiments.jobs import Job, run_jobs
from aoq.experiments.plan import GridRun
from aoq.experiments.results import Experiment, ranks_key, result_line
from aoq.manifest import create_manifest
from aoq.progress import EventLog, count_of, say, warn
from aoq.recipes import load_recipe, save_recipe
from aoq.runs.directory import ROUND_ONE, ROUND_TWO, RunDirectory
from aoq.runs.judge import ranks_of
from aoq.runs.mine import mine_run
from aoq.storage import append_json_line, atomic_folder, hash_file, is_vacant, read_json
from aoq.training.inputs import open_training_data
from aoq.training.two_rounds import prepare_run, run_recipe


def run_grid(
    experiment: Experiment, *, at_once: int | None = None, force: bool = False
) -> dict[str, str]:
    """Run or continue the runs without a result; return what went wrong, by run.

    A result with other settings or data is kept, with a warning; `force` replaces it, and restarts
    runs that were started with other settings as well as the runs that draw from either.
    When the candidates of a choice are done, the best of them is run with the other seeds.
    """
    if experiment.data is None:
        meant = experiment.definition.data
        hint = f" It is meant for: {meant}" if meant else ""
        raise UserError(f"the data set is missing; add --data FOLDER.{hint}")
    report = check_dataset(experiment.data)
    report.raise_for_errors()
    dataset = open_dataset(experiment.data, "train")
    runs = experiment.plan(experiment.read(dataset.contents))
    report.warn_in_one_line()
    for forecast in forecasts(experiment):
        say(forecast.sentence)
    for folder, what in (
        (experiment.out, "experiment"),
        (experiment.results_file.parent, "results"),
    ):
        if is_vacant(folder):
            folder.mkdir(parents=True, exist_ok=True)
            create_manifest(folder, what)
    problems = _run(experiment, runs, dataset, at_once=at_once, force=force)
    names = {each.name for each in runs}
    after = experiment.plan(experiment.read(dataset.contents))
    sound = [each for each in after if each.name not in problems]
    if any(each.name not in names for each in sound):
        problems |= _run(experiment, sound, dataset, at_once=at_once, force=force)
    return problems


def _run(
    experiment: Experiment,
    runs: Sequence[GridRun],
    dataset: PairDataset,
    *,
    at_once: int | None,
    force: bool,
) -> dict[str, str]:
    """Run what has no result that stays, and what that needs."""
    file, name = experiment.results_file, experiment.definition.name
    results = experiment.read(dataset.contents)
    noted = {run.name for run in runs if run.key in results.lines}
    stale = {run.name for run in runs if results.why_stale(run)}
    for each in sorted(stale):
        warn(
            f"{each} has a result with other settings or data in {file}; "
            f"{'it is run again' if force else 'it is kept: add --force to run it again'}."
        )
    restarted = _restarted(runs, noted - stale, dataset.fingerprint) if force else set()
    done = noted - restarted - (stale if force else set())
    rows = {run.name: run for run in runs if run.is_row and run.name not in done}
    mining = {run.teacher.name for run in rows.values() if run.teacher is not None}

    def has_work(run: GridRun) -> bool:
        if run.name in rows or run.name in restarted or not run.is_trained:
            return True
        lacks_lists = run.name in mining and not run.lists.exists()
        return lacks_lists or _differs_on_disk(run, dataset.fingerprint)

    needed = {each.name for run in rows.values() for each in (*run.needs, run)}
    wanted = {run.name: run for run in runs if run.name in needed and has_work(run)}
    jobs = [
        Job(
            run.name,
            partial(
                train_run,
                run,
                results=file if run.name in rows else None,
                mine=run.name in mining,
                restart=run.name in restarted,
            ),
            run.rounds,
            after=tuple(wanted.keys() & {need.name for need in run.needs}),
        )
        for run in wanted.values()
    ]

    def note(job: Job, line: dict[str, Any]) -> None:
        if job.name in rows:
            append_json_line(file, line, with_check=True)
            say(f"{job.name}: {_shown(line)}")

    say(f"{name}: {count_of(len(done), 'result')} finished, {len(rows)} to run")
    return run_jobs(jobs, title=name, at_once=at_once, when_done=note)


def train_run(
    run: GridRun, *, results: Path | None = None, mine: bool = False, restart: bool = False
) -> dict[str, Any]:
    """Train what is left of a run, and mine with it if others need its lists.

    Returns the line for the results; its ranks on dev and test are kept beside them.
    """
    trained_before = not restart and run.is_trained
    if restart:
        prepare_run(run.folder, run.recipe, force=True, reads=run.recipe.files)
    if run.initial is not None:
        _copy_round_one(run, run.initial)
    data = open_training_data(run.recipe, checked=True)
    run_recipe(run.folder, run.recipe, data=data)
    if mine and not run.lists.exists():
        mine_run(run.folder / ROUND_ONE, run.lists, config=run.recipe.mining)
    line = result_line(
        run,
        contents=data.train.dataset.contents,
        threads=None if trained_before else _threads_of(run),
    )
    if results is not None:
        for judged_on in filter(None, (data.dev, data.test)):
            ranks = ranks_of([run.last_round], judged_on.dataset, data=None)
            key = ranks_key(line, split=judged_on.dataset.split)
            RankArchive.beside(results).keep(*key, ranks)
    return line


def _threads_of(run: GridRun) -> int | None:
    """Read from the log how many threads the last round had."""
    events = EventLog(RunDirectory(run.last_round).events).read()
    starts = [line.get("threads") for line in events if line.get("event") == "start"]
    return starts[-1] if starts else None


def _shown(line: Mapping[str, Any]) -> str:
    test = "" if line["test"] is None else f", test rsum {line['test']['rsum']:.1f}"
    return f"dev rsum {line['dev']['rsum']:.1f} in epoch {line['best_epoch']}{test}"


def _restarted(runs: Iterable[GridRun], fitting: Set[str], fingerprint: str) -> set[str]:
    """Return the runs that were started with other settings, and those that need any of them.

    A run that was started as planned continues, even if its line in the results is an older one.
    """
    names: set[str] = set()
    for run in sorted(runs, key=lambda run: len(run.needs)):  # runs that are needed need nothing
        needs_one = any(need.name in names for need in run.needs)
        if needs_one or (run.name not in fitting and _differs_on_disk(run, fingerprint)):
            names.add(run.name)
    return names


def _differs_on_disk(run: GridRun, fingerprint: str) -> bool:
    """Return whether the folder has a run with other settings, data or lists."""
    config = RunDirectory(run.folder).config
    if not config.is_file():
        return False
    started = replace(run, recipe=load_recipe(config))
    files = [RunDirectory(run.folder / name).origin for name in (ROUND_ONE, ROUND_TWO)]
    origins = [read_json(file) for file in files if file.is_file()]
    drawn_from = {lists for origin in origins if (lists := origin.get("candidates")) is not None}
    lists = run.teacher.lists if run.teacher is not None else None
    there = {hash_file(lists)} if lists is not None and lists.is_file() else set()
    return (
        started.digest != run.digest
        or any(origin.get("data") != fingerprint for origin in origins)
        or (bool(drawn_from) and lists is not None and drawn_from != there)
    )


def _copy_round_one(run: GridRun, source: GridRun) -> None:
    """Copy the same round one from a run that has finished it."""
    prepare_run(run.folder, run.recipe)
    here, there = run.folder / ROUND_ONE, RunDirectory(source.folder / ROUND_ONE)
    if here.exists():
        return
    with atomic_folder(here, what="run") as temporary:
        for file in (there.origin, there.vocabulary, there.events, there.model, there.trainer):
            shutil.copy2(file, temporary)
        save_recipe(run.recipe, RunDirectory(temporary).config)
