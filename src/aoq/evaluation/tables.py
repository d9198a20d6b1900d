"""Results for comparison: one row per setting, in the layout of the paper's tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

# Heading, key in the result, number of digits, and whether higher is better.
COLUMNS: tuple[tuple[str, str, int, bool], ...] = (
    ("i2t R@1", "i2t_r1", 1, True),
    ("R@5", "i2t_r5", 1, True),
    ("R@10", "i2t_r10", 1, True),
    ("med", "i2t_median_rank", 0, False),
    ("t2i R@1", "t2i_r1", 1, True),
    ("R@5", "t2i_r5", 1, True),
    ("R@10", "t2i_r10", 1, True),
    ("med", "t2i_median_rank", 0, False),
    ("rsum", "rsum", 1, True),
)
_FIGURES_WIDTH = 62  # of all columns but the first
METRICS = tuple(key for _, key, _, _ in COLUMNS)


def best_values(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Return the best value of each column, if there is more than one row to compare."""
    if len(rows) < 2:
        return {}
    return {
        key: (max if higher else min)(float(row[key]) for row in rows.values())
        for _, key, _, higher in COLUMNS
    }


def formatted_rows(
    rows: Mapping[str, Mapping[str, Any]],
) -> list[tuple[str, list[tuple[str, bool]]]]:
    """Yield each row's name and cells; a cell is its text and whether it is the column's best."""
    best = best_values(rows)
    return [
        (
            name,
            [
                (f"{row[key]:.{digits}f}", best.get(key) == float(row[key]))
                for _, key, digits, _ in COLUMNS
            ],
        )
        for name, row in rows.items()
    ]


def metrics_table(
    rows: Mapping[str, Mapping[str, Any]], *, title: str | None = None, width: int = 80
) -> RenderableType:
    """Build the table for a terminal of some width, with the best of each column in bold.

    Names that do not fit beside the figures are numbered, and written out below the table.
    """
    if len(rows) and max(map(len, rows)) > width - _FIGURES_WIDTH:
        numbered = {str(number): row for number, row in enumerate(rows.values(), start=1)}
        table = metrics_table(numbered, title=title, width=width)
        return Group(table, numbered_names(rows))
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("", no_wrap=True)
    for heading, *_ in COLUMNS:
        table.add_column(heading, justify="right", no_wrap=True)
    for name, cells in formatted_rows(rows):
        table.add_row(
            Text(name), *(f"[bold]{text}[/bold]" if best else text for text, best in cells)
        )
    return table


def numbered_names(names: Iterable[str]) -> Group:
    """List names by their numbers, each on a line that is never broken."""
    lines = (f"{number}  {name}" for number, name in enumerate(names, start=1))
    return Group(*(Text(line, no_wrap=True, overflow="ignore") for line in lines))


def longest_word(labels: Iterable[str]) -> int:
    """Return the width that breaks no word of a column."""
    return max((len(word) for label in labels for word in label.split()), default=0)


def is_ensemble(line: Mapping[str, Any]) -> bool:
    """Return whether a line of results.jsonl describes an ensemble."""
    return "+" in str(line.get("model"))
