"""Results for other programs: CSV files of rows and of trainings, with every figure unrounded."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from typing import Any

from aoq.evaluation.bootstrap import Interval
from aoq.evaluation.metrics import PAPER_FIGURES
from aoq.evaluation.seeds import Spread
from aoq.experiments.rows import ResultRow, groups_of
from aoq.experiments.tables import NO_REFERENCE, Reference


def rows_csv(rows: Sequence[ResultRow], reference: Reference = NO_REFERENCE) -> str:
    """Write one line per row: mean, deviation, interval and gain of every figure, unrounded."""
    lines = []
    for first, row in _with_first(rows):
        line: dict[str, Any] = {
            "row": row.label,
            "seeds": " ".join(str(t.seed) for t in row.trainings),
            "seeds_wanted": " ".join(map(str, row.seeds)),
            "compared_with": first.label if row is not first else "",
        }
        gains, intervals = row.minus(first), row.resampled.intervals() if row.resampled else {}
        for name in PAPER_FIGURES:
            gain = gains.get(name)
            spread, interval = (gain.spread, gain.interval) if gain else (None, None)
            line |= _csv_columns(name, row.spreads.get(name), intervals.get(name))
            line |= _csv_columns(f"{name}_more", spread, interval)
            line[f"{name}_more_below_zero"] = getattr(interval, "below_zero", None)
        if reference is not NO_REFERENCE:
            line[f"{reference.name}_rsum"] = reference.rsum.get(row.label)
        lines.append(line)
    return csv_text(lines)


def trainings_csv(rows: Sequence[ResultRow]) -> str:
    """Write one line per training: its figures, and their differences from the first row's."""
    lines = []
    for first, row in _with_first(rows):
        differences = row.differences(first)
        for training in row.trainings:
            noted, more = training.line, differences.get(training.seed, {})
            lines.append(
                {"row": row.label, "recipe": noted.get("recipe"), "seed": training.seed}
                | dict(training.figures)
                | {"dev_rsum": noted.get("dev", {}).get("rsum")}
                | {name: noted.get(name) for name in ("best_epoch", "seconds")}
                | {f"{name}_more": more.get(name) for name in PAPER_FIGURES}
            )
    return csv_text(lines)


def _with_first(rows: Sequence[ResultRow]) -> Iterator[tuple[ResultRow, ResultRow]]:
    """Pair every row with the first of its group."""
    return ((group[0], row) for group in groups_of(rows) for row in group)


def _csv_columns(name: str, spread: Spread | None, interval: Interval | None) -> dict[str, Any]:
    return {
        name: getattr(spread, "mean", None),
        f"{name}_deviation": getattr(spread, "deviation", None),
        f"{name}_low": getattr(interval, "low", None),
        f"{name}_high": getattr(interval, "high", None),
    }


def csv_text(lines: Sequence[dict[str, Any]]) -> str:
    """Write lines with the columns of the longest of them; unknown values are empty."""
    if not lines:
        return ""
    file = io.StringIO()
    writer = csv.DictWriter(file, max(lines, key=len).keys(), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return file.getvalue()
