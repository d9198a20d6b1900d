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
        drawn, gains = row.resampled, row.minus(first)
        intervals = {} if drawn is None else drawn.intervals()
        for name in PAPER_FIGURES:
            gain = gains.get(name)
            more, drawn_more = (gain.spread, gain.interval) if gain else (None, None)
            line |= _csv_columns(name, row.spreads.get(name), intervals.get(name))
            line |= _csv_columns(f"{name}_more", more, drawn_more)
            line[f"{name}_more_below_zero"] = getattr(drawn_more, "below_zero", None)
        if reference is not NO_REFERENCE:
            line[f"{reference.name}_rsum"] = reference.rsum.get(row.label)
        lines.append(line)
    return csv_text(lines)


def trainings_csv(rows: Sequence[ResultRow]) -> str:
    """Write one line per training: its figures, and their differences from the first row's."""
    return csv_text(
        [
            {
                "row": row.label,
                "recipe": training.line.get("recipe"),
                "seed": training.seed,
                **training.figures,
                "dev_rsum": training.line.get("dev", {}).get("rsum"),
                "best_epoch": training.line.get("best_epoch"),
                "seconds": training.line.get("seconds"),
                **{
                    f"{name}_more": row.differences(first).get(training.seed, {}).get(name)
                    for name in PAPER_FIGURES
                },
            }
            for first, row in _with_first(rows)
            for training in row.trainings
        ]
    )


def _with_first(rows: Sequence[ResultRow]) -> Iterator[tuple[ResultRow, ResultRow]]:
    """Pair every row with the first of its group."""
    for group in groups_of(rows):
        for row in group:
            yield group[0], row


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
