"""The history of a run in its files: curves, settings and results.

Files are read at each request, because a run may still be training while it is viewed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from aoq.config import Recipe
from aoq.evaluation.tables import METRICS
from aoq.recipes import dotted_settings
from aoq.runs.checkpoint import hash_model
from aoq.runs.directory import ROUND_ONE, RunDirectory
from aoq.runs.events import Event, is_number, read_events
from aoq.runs.summary import RunSummary
from aoq.storage import read_json_lines
from aoq.web.schemas import CurvesAnswer, EpochAnswer, ResultAnswer, ResultsAnswer, RoundAnswer

_PLACES = ("data", "candidates")  # paths of this machine, which visitors must not see


def curves(run: Path) -> CurvesAnswer:
    """Read the epochs of a run; those of round one come first if it lies beside round two."""
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
    """Read the settings that differ from the paper's, and the last result on each split."""
    usual, summary = dotted_settings(Recipe()), RunSummary.read(run)
    settings = dotted_settings(summary.recipe) | _tower_names(summary.recipe)
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


def _tower_names(recipe: Recipe) -> dict[str, str]:
    """Name the pretrained towers of a run; of folders on this machine, only the last part."""
    towers = {name: getattr(recipe.model, name) for name in ("image", "text", "words")}
    return {
        f"model.{name}": Path(tower).name if Path(tower).is_absolute() else tower
        for name, tower in towers.items()
    }


def _own_results(run: RunSummary) -> list[dict[str, Any]]:
    """Read the results of the run's present model on its own data.

    The same file holds those of ensembles, of earlier weights and on other data. If the run does
    not say which data are its own, they are those of its first result.
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
    """Hash the model; its large files are read again only if one was replaced."""
    files = (run.model, run.vocabulary, run.config)
    found = [file.stat() for file in files if file.is_file()]
    return _hash_once(run.path, tuple((each.st_mtime_ns, each.st_size) for each in found))


@lru_cache
def _hash_once(run: Path, versions: tuple[tuple[int, int], ...]) -> str:
    return hash_model(run)


def _epochs(events: Iterable[Event]) -> list[EpochAnswer]:
    """Return a point per epoch; the last one of an epoch that was repeated after a kill."""
    losses: dict[int, float] = {}
    validations: dict[int, dict[str, float]] = {}
    for event in events:
        match event["event"]:
            case "epoch":
                terms = [term for term in event.get("loss", {}).values() if is_number(term)]
                if terms:  # empty if only the validation was repeated
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
    """Return the intervals of a line that are pairs of numbers."""
    found = line.get("intervals")
    pairs = found.items() if isinstance(found, dict) else ()
    return {
        name: (pair[0], pair[1])
        for name, pair in pairs
        if isinstance(pair, list) and len(pair) == 2 and all(map(is_number, pair))
    }


def _figures(line: Mapping[str, Any]) -> dict[str, float]:
    return {name: line[name] for name in METRICS if is_number(line.get(name))}
