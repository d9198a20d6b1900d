"""The compiled inner loop of ranking: counts the scores of a block not below the right ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from aoq.compiling import compiled
from aoq.types import Ids, Int32s

Scores = npt.NDArray[np.floating[Any]]


@compiled
def count_not_below(
    scores: Scores,
    row_starts: Ids,
    row_floors: Scores,
    columns: Ids,
    column_floors: Scores,
    row_counts: Int32s,
    column_counts: Int32s,
) -> None:
    """Count scores not below the right one, in its row for row pairs, in its column for others.

    The pairs of row r are `row_starts[r]` up to `row_starts[r + 1]`; pair p of the others is in
    the column `columns[p]`. A NaN score is not below anything.
    """
    for row in range(len(scores)):
        values = scores[row]
        for pair in range(row_starts[row], row_starts[row + 1]):
            floor = row_floors[pair]
            count = np.int32(0)
            for column in range(len(values)):
                count += np.int32(not values[column] < floor)
            row_counts[pair] += count
        for pair in range(len(columns)):
            column_counts[pair] += np.int32(not values[columns[pair]] < column_floors[pair])
