"""What a run's own files tell: how it was trained, what was set and what came of it.

Read at each request, since a run may still be training while it is looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from aoq.config import Recipe
from aoq.experiments.events import Event, is_number, read_events
from aoq.experiments.runs import RunSummary
from aoq.experiments.tables import METRICS
from aoq.recipes import dotted_settings
from aoq.storage import ROUND_ONE, RunDirectory, read_json_lines
from aoq.training.checkpoint import hash_model
from aoq.web.answers import CurvesAnswer, EpochAnswer, ResultAnswer, ResultsAnswer, RoundAnswer

_PLACES = ("data", "candidates")  # folders of this machine, which are nobody's business


def curves(run: Path) -> CurvesAnswer:
    """Epoch by epoch; a second round is shown after the first where that lies beside it."""
    folders = {run.name: run}
    first = run.parent / ROUND_ONE
    if RunSummary.read(run).round == "two" and RunDirectory(first).events.is_file():
        folders = {ROUND_ONE: first} | folders
    rounds = [
        RoundAnswer(name=name, epochs=_epochs(read_events(folder)))
        for name, folder in folders.items()
    ]
    return CurvesAnswer(rounds=[shown for shown in rounds if shown.epochs])


def results(run: Path) -> ResultsAnswer:
    """The settings that are not the paper's, and the last result on each split."""
    usual, summary = dotted_settings(Recipe()), RunSummary.read(run)
    settings = dotted_settings(summary.recipe)
    own = _own_results(summary)
    last = {line["split"]: line for line in own}
    intervals = {line["split"]: found for line in own if (found := _intervals(line))}
    return ResultsAnswer(
        settings={
            name: value
            for name, value in settings.items()
            if value != usual[name] and name not in _PLACES
        },
        results=[
            ResultAnswer.model_validate(
                {"split": split, "intervals": intervals.get(split), **_figures(line)}
            )
            for split, line in last.items()
        ],
    )


def _own_results(run: RunSummary) -> list[dict[str, Any]]:
    """The results of the run's model as it is, on its own data.

    Those of ensembles, of models since replaced and of other data are in the same file. Where the
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
    model = _hash_of(directory)
    return [
        line
        for line in lines
        if line.get("model") == model and line.get("data") == own[line["split"]]
    ]


def _hash_of(run: RunDirectory) -> str:
    """Of files that are large, and read again only where one was replaced."""
    files = (run.model, run.vocabulary, run.config)
    found = [file.stat() for file in files if file.is_file()]
    return _hash_once(run.path, tuple((each.st_mtime_ns, each.st_size) for each in found))


@lru_cache
def _hash_once(run: Path, versions: tuple[tuple[int, int], ...]) -> str:
    return hash_model(run)


def _epochs(events: Iterable[Event]) -> list[EpochAnswer]:
    """One point an epoch; of epochs that were trained again after a kill, the last."""
    losses: dict[int, float] = {}
    validations: dict[int, dict[str, float]] = {}
    for event in events:
        match event["event"]:
            case "epoch":
                terms = [term for term in event.get("loss", {}).values() if is_number(term)]
                if terms:  # none where only the validation was done again
                    losses[event["epoch"]] = sum(terms)
            case "validation":
                validations[event["epoch"]] = _figures(event)
    return [
        EpochAnswer(
            epoch=epoch,
            loss=losses.get(epoch),
            **{name: validations.get(epoch, {}).get(name) for name in ("rsum", "i2t_r1", "t2i_r1")},
        )
        for epoch in sorted(losses.keys() | validations.keys())
    ]


def _intervals(line: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """Those that a line has, as far as they are pairs of numbers."""
    found = line.get("intervals")
    pairs = found.items() if isinstance(found, dict) else ()
    return {
        name: (pair[0], pair[1])
        for name, pair in pairs
        if isinstance(pair, list) and len(pair) == 2 and all(map(is_number, pair))
    }


def _figures(line: Mapping[str, Any]) -> dict[str, float]:
    return {name: line[name] for name in METRICS if is_number(line.get(name))}
