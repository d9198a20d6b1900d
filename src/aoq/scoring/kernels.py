"""Compiled inner loops of `aoq.scoring.approximation`: rounding rows, and single inner products."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from aoq.compiling import compiled, compiled_sums
from aoq.types import Floats, Ids, Int32s

Codes16 = npt.NDArray[np.uint16]
Codes8 = npt.NDArray[np.int8]


@compiled
def round_bfloat16(vectors: Floats, codes: Codes16, norms: Floats, residues: Floats) -> None:
    """Round rows to bfloat16, half to even; also compute their norms and those of what is left."""
    bits = vectors.view(np.uint32)
    back = np.empty(vectors.shape[1], np.uint32)
    for row in range(len(vectors)):
        for column in range(vectors.shape[1]):
            word = bits[row, column]
            code = (word + np.uint32(0x7FFF) + ((word >> 16) & 1)) >> 16
            codes[row, column] = code
            back[column] = code << 16
        norms[row] = np.sqrt(_square(vectors[row]))
        residues[row] = np.sqrt(_squared_distance(vectors[row], back.view(np.float32)))


@compiled
def round_int8(
    vectors: Floats,
    steps: np.float32,
    codes: Codes8,
    scales: Floats,
    norms: Floats,
    residues: Floats,
) -> None:
    """Round rows so that their largest entry has so many steps; see `round_bfloat16`."""
    back = np.empty(vectors.shape[1], np.float32)
    for row in range(len(vectors)):
        values = vectors[row]
        largest = np.float32(0)
        for column in range(len(values)):
            largest = max(largest, abs(values[column]))
        scale = largest / steps
        if not scale > np.float32(1e-30):  # its inverse would overflow: the row rounds to zero
            scale = np.float32(0)
        inverse = np.float32(1) / scale if scale > 0 else np.float32(0)
        scales[row] = scale
        for column in range(len(values)):
            step = np.rint(values[column] * inverse)
            codes[row, column] = np.int8(step)
            back[column] = step * scale
        norms[row] = np.sqrt(_square(values))
        residues[row] = np.sqrt(_squared_distance(values, back))


@compiled
def widen(products: Any, column_scales: Floats, scale: np.float32, values: Floats) -> None:
    """Write the approximate scores of a row of products; int16 are upper halves of float32."""
    if products.itemsize == 2:
        bits = values.view(np.int32)
        for column in range(len(products)):
            bits[column] = np.int32(products[column]) << 16
    else:
        for column in range(len(products)):
            values[column] = np.float32(products[column]) * column_scales[column] * scale


@compiled
def score_pairs(
    images: Floats, texts: Floats, rows: Int32s, columns: Int32s, tile: int, scores: Floats
) -> None:
    """Compute the inner products of some rows with some columns, a tile of columns at a time.

    Four pairs of a row are computed together; where there are fewer, the last one is repeated, so
    that a pair's sum is always added in the same order.
    """
    order = _by_tile(columns, len(texts), tile)
    place, n_pairs = 0, len(order)
    while place < n_pairs:
        row = rows[order[place]]
        last = place
        while last < place + 3 and last + 1 < n_pairs and rows[order[last + 1]] == row:
            last += 1
        a, d = order[place], order[last]
        b, c = order[min(place + 1, last)], order[min(place + 2, last)]
        scores[a], scores[b], scores[c], scores[d] = _dots(
            images[row], texts[columns[a]], texts[columns[b]], texts[columns[c]], texts[columns[d]]
        )
        place = last + 1


@compiled
def _by_tile(columns: Int32s, n_columns: int, tile: int) -> Ids:
    """Order pairs by the tile of their column, and otherwise as they come."""
    starts = np.zeros(n_columns // tile + 2, np.int64)
    for column in columns:
        starts[column // tile + 1] += 1
    for number in range(1, len(starts)):
        starts[number] += starts[number - 1]
    order = np.empty(len(columns), np.int64)
    for place in range(len(columns)):
        number = columns[place] // tile
        order[starts[number]] = place
        starts[number] += 1
    return order


@compiled_sums
def _dots(
    one: Floats, a: Floats, b: Floats, c: Floats, d: Floats
) -> tuple[np.float32, np.float32, np.float32, np.float32]:
    with_a = with_b = with_c = with_d = np.float32(0)
    for place in range(len(one)):
        value = one[place]
        with_a += value * a[place]
        with_b += value * b[place]
        with_c += value * c[place]
        with_d += value * d[place]
    return with_a, with_b, with_c, with_d


@compiled_sums
def _square(values: Floats) -> np.float32:
    total = np.float32(0)
    for place in range(len(values)):
        total += values[place] * values[place]
    return total


@compiled_sums
def _squared_distance(one: Floats, other: Floats) -> np.float32:
    total = np.float32(0)
    for place in range(len(one)):
        difference = one[place] - other[place]
        total += difference * difference
    return total
