"""Summaries of runs on disk: what each is, how far it has come, and how some of them differ.

Everything is read from the small files of a run directory (settings, origin, log, results), never
from weights, so hundreds of runs are read at once and one under way is not disturbed. The log
shows what a run did last; its lock shows whether a process is working on it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from aoq.config import Recipe, RoundConfig, RoundName
from aoq.errors import UserError
from aoq.evaluation.tables import METRICS, is_ensemble
from aoq.progress import warn
from aoq.recipes import dotted_settings, load_recipe
from aoq.runs.best_round import best_round
from aoq.runs.directory import ROUNDS, RunDirectory
from aoq.runs.events import Event, ended_epochs, is_number, read_events
from aoq.storage import is_locked, read_json_lines

Stage = Literal[
    "not started",
    "training",
    "not finite",
    "stopped early",
    "mining",
    "finished",
    "imported",
    "interpolated",
]
Metrics = Mapping[str, float]
_NOT_SEARCHED = ("encodings", "tensorboard")


@dataclass(frozen=True)
class Validation:
    """The figures of a model on dev after, or in, an epoch; counted from 1."""

    epoch: int
    metrics: Metrics


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """One trained round, an imported model, or a run that has not begun."""

    path: Path
    recipe: Recipe
    round: RoundName
    "For a run that has not begun its last round; one for imported models."
    stage: Stage
    under_way: bool | None
    "Whether a process is working on it; None if the system cannot show that."
    epochs_done: int
    dev: Validation | None
    "The validation that chose the weights."
    test: Metrics | None
    "The newest result of these weights on the first test set that the run was judged on."
    collapsed: bool
    "The loss was seen on its plateau, and no validation since then was the best."
    seconds: float
    "Time spent on training, mining and judging, without breaks."
    updated: float
    "When it last wrote to its log, in seconds since 1970."
    best: bool
    "Whether it is the better of two trained rounds on dev, which commands use by default."
    origins: Mapping[str, str | None]
    "Hashes of the data it was trained, validated and tested on, its lists and first weights."
    pretrained: str = ""
    "Name of the pretrained model, if it is one that was imported."

    @property
    def settings(self) -> RoundConfig:
        """Settings of the round."""
        return self.recipe.settings_of(self.round)

    @classmethod
    def read(cls, path: Path | str) -> RunSummary:
        """Summarize the run in a folder; of a folder of rounds, the last round."""
        run = RunDirectory(_last_round(Path(path)))
        recipe = load_recipe(run.config)
        origin = run.read_origin()
        events = read_events(run.path)
        which = _which_round(recipe, origin)
        stage, done = _progress(events)
        if stage == "training" and done >= recipe.settings_of(which).epochs:
            stage = "mining" if _is_to_mine(run, recipe, which, events) else "finished"
        test = _read_test(run) if _test_is_current(events) else {}
        hashes = {name: origin.get(name) for name in ("data", "dev", "candidates", "weights")}
        return cls(
            path=run.path,
            recipe=recipe,
            round=which,
            stage=stage,
            under_way=_is_under_way(run),
            epochs_done=done,
            dev=_chosen(events),
            test={name: test[name] for name in METRICS} if test else None,
            collapsed=_collapsed(events),
            seconds=_seconds(events),
            updated=events[-1]["time"] if events else run.config.stat().st_mtime,
            best=_is_best(run, which),
            origins={**hashes, "test": test.get("data")},
            pretrained=_pretrained_name(origin),
        )

    def as_dict(self) -> dict[str, Any]:
        """Convert to JSON values, without the settings, which are in the run's folder."""
        return {
            "path": str(self.path),
            "model": self.recipe.model.name,
            "pretrained": self.pretrained,
            "loss": self.settings.loss.name,
            "seed": self.recipe.seed,
            "round": self.round,
            "stage": self.stage,
            "under_way": self.under_way,
            "epochs_done": self.epochs_done,
            "epochs": self.settings.epochs,
            "collapsed": self.collapsed,
            "best": self.best,
            "dev": None if self.dev is None else {"epoch": self.dev.epoch, **self.dev.metrics},
            "test": None if self.test is None else dict(self.test),
            "seconds": self.seconds,
            "updated": self.updated,
        }


