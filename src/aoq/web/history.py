"""What a run's own files tell: how it was trained, what was set and what came of it.

Read at each request, since a run may still be training while it is looked at.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from aoq.config import Recipe
from aoq.experiments.runs import METRICS, RunSummary
from aoq.recipes import dotted_settings
from aoq.storage import ROUND_ONE, RunDirectory, hash_file, read_json_lines
from aoq.web.answers import CurvesAnswer, EpochAnswer, ResultAnswer, ResultsAnswer, RoundAnswer

_PLACES = ("data", "candidates")  # folders of this machine, which are nobody's business


def curves(run: Path) -> CurvesAnswer:
    """Epoch by epoch; a second round is shown after the first where that lies beside it."""
    folders = {run.name: run}
    first = run.parent / ROUND_ONE
    if RunSummary.read(run).round == "two" and RunDirectory(first).events.is_file():
        folders = {ROUND_ONE: first} | folders
    rounds = [
        RoundAnswer(name=name, epochs=_epochs(read_json_lines(RunDirectory(folder).events)))
        for name, folder in folders.items()
    ]
    return CurvesAnswer(rounds=[shown for shown in rounds if shown.epochs])


def results(run: Path) -> ResultsAnswer:
    """The settings that are not the paper's, and the last result on each split."""
    usual, summary = dotted_settings(Recipe()), RunSummary.read(run)
    settings = dotted_settings(summary.recipe)
    last = {line["split"]: line for line in _own_results(summary)}
    return ResultsAnswer(
        settings={
            name: value
            for name, value in settings.items()
            if value != usual[name] and name not in _PLACES
        },
        results=[
            ResultAnswer.model_validate({"split": split, **_figures(line)})
            for split, line in last.items()
        ],
    )


def _own_results(run: RunSummary) -> list[dict[str, Any]]:
    """The results of the run's weights as they are, on its own data.

    Those of ensembles, of weights since replaced and of other data are in the same file. Where the
    run does not say which data are its own, they are those that it was judged on first.
    """
    directory = RunDirectory(run.path)
    lines = [
        line for line in read_json_lines(directory.results) if isinstance(line.get("split"), str)
    ]
    if not lines:
        return []
    own = {line["split"]: line.get("data") for line in reversed(lines)}
    origins = {"train": run.origins["data"], "dev": run.origins["dev"]}
    own |= {split: data for split, data in origins.items() if data is not None}
    weights = _hash_of(directory.require_trained().model)
    return [
        line
        for line in lines
        if line.get("model") == weights and line.get("data") == own[line["split"]]
    ]


def _hash_of(weights: Path) -> str:
    """Of a file that is large, and read again only where it was replaced."""
    found = weights.stat()
    return _hash_once(weights, found.st_mtime_ns, found.st_size)


@lru_cache
def _hash_once(weights: Path, changed: int, size: int) -> str:
    return hash_file(weights)


def _epochs(events: Iterable[Mapping[str, Any]]) -> list[EpochAnswer]:
    """One point an epoch; of epochs that were trained again after a kill, the last."""
    losses: dict[int, float] = {}
    validations: dict[int, dict[str, float]] = {}
    for event in events:
        epoch = event.get("epoch")
        if not isinstance(epoch, int):
            continue
        match event.get("event"):
            case "epoch":
                terms = [term for term in event.get("loss", {}).values() if _is_number(term)]
                if terms:  # none where only the validation was done again
                    losses[epoch] = sum(terms)
            case "validation":
                validations[epoch] = _figures(event)
    return [
        EpochAnswer(
            epoch=epoch,
            loss=losses.get(epoch),
            **{name: validations.get(epoch, {}).get(name) for name in ("rsum", "i2t_r1", "t2i_r1")},
        )
        for epoch in sorted(losses.keys() | validations.keys())
    ]


def _figures(line: Mapping[str, Any]) -> dict[str, float]:
    return {name: line[name] for name in METRICS if _is_number(line.get(name))}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
