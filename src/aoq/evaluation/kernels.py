"""The compiled inner loops of ranking: count the scores of a block not below the right ones."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from aoq.compiling import compiled
from aoq.scoring.approximation import Products
from aoq.scoring.kernels import widen
from aoq.types import Floats, Ids, Int32s

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


class RoundedBlock(NamedTuple):
    """Approximate products, and from where they are surely, or possibly, not below right scores."""

    products: Products  # (rows, columns)
    row_scales: Floats
    column_scales: Floats
    own_starts: Ids
    own: Ids
    "Columns that are right themselves, and so not counted: row r's from `own_starts[r]` on."
    row_starts: Ids
    "Pairs of each row; see `count_not_below`."
    row_lowest: Floats  # one a pair of the rows
    row_highest: Floats
    columns: Ids
    column_lowest: Floats  # one a pair of the columns
    column_highest: Floats


class Doubts(NamedTuple):
    """Scores that may be below a right one or not: of row pairs, and then of column pairs."""

    rows: Int32s
    columns: Int32s
    pairs: Int32s


@compiled
def count_rounded(
    block: RoundedBlock,
    row_counts: Int32s,
    column_counts: Int32s,
    of_rows: Doubts,
    of_columns: Doubts,
) -> tuple[int, int]:
    """Count approximate scores that are surely not below the right ones, and list the doubts.

    Returns how many doubts there are of either kind; or -1 if there are more than there is room.
    """
    n_rows, n_columns = block.products.shape
    values = np.empty(n_columns, np.float32)
    n_pairs = len(block.columns)
    flags = np.zeros(-(-n_pairs // 8) * 8, np.bool_)
    words = flags.view(np.uint64)
    n_of_rows = n_of_columns = 0
    for row in range(n_rows):
        widen(block.products[row], block.column_scales, block.row_scales[row], values)
        for place in range(block.own_starts[row], block.own_starts[row + 1]):
            values[block.own[place]] = -np.inf
        for pair in range(block.row_starts[row], block.row_starts[row + 1]):
            lowest, highest = block.row_lowest[pair], block.row_highest[pair]
            sure, possible = _count_from(values, lowest, highest)
            row_counts[pair] += sure
            if n_of_rows + possible - sure > len(of_rows.rows):
                return -1, -1
            if possible > sure:
                for column in range(n_columns):
                    if not values[column] < lowest and values[column] < highest:
                        of_rows.rows[n_of_rows] = row
                        of_rows.columns[n_of_rows] = column
                        of_rows.pairs[n_of_rows] = pair
                        n_of_rows += 1
        for pair in range(n_pairs):
            value = values[block.columns[pair]]
            sure_one = not value < block.column_highest[pair]
            column_counts[pair] += np.int32(sure_one)
            flags[pair] = (not value < block.column_lowest[pair]) & (not sure_one)
        for word in range(len(words)):
            if words[word]:
                for pair in range(8 * word, min(8 * word + 8, n_pairs)):
                    if flags[pair]:
                        if n_of_columns == len(of_columns.rows):
                            return -1, -1
                        of_columns.rows[n_of_columns] = row
                        of_columns.columns[n_of_columns] = block.columns[pair]
                        of_columns.pairs[n_of_columns] = pair
                        n_of_columns += 1
    return n_of_rows, n_of_columns


@compiled
def _count_from(values: Floats, lowest: np.float32, highest: np.float32) -> tuple[int, int]:
    """Count values that are not below the highest, and those that are not below the lowest."""
    sure, possible = np.int32(0), np.int32(0)
    for column in range(len(values)):
        sure += np.int32(not values[column] < highest)
        possible += np.int32(not values[column] < lowest)
    return int(sure), int(possible)