@dataclass(frozen=True)
class Result:
    """One figure of several runs, and how far each is from the first."""

    name: str
    "Split and metric: `test.i2t_r1`."
    values: tuple[float | None, ...]

    @property
    def differences(self) -> tuple[float | None, ...]:
        """Differences to the first run; None for the first, and where a figure is missing."""
        first, *others = self.values
        return (
            None,
            *(
                None if first is None or value is None else round(value - first, 3)
                for value in others
            ),
        )


@dataclass(frozen=True)
class Comparison:
    """Runs side by side; all differences are to the first."""

    runs: tuple[RunSummary, ...]

    @property
    def settings(self) -> dict[str, tuple[Any, ...]]:
        """The settings that differ, by dotted name: `round_two.loss.name`."""
        tables = [dotted_settings(run.recipe) for run in self.runs]
        rows = {name: tuple(table[name] for table in tables) for name in tables[0]}
        return {name: row for name, row in rows.items() if any(v != row[0] for v in row)}

    @property
    def results(self) -> list[Result]:
        """The validation that chose the weights, then the test."""
        dev = tuple(None if run.dev is None else run.dev.metrics["rsum"] for run in self.runs)
        tests = [run.test or {} for run in self.runs]
        return [
            Result("dev.rsum", dev),
            *(Result(f"test.{key}", tuple(test.get(key) for test in tests)) for key in METRICS),
        ]

    @property
    def origins(self) -> dict[str, tuple[int, ...]]:
        """Which runs, by position, have another origin than the first: `data`, `candidates`, ...

        An unknown data set does not count as different; missing lists and weights do.
        """
        first, *others = (run.origins for run in self.runs)
        found = {
            name: tuple(
                position
                for position, origin in enumerate(others, start=1)
                if origin[name] != first[name]
                and (name in ("candidates", "weights") or None not in (origin[name], first[name]))
            )
            for name in first
        }
        return {name: positions for name, positions in found.items() if positions}

    def as_dict(self) -> dict[str, Any]:
        """Convert to JSON values."""
        return {
            "runs": [run.as_dict() for run in self.runs],
            "settings": {name: list(values) for name, values in self.settings.items()},
            "results": {
                result.name: {
                    "values": list(result.values),
                    "differences": list(result.differences),
                }
                for result in self.results
            },
            "other_origins": {name: list(runs) for name, runs in self.origins.items()},
        }


def find_runs(
    roots: Iterable[Path | str], *, problems: list[str] | None = None
) -> list[RunSummary]:
    """Find every run in or below some folders, ordered by path.

    A folder that only holds rounds is not listed itself. A folder that looks like a run but
    cannot be read is skipped with a warning, or with a sentence in `problems` if given.
    """
    folders = {
        folder.resolve(): folder for root in map(Path, roots) for folder in _folders_below(root)
    }
    holders = {parent for folder in folders for parent in folder.parents}
    found = []
    for resolved, folder in folders.items():
        if resolved in holders and not _is_begun(folder):
            continue
        try:
            found.append(RunSummary.read(folder))
        except (UserError, OSError) as error:
            problem = f"{folder} is left out, it cannot be read as a run: {error}"
            if problems is None:
                warn(problem)
            else:
                problems.append(problem)
    return sorted(found, key=lambda summary: summary.path)


def compare_runs(paths: Sequence[Path | str]) -> Comparison:
    """Compare two runs or more; of a run with two rounds, the last."""
    if len(paths) < 2:
        raise UserError("a comparison needs two runs or more; name their folders.")
    return Comparison(tuple(RunSummary.read(path) for path in paths))


def _folders_below(root: Path) -> list[Path]:
    """Find folders with settings; hidden ones, encodings and boards are not searched."""
    if not root.is_dir():
        raise UserError(f"{root} is not a folder; name one with runs in it.")

    def unreadable(error: OSError) -> None:
        warn(f"{error.filename} is left out, it cannot be read: {error.strerror}")

    folders = []
    for place, below, _ in os.walk(root, onerror=unreadable):
        below[:] = [name for name in below if name[0] != "." and name not in _NOT_SEARCHED]
        if RunDirectory(Path(place)).config.is_file():
            folders.append(Path(place))
    return folders


def _is_begun(path: Path) -> bool:
    """Return whether a round was begun in this folder itself, or a model imported to it."""
    run = RunDirectory(path)
    return run.events.is_file() or run.origin.is_file()


