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
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from aoq import __version__
from aoq.evaluation.tables import METRICS, longest_word
from aoq.experiments.definition import Definition
from aoq.experiments.plan import GridRun, plan_grid
from aoq.progress import warn
from aoq.runs.events import read_pace
from aoq.runs.summary import RunSummary
from aoq.storage import hash_parts, read_json_lines

Line = Mapping[str, Any]
Results = Mapping[tuple[str, int], Line]
"By label and seed."
_NEEDED = ("row", "seed", "dev", "test", "seconds")


def results_file(out: Path) -> Path:
    """Name the file of results unless another one is given."""
    return out / "results.jsonl"


def read_results(path: Path, definition: Definition, contents: str | None = None) -> Results:
    """Read the lines of an experiment; of several, the last one about these `contents` counts.

    A line with the settings of a row counts whichever experiment wrote it; if there is none, the
    line with the row's name does.
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
            warn(f"{path}: a line of {definition.name} without {', '.join(missing)} is skipped.")
    if contents is not None:
        lines.sort(key=lambda line: line.get("data") == contents)  # the last one counts
    own = [line for line in lines if line.get("experiment") == definition.name]
    found = {(line["row"], line["seed"]): line for line in own}
    by_digest = {line.get("digest"): line for line in lines}
    seeds = list(dict.fromkeys(line["seed"] for line in lines))
    rows = [row.label for row in definition.rows]
    for run in plan_grid(definition, out=Path(), seeds=seeds, rows=rows):
        if run.is_row and run.digest in by_digest:
            found[run.key] = by_digest[run.digest]
    return found


def ranks_key(*lines: Line, split: str) -> tuple[str, str]:
    """Name the ranks behind a line, or behind an ensemble of several, in a `RankArchive`.

    The part depends on the split and its data, the name on the settings.
    """
    digests = [line["digest"] for line in lines]
    name = digests[0] if len(digests) == 1 else hash_parts(" ".join(digests).encode())
    return f"{split}-{lines[0]['data'][:16]}", name[:16]


def is_stale(run: GridRun, lines: Results, contents: str | None = None) -> bool:
    """Return whether the result of a run was made with other settings or other data."""
    line = lines.get(run.key)
    if line is None:
        return False
    return line.get("digest") != run.digest or contents not in (None, line.get("data"))


def choices_made(
    definition: Definition, lines: Results, contents: str | None = None
) -> dict[str, dict[str, float]]:
    """Return the means of each choice's candidates, by its label; empty until all are done."""
    rsums = {
        run.key: lines[run.key]["dev"]["rsum"]
        for run in plan_grid(definition, out=Path())
        if run.key in lines and not is_stale(run, lines, contents)
    }
    return {choice.label: choice.means(rsums) for choice in definition.choices}


def chosen_rows(definition: Definition, lines: Results, contents: str | None = None) -> list[str]:
    """Return the labels of the rows chosen so far, which are trained with all seeds."""
    made = choices_made(definition, lines, contents)
    return [next(iter(means)) for means in made.values() if means]


def comparable(
    runs: Sequence[GridRun], lines: Results, contents: str | None = None
) -> tuple[str, Results]:
    """Return the split of a table, and the lines that can stand in it.

    The split is test if any line has it, else dev. Lines with other settings, with other data or
    without that split are left out with a warning.
    """
    own = {run.key: run for run in runs if run.is_row and run.key in lines}
    unlike = {
        key: "has other settings" if is_stale(run, lines) else "is from another data set"
        for key, run in own.items()
        if is_stale(run, lines, contents)
    }
    split = judged_split([lines[key] for key in own if key not in unlike])
    unlike |= {
        key: f"is not on {split}" for key in own if key not in unlike and not lines[key][split]
    }
    for key, why in unlike.items():
        warn(f"{own[key].name} is left out: its result {why}.")
    return split, {key: lines[key] for key in own if key not in unlike}


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
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text() if cpuinfo.is_file() else ""
    found = re.search(r"^model name\s*: (.+)", text, re.M)
    return {
        "processor": found[1] if found else platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "aoq": __version__,
    }


def grid_table(
    definition: Definition, runs: Sequence[GridRun], lines: Results, *, narrow: bool = False
) -> Table:
    """List rows, their recipes and rsum by seed: on test, or on dev if no row has test.

    A narrow table has each change of a recipe on a line of its own, so that no name is broken.
    """
    listed = {run.key: run for run in runs if run.is_row}
    seeds = list(dict.fromkeys(seed for _, seed in listed))
    split = judged_split(lines[key] for key in listed if key in lines)
    made = choices_made(definition, lines)
    table = Table(
        title=f"{definition.description} rsum on {split}.".lstrip(),
        title_justify="left",
        caption=Text("\n".join(c.sentence(made[c.label]) for c in definition.choices)),
        caption_justify="left",
        box=SIMPLE_HEAD,
    )
    table.add_column("row", min_width=longest_word(label for label, _ in listed))
    table.add_column("recipe", no_wrap=True)
    for seed in seeds:
        table.add_column(f"seed {seed}", justify="right", no_wrap=True)
    for label in dict.fromkeys(label for label, _ in listed):
        values = [_listed(listed.get((label, seed)), lines, split) for seed in seeds]
        recipe = definition.row(label).recipe
        table.add_row(Text(label), Text(recipe.replace("+", "\n+") if narrow else recipe), *values)
    return table


def _listed(run: GridRun | None, lines: Results, split: str) -> str:
    if run is None:
        return ""
    line = lines.get(run.key)
    if line is None:
        return "-"
    figure = f"{line[split]['rsum']:.1f}" if line[split] else f"(no {split})"
    return f"{figure} (other settings)" if is_stale(run, lines) else figure
