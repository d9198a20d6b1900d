"""Losses, and the controls of Eq. 5, on heads of frozen towers: docs/results-towers.md.

An experiment like those of the paper's tables, with claims of its own. The command names the two
towers. Their place is not a setting of a training, which knows them by the hashes of their weights.

    python -m reproduction towers-losses --data FOLDER --image FOLDER --text FOLDER
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from pathlib import Path
from statistics import mean
from typing import Any

import msgspec

from aoq.experiments.comparisons import Comparisons, Contrast
from aoq.experiments.definition import Definition, load_definition
from aoq.experiments.report import recorded_rows
from aoq.experiments.results import Experiment
from aoq.experiments.rows import ResultRow
from aoq.experiments.tables import TextTable, shown_interval
from reproduction import ROOT, TOWER_LOSSES, definition_file
from reproduction.claims import load_paper_table
from reproduction.verdicts import judge_claims

TOWER_LOSS_RESULTS = ROOT / "results" / f"{TOWER_LOSSES}.jsonl"
_HEADINGS = (
    *("", "seeds", "dev rsum", "test rsum", "i2t R@1", "t2i R@1", "more than online"),
    "minutes",
)
_CLAIMS = ("claim", "effect", "dev", "test", "p, corrected", "verdict")


def tower_losses(*, image: str = "", text: str = "") -> Definition:
    """Return the experiment with these towers; none are needed to read its results."""
    definition = load_definition(definition_file(TOWER_LOSSES))
    model: Mapping[str, Any] = definition.settings["model"]
    towers = {"model": {**model, "image": image, "text": text}}
    return msgspec.structs.replace(definition, settings=definition.settings | towers)


def tower_loss_rows(results: Path = TOWER_LOSS_RESULTS) -> list[ResultRow]:
    """Read all rows; those without results have no trainings."""
    return recorded_rows(Experiment(definition=tower_losses(), out=Path(), file=results))


def tower_loss_tables(results: Path = TOWER_LOSS_RESULTS) -> dict[str, str]:
    """Return the tables of the page by the names of their files."""
    rows = tower_loss_rows(results)
    paper = load_paper_table(TOWER_LOSSES, tower_losses())
    verdicts = judge_claims(paper.claims, rows, paper.rsum)
    claims = [(each.shown[0], *each.shown[2:]) for each in verdicts]  # the paper has no figures
    return {
        TOWER_LOSSES: f"{_table(rows).markdown()}\n{_state(rows)}\n",
        f"{TOWER_LOSSES}-claims": TextTable(_CLAIMS, claims, last_is_text=True).markdown(),
    }


def _table(rows: Sequence[ResultRow]) -> TextTable:
    """Show means over the seeds, and the effect of each row on dev and test."""
    comparisons = Comparisons(rows)
    return TextTable(
        _HEADINGS,
        [(row.label, *_cells(row, rows[0], comparisons)) for row in rows],
    )


def _cells(row: ResultRow, first: ResultRow, comparisons: Comparisons) -> Iterator[str]:
    lines = [training.line for training in row.trainings]
    yield f"{len(lines)} of {len(row.seeds)}"
    if not lines:
        yield from ("not run yet", "", "", "", "", "")
        return
    yield f"{mean(line['dev']['rsum'] for line in lines):.1f}"
    for name in ("rsum", "i2t_r1", "t2i_r1"):
        yield f"{mean(line['test'][name] for line in lines):.1f}"
    yield "" if row is first else _gain(row, first, comparisons)
    yield f"{mean(line['seconds'] for line in lines) / 60:.1f}"


def _gain(row: ResultRow, first: ResultRow, comparisons: Comparisons) -> str:
    """Show the effect, with its interval where trainings of several seeds give one."""
    found = comparisons.compare(Contrast([row], [first]))
    if found is None:
        return ""
    gain = f"{found.effect.value:+z.1f}"
    is_known = isfinite(found.effect.error) and found.effect.queries is not None
    return f"{gain} {shown_interval(found.effect.interval())}" if is_known else gain


def _state(rows: Sequence[ResultRow]) -> str:
    """Say which rows are not run, or not with all seeds.

    >>> row = ResultRow("Eq. 5", "towers", (0, 1), ())
    >>> _state([row])
    'Not run yet: Eq. 5 (no seed of 2).'
    """
    lacking = [
        f"{row.label} ({len(row.trainings) or 'no'} seed{'s' * (len(row.trainings) > 1)} of "
        f"{len(row.seeds)})"
        for row in rows
        if len(row.trainings) < len(row.seeds)
    ]
    return f"Not run yet: {'; '.join(lacking)}." if lacking else "All rows have all seeds."
