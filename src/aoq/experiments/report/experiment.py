"""The report of a grid: reads what is done of an experiment, and gathers what its page tells."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from aoq.data.dataset import PairDataset
from aoq.data.opening import open_dataset
from aoq.errors import UserError
from aoq.evaluation.online_share import BATCH_SIZES, OnlineShare, online_shares
from aoq.experiments.cells import Cell, plan_grid
from aoq.experiments.definitions import Definition
from aoq.experiments.report.claims import judge_claims
from aoq.experiments.report.page import Report
from aoq.experiments.report.rows import read_rows
from aoq.experiments.report.scores import TeacherBatches
from aoq.experiments.results import (
    Results,
    choices_made,
    chosen_rows,
    comparable,
    read_results,
)
from aoq.processes import ALONE
from aoq.progress import count_of, say, warn
from aoq.recipes import load_recipe
from aoq.scoring.inner_product import InnerProduct
from aoq.storage import ROUND_ONE, RunDirectory
from aoq.training.trained import open_splits

_LEFT_OUT = "intervals, histograms, scores and examples are left out"


def read_experiment(
    definition: Definition,
    *,
    out: Path,
    results: Path,
    data: Path | None = None,
    seeds: Sequence[int] | None = None,
    rows: Sequence[str] | None = None,
    command: str,
) -> Report:
    """What is done of an experiment; `command` is what runs it, without rows and seeds."""
    plan = partial(plan_grid, definition, out=out, data=data, seeds=seeds, rows=rows)
    noted = read_results(results, definition)
    if not noted:
        raise UserError(f"{results} has no result of {definition.name} yet; run it first.")
    folder = data or _find_data(plan())
    if folder is None:  # all there is to tell by which data is meant
        contents = Counter(line.get("data") for line in noted.values()).most_common(1)[0][0]
    else:
        contents = open_dataset(folder, "train").contents
    noted = read_results(results, definition, contents)
    choices = choices_made(definition, noted, contents)
    cells = plan(chosen=chosen_rows(definition, noted, contents))
    split, lines = comparable(cells, noted, contents)
    own = [cell for cell in cells if cell.is_row]
    done = [cell for cell in own if (cell.label, cell.recipe.seed) in lines]
    if not done:
        raise UserError(
            f"{results} has no result of {definition.name} that fits these rows, seeds, settings "
            "and data; run it, or name its own data set with --data."
        )
    dataset = None if folder is None else open_dataset(folder, split)
    mined = None if folder is None else _open_mined(done, folder)
    first = {cell.label: cell for cell in reversed(own)}  # of every row the first seed
    found = read_rows(
        definition,
        cells,
        lines,
        split=split,
        choices=choices,
        results=results,
        dataset=dataset,
        data=folder,
    )
    return Report(
        title=definition.name,
        description=definition.description,
        rows=found,
        claims=list(judge_claims(definition.claims, found)),
        split=split,
        dataset=dataset,
        data=folder,
        mined=mined,
        shares=() if mined is None else _measure_shares(mined, folder),
        settings={label: first[label].settings for label in _labels(own)},
        facts=_facts(done, lines, dataset=dataset, mined=mined),
        commands={
            label: f"{command} --rows {shlex.quote(label)} --seeds "
            + " ".join(str(cell.recipe.seed) for cell in own if cell.label == label)
            for label in _labels(own)
        },
    )


def _labels(cells: Iterable[Cell]) -> list[str]:
    return list(dict.fromkeys(cell.label for cell in cells))


def _find_data(cells: Iterable[Cell]) -> Path | None:
    """The data set that the runs name; none where it, or they, are not there."""
    configs = (RunDirectory(cell.folder).config for cell in cells)
    named = (Path(load_recipe(config).data) for config in configs if config.is_file())
    folder = next(named, None)
    if folder is None:
        warn(f"the runs are not there, so {_LEFT_OUT}; add --data FOLDER, or --out.")
    elif not folder.is_dir():
        warn(f"the data set {folder} is not there, so {_LEFT_OUT}; add --data FOLDER.")
        return None
    return folder


def _open_mined(done: Iterable[Cell], data: Path) -> TeacherBatches | None:
    """The lists that the first row draws from whose teacher is there."""
    for cell in done:
        teacher = cell.teacher
        if teacher is None or not teacher.lists.is_file():
            continue
        round_one = teacher.folder / ROUND_ONE
        if RunDirectory(round_one).model.is_file() and RunDirectory(cell.folder).config.is_file():
            return TeacherBatches.open(
                cell.folder, teacher=round_one, lists=teacher.lists, data=data
            )
    return None


def _measure_shares(mined: TeacherBatches, data: Path | None) -> list[OnlineShare]:
    """By the teacher's scores, unless it is one with which ranking everything takes hours."""
    pairs = len(mined.dataset.positives.pairs)
    sizes = {*BATCH_SIZES, mined.settings.batch_size}
    sizes = {size for size in sizes if 4 * size <= pairs}
    (part,) = open_splits([mined.teacher], split="train", data=data, on_disk=ALONE)
    if not isinstance(part.scorer, InnerProduct) or not sizes:
        return []
    say("ranking the negatives of random batches in the whole training set")
    return online_shares(
        part.scorer, part.encoded, part.dataset.positives, batch_sizes=sorted(sizes)
    )


def _size(dataset: PairDataset) -> str:
    return f"{count_of(len(dataset), 'image')}, {count_of(dataset.n_texts, 'text')}"


def _facts(
    done: Sequence[Cell],
    lines: Results,
    *,
    dataset: PairDataset | None,
    mined: TeacherBatches | None,
) -> dict[str, str]:
    """What the figures depend on besides the settings."""
    own = [lines[cell.label, cell.recipe.seed] for cell in done]
    facts = {}
    if dataset is not None:
        facts["data"] = f"{dataset.name}, {dataset.split}: {_size(dataset)}"
    if mined is not None:
        train, lists = mined.dataset, mined.lists
        facts["trained on"] = _size(train)
        texts = count_of(lists.depth_texts, "text")
        facts["teacher's lists"] = f"{texts}, {count_of(lists.depth_images, 'image')} deep"
    seconds = sorted(line["seconds"] for line in own)
    facts["seconds of a training"] = f"{seconds[0]:,.0f} to {seconds[-1]:,.0f}, in its last round"
    facts["threads of a training"] = _told(line.get("threads") for line in own)
    facts["machine"] = _told(_machine(line.get("machine")) for line in own)
    return {name: value for name, value in facts.items() if value}


def _told(values: Iterable[Any]) -> str:
    """What is known, each once."""
    return "; ".join(dict.fromkeys(str(value) for value in values if value))


def _machine(machine: Mapping[str, Any] | None) -> str:
    return ", ".join(f"{name} {value}" for name, value in (machine or {}).items())
