"""What the cells of an experiment came to: one line of a results file each, written when it ends.

A cell that has its line is done. Lines carry a digest of the settings, so that a line of other
settings than the experiment has is told from one that counts.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from aoq import __version__
from aoq.experiments.cells import Cell
from aoq.experiments.definitions import Definition
from aoq.experiments.runs import RunSummary
from aoq.storage import RunDirectory, read_json_lines

Results = Mapping[tuple[str, int], Mapping[str, Any]]


def results_file(out: Path) -> Path:
    """Where results go unless another file is named."""
    return out / "results.jsonl"


def read_results(path: Path, experiment: str) -> Results:
    """The lines of an experiment by row and seed; of several, the last."""
    return {
        (line["row"], line["seed"]): line
        for line in read_json_lines(path)
        if isinstance(line, dict) and line.get("experiment") == experiment
    }


@dataclass(frozen=True)
class Pace:
    """How a round went: its figures on dev after each epoch, and the time of its steps."""

    curve: list[dict[str, float]]
    seconds: float
    "Of an interrupted epoch the part after the last start counts."
    steps: int


def read_pace(run: Path) -> Pace:
    """From the log of a round."""
    seconds, steps = 0.0, 0
    curve: dict[int, dict[str, float]] = {}
    for line in read_json_lines(RunDirectory(run).events):
        if line["event"] == "epoch":
            seconds, steps = seconds + line["seconds"], steps + line["steps"]
        elif line["event"] == "validation":
            curve[line["epoch"]] = {name: line[name] for name in ("rsum", "i2t_r1", "t2i_r1")}
    return Pace([{"epoch": epoch, **curve[epoch]} for epoch in sorted(curve)], seconds, steps)


def result_line(cell: Cell, *, threads: int | None) -> dict[str, Any]:
    """What a finished cell came to, from the files of its run."""
    summary = RunSummary.read(cell.last_round)
    assert summary.dev is not None
    pace = read_pace(summary.path)
    return {
        "experiment": cell.experiment,
        "row": cell.label,
        "recipe": cell.source,
        "seed": cell.recipe.seed,
        "teacher": None if cell.teacher is None else cell.teacher.source,
        "settings": cell.settings,
        "digest": cell.digest,
        "data": summary.origins["data"],
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
    """What it was computed on."""
    return {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "aoq": __version__,
    }


def grid_table(definition: Definition, cells: Sequence[Cell], lines: Results) -> Table:
    """Rows, their recipes and rsum by seed: on test, or on dev where there is no test."""
    shown = {(cell.label, cell.recipe.seed): cell for cell in cells if cell.is_row}
    seeds = list(dict.fromkeys(seed for _, seed in shown))
    table = Table(title=definition.description, title_justify="left", box=SIMPLE_HEAD)
    table.add_column("row", overflow="fold")
    table.add_column("recipe", overflow="fold")
    for seed in seeds:
        table.add_column(f"seed {seed}", justify="right", no_wrap=True)
    for label in dict.fromkeys(label for label, _ in shown):
        values = [_listed(shown[label, seed], lines) for seed in seeds]
        table.add_row(Text(label), Text(definition.row(label).recipe), *values)
    return table


def _listed(cell: Cell, lines: Results) -> str:
    line = lines.get((cell.label, cell.recipe.seed))
    if line is None:
        return "-"
    figure = f"{(line['test'] or line['dev'])['rsum']:.1f}"
    return f"{figure} (other settings)" if is_stale(cell, lines) else figure


def is_stale(cell: Cell, lines: Results, fingerprint: str | None = None) -> bool:
    """Whether a cell has a line that tells of other settings, or of other data."""
    line = lines.get((cell.label, cell.recipe.seed))
    if line is None:
        return False
    return line.get("digest") != cell.digest or fingerprint not in (None, line.get("data"))