def _last_round(path: Path) -> Path:
    """Return the folder itself, or the last round of a folder of rounds."""
    run = RunDirectory(path)
    if not run.config.is_file():
        raise UserError(
            f"{path} is not a run: it has no {run.config.name}; name a folder with one."
        )
    rounds = sorted(config.parent for config in path.glob(f"*/{run.config.name}"))
    if _is_begun(path) or not rounds:
        return path
    last = path / ROUNDS[load_recipe(run.config).last_round]
    if last not in rounds:
        names = ", ".join(map(str, rounds))
        raise UserError(f"{path} has no {last.name} to look at (yet); name one of {names}.")
    return last


def _which_round(recipe: Recipe, origin: Mapping[str, Any]) -> Literal["one", "two"]:
    begun = origin.get("round")
    is_one = begun == "one" if begun else "imported" in origin or recipe.rounds == "one"
    return "one" if is_one else "two"


def _pretrained_name(origin: Mapping[str, Any]) -> str:
    imported = origin.get("imported")
    name = imported.get("model") if isinstance(imported, dict) else None
    return Path(name).name if isinstance(name, str) else ""


def _progress(events: Sequence[Event]) -> tuple[Stage, int]:
    """Find what a round did last, and its finished epochs.

    A killed round continues from a saved state, which its next start names.
    """
    stage: Stage = "not started"
    for event in events:
        match event["event"]:
            case "imported" | "interpolated" as made:
                stage = made
            case "start":
                stage = "training" if stage == "not started" else stage
            case "steps" | "epoch":
                stage = "training"
            case "not_finite":
                stage = "not finite"
            case "stopped_early":
                stage = "stopped early"
    started = _last(events, "start")
    before = events[started]["epoch"] if started >= 0 else 0
    return stage, max([before, *ended_epochs(events[started + 1 :])])


def _is_to_mine(
    run: RunDirectory, recipe: Recipe, which: Literal["one", "two"], events: Sequence[Event]
) -> bool:
    """Return whether this is the first round of a whole recipe that has yet to mine."""
    whole = RunDirectory(run.path.absolute().parent)
    is_mined = whole.candidates.is_file() or any(event["event"] == "mined" for event in events)
    return which == "one" and recipe.mines and whole.config.is_file() and not is_mined


def _is_best(run: RunDirectory, which: RoundName) -> bool:
    whole = run.path.absolute().parent
    if run.path.name != ROUNDS[which] or not run.model.is_file():
        return False
    return not RunDirectory(whole).model.is_file() and best_round(whole).best == which


def _is_under_way(run: RunDirectory) -> bool | None:
    """Return whether the run is locked, or the whole recipe it is a round of, which also mines."""
    locks = [is_locked(folder) for folder in (run.path, run.path.absolute().parent)]
    return True if True in locks else None if None in locks else False


def _last(events: Sequence[Event], kind: str, **fields: object) -> int:
    """Return the position of the last such event; -1 if there is none."""
    wanted = {"event": kind, **fields}
    return max(
        (at for at, event in enumerate(events) if wanted.items() <= event.items()), default=-1
    )


def _chosen(events: Sequence[Event]) -> Validation | None:
    at = _last(events, "validation", best=True)
    if at < 0:
        return None
    return Validation(events[at]["epoch"], {name: events[at][name] for name in METRICS})


def _collapsed(events: Sequence[Event]) -> bool:
    return _last(events, "collapsed") > _last(events, "validation", best=True)


def _test_is_current(events: Sequence[Event]) -> bool:
    """Return whether the weights have not been replaced by better ones since they were judged."""
    judged = _last(events, "evaluated", split="test")
    return judged < 0 or judged > _last(events, "validation", best=True)


def _read_test(run: RunDirectory) -> dict[str, Any]:
    """Read the newest result of the last judged weights on the first test set.

    The file also holds results of ensembles, and of weights that were replaced since.
    """
    results = [
        line
        for line in read_json_lines(run.results)
        if line.get("split") == "test"
        and not is_ensemble(line)
        and all(is_number(line.get(name)) for name in METRICS)
    ]
    own = [line for line in results if line.get("model") == results[-1].get("model")]
    return next((line for line in own[::-1] if line.get("data") == results[0].get("data")), {})


def _seconds(events: Sequence[Event]) -> float:
    """Sum training, from each start to the last line before the next, mining and judging."""
    total, before = 0.0, math.inf
    for event in events:
        if event["event"] in ("mined", "evaluated"):
            total += event["seconds"]
        else:
            if event["event"] != "start":
                total += max(event["time"] - before, 0.0)
            before = event["time"]
    return round(total, 2)
