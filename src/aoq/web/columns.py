"""The columns of an index as the page offers them for filters: their values, or their range."""

from __future__ import annotations

from collections import Counter

from aoq.retrieval.filters import Column
from aoq.retrieval.metadata import Metadata
from aoq.web.limits import VALUES
from aoq.web.schemas import ColumnAnswer, ColumnKind, ColumnsAnswer, ColumnValue


def describe_columns(metadata: Metadata) -> ColumnsAnswer:
    """Describe every column that has values."""
    found = (_describe(name, column) for name, column in metadata.columns.items())
    return ColumnsAnswer(columns=[column for column in found if column is not None])


def _describe(name: str, column: Column) -> ColumnAnswer | None:
    counts = Counter(cell for cell in column if cell is not None)
    if not counts:
        return None
    ordered = sorted(counts, key=lambda cell: (isinstance(cell, str), cell))
    kind: ColumnKind = "text" if isinstance(ordered[0], str) else "number"
    return ColumnAnswer(
        name=name,
        kind="date" if name == "date" else kind,
        least=ordered[0],
        most=ordered[-1],
        values=[ColumnValue(value=cell, count=counts[cell]) for cell in ordered]
        if len(ordered) <= VALUES
        else None,
    )
