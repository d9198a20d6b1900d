"""The inner loops of mining, compiled: which scores are above the floors, and into the lists.

Scores above a floor are rare, so most of the work is to see that the others are not. The flags of
a row are computed without a branch, several at a time, and read eight at a time.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from aoq.compiling import compiled
from aoq.mining.toplists import Hits, ListArrays
from aoq.types import Bools, Floats

_SIGN = np.int32(-(2**31))
_HALF = np.uint64(32)


class Block(NamedTuple):
    """Rows of the score matrix that are looked through at once."""

    scores: Floats  # (rows, columns)
    row_floors: Floats  # (rows,)
    first_id: int
    "Id of row 0."


@compiled
def feed_lists(
    block: Block, column_lists: ListArrays, row_hits: Hits, row: int, n_hits: int
) -> tuple[int, int]:
    """Feed the lists of the columns, and write the hits for those of the rows to `row_hits`.

    Begins with `row` and `n_hits` hits written. Stops after a row that filled some list to its
    last place, so that the caller can make room. Returns the row to go on with and the number of
    hits so far.
    """
    n_rows, n_columns = block.scores.shape
    bits = block.scores.view(np.int32)
    keys, fills, floors, ceilings, n_dropped = column_lists
    hit_rows, hit_scores, hit_columns = row_hits
    flags = np.zeros(-(-n_columns // 8) * 8, np.bool_)
    words = flags.view(np.uint64)
    columns = np.empty(n_columns + 1, np.int32)
    is_full = False
    while row < n_rows and not is_full:
        values, floor = block.scores[row], block.row_floors[row]
        _flag(values, floor, floors, flags)
        count = 0
        for word in range(len(words)):
            if words[word]:
                for column in range(8 * word, 8 * word + 8):
                    columns[count] = column
                    count += flags[column]
        low = np.uint64(np.uint32(~np.int32(block.first_id + row)))
        for place in range(count):
            column = columns[place]
            score = values[column]
            hit_rows[n_hits] = row
            hit_columns[n_hits] = column
            hit_scores[n_hits] = score
            n_hits += score >= floor
            if score >= floors[column]:
                if score > ceilings[column]:
                    n_dropped[column] += 1
                else:
                    keys[column, fills[column]] = _high(score, bits[row, column]) | low
                    fills[column] += 1
                    is_full |= fills[column] == keys.shape[1]
        row += 1
    return row, n_hits


@compiled
def _flag(values: Floats, floor: float, column_floors: Floats, flags: Bools) -> None:
    for column in range(len(values)):
        flags[column] = (values[column] >= floor) | (values[column] >= column_floors[column])


@compiled
def put(hits: Hits, lists: ListArrays, start: int) -> int:
    """Feed lists with the hits that are not below their floors.

    Begins with `start` and stops after a hit that filled a list to its last place; returns where
    to go on.
    """
    bits = hits.scores.view(np.int32)
    keys, fills, floors, ceilings, n_dropped = lists
    for place in range(start, len(hits.idx)):
        anchor, score = hits.idx[place], hits.scores[place]
        if not score >= floors[anchor]:  # also drops NaN
            continue
        if score > ceilings[anchor]:
            n_dropped[anchor] += 1
            continue
        low = np.uint64(np.uint32(~np.int32(hits.ids[place])))
        keys[anchor, fills[anchor]] = _high(score, bits[place]) | low
        fills[anchor] += 1
        if fills[anchor] == keys.shape[1]:
            return place + 1
    return len(hits.idx)


@compiled
def _high(score: float, bits: int) -> np.uint64:
    """Return the upper half of a key: it orders as the score does; there is one zero only."""
    high = np.int32(bits) if score != 0 else np.int32(0)
    high ^= (high >> 31) | _SIGN
    return np.uint64(np.uint32(high)) << _HALF
