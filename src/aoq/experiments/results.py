"""Results of an experiment: a file with one line of JSON for every finished run.

Lines carry a digest of the settings, so results with other settings are recognized, and experiments
that share a file share the runs that they have in common. They also carry a hash of themselves, so
damage is found in a file that no manifest lists, and in lines copied from elsewhere. The ranks
behind each line are in an archive beside it (`RankArchive`): together they are enough for tables
with intervals on a machine without the runs and the data.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from aoq import __version__
from aoq.evaluation.tables import METRICS
from aoq.experiments.definition import Definition
from aoq.experiments.plan import GridRun, plan_grid
from aoq.progress import warn
from aoq.runs.events import read_pace
from aoq.runs.summary import RunSummary
from aoq.storage import hash_parts, read_json_lines
from aoq.threads import processor_name

Line = Mapping[str, Any]
_NEEDED = ("row", "seed", "dev", "test", "seconds")


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A definition with its folders, and the rows and seeds of it that are meant; none: all."""

    definition: Definition
    out: Path
    data: Path | None = None
    file: Path | None = None
    "Results; none: those beside the runs."
    seeds: Sequence[int] = ()
    rows: Sequence[str] = ()

    @property
    def results_file(self) -> Path:
        return self.file or self.out / "results.jsonl"

    def read(self, contents: str | None = None) -> Results:
        """Read the results, of data with this hash if it is given."""
        return Results.read(self.results_file, self.definition, contents)

    def plan(self, results: Results) -> list[GridRun]:
        """Plan the runs; rows that the `results` choose are run with all seeds."""
        return plan_grid(
            self.definition,
            out=self.out,
            data=self.data,
            seeds=self.seeds,
            rows=self.rows,
            chosen=results.chosen,
        )


@dataclass(frozen=True)
class Results:
    """The lines of an experiment, by label and seed."""

    definition: Definition
    contents: str | None
    "Hash of the data that they should be about; none: any data."
    lines: Mapping[tuple[str, int], Line]

    @classmethod
    def read(cls, path: Path, definition: Definition, contents: str | None = None) -> Results:
        """Read a file; of several lines, the last one about these `contents` counts.

        A line with the settings of a row counts whichever experiment wrote it; if there is none,
        the line with the row's name does.
        """
        lines = [line for line in read_json_lines(path) if _is_complete(line, definition, path)]
        if contents is not None:
            lines.sort(key=lambda line: line.get("data") == contents)  # the last one counts
        own = (line for line in lines if line.get("experiment") == definition.name)
        found = {(line["row"], line["seed"]): line for line in own}
        by_digest = {line.get("digest"): line for line in lines}
        seeds = list(dict.fromkeys(line["seed"] for line in lines))
        for run in plan_grid(definition, out=Path(), seeds=seeds, rows=definition.row_labels):
            if run.is_row and run.digest in by_digest:
                found[run.key] = by_digest[run.digest]
        return cls(definition, contents, found)

    def why_stale(self, run: GridRun) -> str:
        """Say why the result of a run does not count; empty if it does, or if there is none."""
        line = self.lines.get(run.key)
        if line is not None and line.get("digest") != run.digest:
            return "has other settings"
        is_other = line is not None and self.contents not in (None, line.get("data"))
        return "is from another data set" if is_other else ""

    @cached_property
    def choices(self) -> dict[str, dict[str, float]]:
        """The means of each choice's candidates, by its label; empty until all are done."""
        rsums = {
            run.key: self.lines[run.key]["dev"]["rsum"]
            for run in plan_grid(self.definition, out=Path())
            if run.key in self.lines and not self.why_stale(run)
        }
        return {choice.label: choice.means(rsums) for choice in self.definition.choices}

    @property
    def chosen(self) -> list[str]:
        """The labels of the rows chosen so far, which are trained with all seeds."""
        return [next(iter(means)) for means in self.choices.values() if means]

    def comparable(self, runs: Sequence[GridRun]) -> tuple[str, Results]:
        """Return the split of a table, and the results that can stand in it.

        The split is test if any line has it, else dev. Lines with other settings, with other data
        or without that split are left out with a warning.
        """
        own = {run.key: run for run in runs if run.is_row and run.key in self.lines}
        unlike = {key: why for key, run in own.items() if (why := self.why_stale(run))}
        split = judged_split([self.lines[key] for key in own if key not in unlike])
        lacking = (key for key in own if key not in unlike and not self.lines[key][split])
        unlike |= dict.fromkeys(lacking, f"is not on {split}")
        for key, why in unlike.items():
            warn(f"{own[key].name} is left out: its result {why}.")
        return split, replace(
            self, lines={key: self.lines[key] for key in own if key not in unlike}
        )


def _is_complete(line: Line, definition: Definition, path: Path) -> bool:
    """Return whether a line has all figures; warn if it should have them."""
    missing = [name for name in _NEEDED if name not in line]
    for split in ("dev", "test"):
        if isinstance(line.get(split), Mapping):
            missing += [f"{split}.{name}" for name in METRICS if name not in line[split]]
    if missing and line.get("experiment") == definition.name:
        warn(f"{path}: a line of {definition.name} without {', '.join(missing)} is skipped.")
    return not missing


def ranks_key(*lines: Line, split: str) -> tuple[str, str]:
    """Name the ranks behind a line, or behind an ensemble of several, in a `RankArchive`.

    The part depends on the split and its data, the name on the settings.
    """
    digests = [line["digest"] for line in lines]
    name = digests[0] if len(digests) == 1 else hash_parts(" ".join(digests).encode())
    return f"{split}-{lines[0]['data'][:16]}", name[:16]


def judged_split(lines: Iterable[Line]) -> str:
    return "test" if any(line["test"] for line in lines) else "dev"


def result_line(run: GridRun, *, contents: str, threads: int | None) -> dict[str, Any]:
    """Make the line of a finished run from its files; `contents` is the hash of its data."""
    summary = RunSummary.read(run.last_round)
    assert summary.dev is not None
    pace = read_pace(summary.path)
    return {
        "experiment": run.experiment,
        "row": run.label,
        "recipe": run.source,
        "seed": run.recipe.seed,
        "teacher": None if run.teacher is None else run.teacher.source,
        "settings": run.settings,
        "digest": run.digest,
        "data": contents,
        "best_epoch": summary.dev.epoch,
        "dev": dict(summary.dev.metrics),
        "test": None if summary.test is None else dict(summary.test),
        "curve": pace.curve,
        "seconds": round(pace.seconds, 2),
        "steps_per_second": round(pace.steps / pace.seconds, 3) if pace.seconds else None,
        "threads": threads,
        "machine": machine(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def machine() -> dict[str, Any]:
    """Describe the machine and the versions that compute here."""
    return {
        "processor": processor_name(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "aoq": __version__,
    }
