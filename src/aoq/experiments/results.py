"""What the cells of an experiment came to: one line of a results file each, written when it ends.

A cell that has its line is done. Lines carry a digest of the settings, so that a line of other
settings than the experiment has is told from one that counts, and so that experiments which share
a file share what they have in common. The ranks behind each line lie beside the file: with both,
tables with intervals can be made where the runs are not.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from aoq import __version__
from aoq.experiments.cells import Cell, plan_grid
from aoq.experiments.definitions import Definition
from aoq.experiments.events import read_events
from aoq.experiments.runs import RunSummary
from aoq.experiments.tables import METRICS
from aoq.progress import warn
from aoq.storage import hash_parts, read_json_lines

Results = Mapping[tuple[str, int], Mapping[str, Any]]
_NEEDED = ("row", "seed", "dev", "test", "seconds")


def results_file(out: Path) -> Path:
    """Where results go unless another file is named."""
    return out / "results.jsonl"


def read_results(path: Path, definition: Definition, contents: str | None = None) -> Results:
    """The lines of an experiment by row and seed; of several, the last about these `contents`.

    One with the settings of the row counts, whichever experiment wrote it; else one of that name.
    """
    lines = []
    for line in read_json_lines(path):
        missing = [name for name in _NEEDED if name not in line]
        missing += [
            f"{split}.{name}"
            for split in ("dev", "test")
            if isinstance(line.get(split), Mapping)
            for name in METRICS
            if name not in line[split]
        ]
        if not missing:
            lines.append(line)
        elif line.get("experiment") == definition.name:
            warn(f"{path}: a line of {definition.name} without {', '.join(missing)} is left out.")
    if contents is not None:
        lines.sort(key=lambda line: line.get("data") == contents)  # what comes last counts
    own = [line for line in lines if line.get("experiment") == definition.name]
    found = {(line["row"], line["seed"]): line for line in own}
    by_digest = {line.get("digest"): line for line in lines}
    seeds = list(dict.fromkeys(line["seed"] for line in lines))
    rows = [row.label for row in definition.rows]
    for cell in plan_grid(definition, out=Path(), seeds=seeds, rows=rows):
        if cell.is_row and cell.digest in by_digest:
            found[cell.label, cell.recipe.seed] = by_digest[cell.digest]
    return found


def ranks_beside(results: Path, *lines: Mapping[str, Any], split: str) -> Path:
    """Where the ranks behind a line are kept, or those of several as an ensemble.

    The name tells of the settings alone for the data that the file has them with first, else of
    the data too.
    """
    names, contents = [line["digest"] for line in lines], lines[0]["data"]
    same = (line for line in read_json_lines(results) if line.get("digest") == names[0])
    if next(same, lines[0]).get("data") != contents:
        names.append(contents)
    key = names[0] if len(names) == 1 else hash_parts(" ".join(names).encode())
    return results.parent / "ranks" / f"{split}-{key[:16]}.safetensors"


def choices_made(
    definition: Definition, lines: Results, contents: str | None = None
) -> dict[str, dict[str, float]]:
    """By the label of each choice, what `Choice.chosen` makes of the lines that fit."""
    rsums = {
        key: line["dev"]["rsum"]
        for cell in plan_grid(definition, out=Path())
        if (line := lines.get(key := (cell.label, cell.recipe.seed))) is not None
        and not is_stale(cell, lines, contents)
    }
    return {choice.label: choice.chosen(rsums) for choice in definition.choices}


def chosen_rows(definition: Definition, lines: Results, contents: str | None = None) -> list[str]:
    """The labels of the rows that were chosen so far, which are trained with all seeds."""
    made = choices_made(definition, lines, contents)
    return [next(iter(means)) for means in made.values() if means]


def comparable(
    cells: Sequence[Cell], lines: Results, contents: str | None = None
) -> tuple[str, Results]:
    """The split that a table is about, and the lines that can stand in it.

    That is test where any line has it, else dev. What is of other settings, of other data or not
    on that split is left out with a warning.
    """
    own = {
        (cell.label, cell.recipe.seed): cell
        for cell in cells
        if cell.is_row and (cell.label, cell.recipe.seed) in lines
    }
    unlike = {
        key: "is of other settings" if is_stale(cell, lines) else "is of another data set"
        for key, cell in own.items()
        if is_stale(cell, lines, contents)
    }
    split = judged_split([lines[key] for key in own if key not in unlike])
    unlike |= {
        key: f"is not on {split}" for key in own if key not in unlike and not lines[key][split]
    }
    for key, why in unlike.items():
        warn(f"{own[key].name} is left out: its result {why}.")
    return split, {key: lines[key] for key in own if key not in unlike}


def judged_split(lines: Iterable[Mapping[str, Any]]) -> str:
    return "test" if any(line["test"] for line in lines) else "dev"


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
    for event in read_events(run):
        if event["event"] == "epoch":
            seconds, steps = seconds + event["seconds"], steps + event["steps"]
        elif event["event"] == "validation":
            curve[event["epoch"]] = {name: event[name] for name in ("rsum", "i2t_r1", "t2i_r1")}
    return Pace([{"epoch": epoch, **curve[epoch]} for epoch in sorted(curve)], seconds, steps)


def result_line(cell: Cell, *, contents: str, threads: int | None) -> dict[str, Any]:
    """What a finished cell came to, from the files of its run; `contents` are its data's."""
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
    """What it was computed on."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "aoq": __version__,
    }


def _processor() -> str:
    """By its name where the system tells it."""
    told = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*: (.+)", told.read_text(), re.M) if told.is_file() else None
    return found[1] if found else platform.processor() or platform.machine()


def grid_table(definition: Definition, cells: Sequence[Cell], lines: Results) -> Table:
    """Rows, their recipes and rsum by seed: on test, or on dev where no row has test."""
    shown = {(cell.label, cell.recipe.seed): cell for cell in cells if cell.is_row}
    seeds = list(dict.fromkeys(seed for _, seed in shown))
    split = judged_split(lines[key] for key in shown if key in lines)
    made = choices_made(definition, lines)
    table = Table(
        title=f"{definition.description} rsum on {split}.".lstrip(),
        title_justify="left",
        caption=Text("\n".join(c.sentence(made[c.label]) for c in definition.choices)),
        caption_justify="left",
        box=SIMPLE_HEAD,
    )
    table.add_column("row", overflow="fold")
    table.add_column("recipe", overflow="fold")
    for seed in seeds:
        table.add_column(f"seed {seed}", justify="right", no_wrap=True)
    for label in dict.fromkeys(label for label, _ in shown):
        values = [_listed(shown.get((label, seed)), lines, split) for seed in seeds]
        table.add_row(Text(label), Text(definition.row(label).recipe), *values)
    return table


def _listed(cell: Cell | None, lines: Results, split: str) -> str:
    if cell is None:
        return ""
    line = lines.get((cell.label, cell.recipe.seed))
    if line is None:
        return "-"
    figure = f"{line[split]['rsum']:.1f}" if line[split] else f"(no {split})"
    return f"{figure} (other settings)" if is_stale(cell, lines) else figure


def is_stale(cell: Cell, lines: Results, contents: str | None = None) -> bool:
    """Whether a cell has a line that tells of other settings, or of other data."""
    line = lines.get((cell.label, cell.recipe.seed))
    if line is None:
        return False
    return line.get("digest") != cell.digest or contents not in (None, line.get("data"))
