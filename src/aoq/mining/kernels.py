"""The inner loops of mining, compiled: which scores are above the floors, and into the lists.

Scores above a floor are rare, so most of the work is to see that the others are not. The flags of
a row are computed without a branch, several at a time, and read eight at a time.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from aoq.compiling import compiled
from aoq.mining.toplists import SPARE, Hits, Keys, ListArrays
from aoq.scoring.approximation import Products
from aoq.scoring.kernels import widen
from aoq.types import Bools, Floats, Ids, Int32s

Words = npt.NDArray[np.uint64]

_SIGN = np.int32(-(2**31))
_HALF = np.uint64(32)


class Block(NamedTuple):
    """Rows of the score matrix that are looked through at once."""

    scores: Floats  # (rows, columns)
    row_floors: Floats  # (rows,)
    column_floors: Floats  # (columns,)


@compiled
def find_scores(block: Block, found: Hits) -> int:
    """Find the scores that one of their lists may need, as rows, scores and columns of a block.

    Returns how many there are.
    """
    n_rows, n_columns = block.scores.shape
    idx, scores, ids = found
    flags = np.zeros(-(-n_columns // 8) * 8, np.bool_)
    words = flags.view(np.uint64)
    columns = np.empty(n_columns + 1, np.int32)
    n_found = 0
    for row in range(n_rows):
        values = block.scores[row]
        _flag(values, block.row_floors[row], block.column_floors, flags)
        count = _flagged(flags, words, columns)
        for place in range(count):
            idx[n_found] = row
            ids[n_found] = columns[place]
            scores[n_found] = values[columns[place]]
            n_found += 1
    return n_found


@compiled
def put(hits: Hits, lists: ListArrays) -> None:
    """Feed lists with the hits that are not below their floors."""
    bits = hits.scores.view(np.int32)
    keys, fills, floors, ceilings, n_dropped = lists
    idx, scores, ids = hits
    depth = (keys.shape[1] - SPARE) // 2
    for place in range(len(idx)):
        anchor, score = idx[place], scores[place]
        if not score >= floors[anchor]:  # also drops NaN
            continue
        if score > ceilings[anchor]:
            n_dropped[anchor] += 1
            continue
        fill = fills[anchor]
        low = np.uint64(np.uint32(~np.int32(ids[place])))
        keys[anchor, fill] = _high(score, bits[place]) | low
        fill += 1
        if fill == keys.shape[1]:
            fill, floor = _cut(keys[anchor], depth)
            floors[anchor] = max(floors[anchor], floor)
        fills[anchor] = fill


@compiled
def _cut(keys: Keys, depth: int) -> tuple[int, float]:
    """Cut a full list back to little more than its depth; return its length and where it ends.

    The end is found by bisection: what is above a key is counted without a branch, several at a
    time, and the cut need not be exact.
    """
    low, high, count = keys.min(), keys.max(), len(keys)
    while count > depth + (depth + SPARE) // 4 and low < high:
        middle = high - (high - low) // np.uint64(2)
        above = _count_from(keys, middle)
        if above >= depth:
            low, count = middle, above
        else:
            high = middle - np.uint64(1)
    fill = 0
    for place in range(len(keys)):
        key = keys[place]
        keys[fill] = key
        fill += key >= low
    keys[fill:] = np.uint64(0)
    end = np.empty(1, np.int32)
    end[0] = np.int32(np.uint32(low >> _HALF))
    end[0] ^= ~(end[0] >> 31) | _SIGN
    return fill, end.view(np.float32)[0]


@compiled
def _count_from(keys: Keys, lowest: np.uint64) -> int:
    count = 0
    for place in range(len(keys)):
        count += keys[place] >= lowest
    return count


@compiled
def _flag(values: Floats, floor: float, column_floors: Floats, flags: Bools) -> None:
    """Flag what is not below both floors: a NaN floor, or score, is not."""
    for column in range(len(values)):
        below = (values[column] < floor) & (values[column] < column_floors[column])
        flags[column] = not below


@compiled
def _flagged(flags: Bools, words: Words, columns: Int32s) -> int:
    """Write the flagged columns to `columns`; return how many. `words` are the same flags."""
    count = 0
    for word in range(len(words)):
        if words[word]:
            for column in range(8 * word, 8 * word + 8):
                columns[count] = column
                count += flags[column]
    return count


class RoundedBlock(NamedTuple):
    """Rows of approximate products that are looked through at once, and who is struck out."""

    products: Products  # (rows, columns)
    row_scales: Floats
    column_scales: Floats
    row_floors: Floats
    "Approximate scores below are too low for the row's list. (rows,)"
    column_floors: Floats
    struck_starts: Ids  # (rows + 1,)
    struck: Ids
    "Columns that are no candidates, by row."


@compiled
def find_pairs(block: RoundedBlock, found_rows: Int32s, found_columns: Int32s) -> int:
    """Find the pairs that one of their lists may need; return how many.

    Stops once there are more than `found_rows` and `found_columns` hold.
    """
    n_rows, n_columns = block.products.shape
    values = np.empty(n_columns, np.float32)
    flags = np.zeros(-(-n_columns // 8) * 8, np.bool_)
    words = flags.view(np.uint64)
    columns = np.empty(n_columns + 1, np.int32)
    n_found = 0
    for row in range(n_rows):
        widen(block.products[row], block.column_scales, block.row_scales[row], values)
        _flag(values, block.row_floors[row], block.column_floors, flags)
        for place in range(block.struck_starts[row], block.struck_starts[row + 1]):
            flags[block.struck[place]] = False
        count = _flagged(flags, words, columns)
        if n_found + count > len(found_rows):
            return len(found_rows) + 1
        for place in range(count):
            found_rows[n_found] = row
            found_columns[n_found] = columns[place]
            n_found += 1
    return n_found


@compiled
def _high(score: float, bits: int) -> np.uint64:
    """Return the upper half of a key: it orders as the score does; there is one zero only."""
    high = np.int32(bits) if score != 0 else np.int32(0)
    high ^= (high >> 31) | _SIGN
    return np.uint64(np.uint32(high)) << _HALF
