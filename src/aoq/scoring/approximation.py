"""Inner products of rounded vectors, which are fast, and a bound on what rounding changes.

Processors with instructions for matrices of bfloat16 or int8 multiply them many times as fast as
float32. What a pair's score may at most be follows from lengths: with x = x' + r and y = y' + s,
where x' and y' are rounded,

    |x . y - x' . y'|  =  |r . y + x' . s|  <=  |r| |y| + |x'| |s|        (Cauchy-Schwarz)

So a pair whose approximate score plus this bound is below what is asked for needs no other look.
All others are scored in float32, one inner product each (`score_pairs`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache, partial
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from aoq.config import FastProduct
from aoq.scoring.encoded import EncodedDataset
from aoq.scoring.inner_product import InnerProduct
from aoq.storage import cache_folder, hash_parts, write_json
from aoq.threads import processor_name
from aoq.types import Encoding, Floats, Int32s

Numbers = npt.NDArray[Any]
Errors = npt.NDArray[np.float64]
Products = npt.NDArray[np.int16] | npt.NDArray[np.int32]
FAST_PRODUCTS: tuple[FastProduct, ...] = ("bfloat16", "int8")
WORTH_MEASURING = 2**26  # pairs: fewer take less than a second in float32
_TILE_BYTES = 2**20  # texts whose pairs are scored together: they stay in the second cache
_HALF_DIGIT = 2.0**-8  # by which rounding to bfloat16 may change a number, relatively
_EPSILON = 2.0**-24  # likewise, float32
_TINY = 1e-16  # norms of vectors so short that their squares vanish
_WIDEST = 8192  # beyond it, the sums of int8 products would not fit int32 with room to spare
_PROBED, _MEASURED = 64, 1024  # images and texts whose product is timed
_NOTICED = 1e-3  # seconds by which a product may be slower on a few rows
_SINGLE = 2**14  # pairs whose scoring one by one is timed: as dense as they are in mining
_TURNS = 3
_KEPT = 2**26  # bytes of rounded rows


def approximable(scorer: Any, encoded: EncodedDataset[Any]) -> bool:
    """Return whether scores are inner products of single float32 vectors in this machine's memory.

    A scorer that overrides `InnerProduct.score_matrix` may score in any way.
    """
    own = getattr(type(scorer), "score_matrix", None)
    if own is not InnerProduct.score_matrix or torch.device(encoded.device).type != "cpu":
        return False
    image, text = encoded.images[slice(0, 1)], encoded.texts[slice(0, 1)]
    return all(
        isinstance(part, Encoding)
        and part.vectors.dtype == torch.float32
        and part.vectors.ndim == 2
        and part.vectors.shape[1] <= _WIDEST
        for part in (image, text)
    )


@dataclass(frozen=True, eq=False)
class RoundedRows:
    """Rounded vectors, and the lengths that bound the error of their products."""

    kind: FastProduct
    codes: Tensor  # (n, D), bfloat16 or int8
    scales: Floats
    "What codes are multiples of; of int8. (n,)"
    norms: Floats
    "No shorter than the vectors, and than the rounded ones. (n,)"
    residues: Floats
    "No shorter than what rounding took away. (n,)"

    @classmethod
    def of(cls, vectors: Tensor, kind: FastProduct) -> RoundedRows:
        """Round float32 vectors."""
        from aoq.scoring.kernels import round_bfloat16, round_int8  # compiled, or from a cache

        rows = np.ascontiguousarray(vectors.numpy())
        norms, residues = np.empty((2, len(rows)), np.float32)
        scales = np.ones(len(rows), np.float32)
        if kind == "bfloat16":
            codes = torch.empty(rows.shape, dtype=torch.bfloat16)
            round_bfloat16(rows, codes.view(torch.uint16).numpy(), norms, residues)
        else:
            codes = torch.empty(rows.shape, dtype=torch.int8)
            round_int8(rows, np.float32(_int8_steps()), codes.numpy(), scales, norms, residues)
        more = np.float32(1 + 2 * rows.shape[1] * _EPSILON)  # the lengths are rounded themselves
        residues = residues * more + np.float32(_TINY)
        return cls(kind, codes, scales, norms * more + residues, residues)

    def products(self, columns: RoundedRows) -> Products:
        """Multiply with all columns; int16 are the upper halves of float32. (n, m)"""
        if self.kind == "bfloat16":
            return torch.mm(self.codes, columns.codes.T).view(torch.int16).numpy()
        return torch._int_mm(self.codes, columns.codes.T).numpy()

    def errors(self, columns: RoundedRows) -> Errors:
        """Bound how far each row's products with any of the columns are from float32 scores.

        This counts the rounding of sums too, that of the float32 score included. (n,)
        """
        longest, residue = columns.norms.max(), columns.residues.max()
        digits = self.codes.shape[1] * 4 * _EPSILON
        errors: Errors = self.residues.astype(np.float64) * float(longest)
        errors += self.norms * (float(residue) + digits * float(longest))
        return errors

    def scores(self, columns: RoundedRows, products: Products, rows: Any) -> Floats:
        """Return the approximate scores of some rows."""
        if self.kind == "bfloat16":
            halves: Int32s = products[rows].astype(np.int32) << 16
            return halves.view(np.float32)
        with np.errstate(all="ignore"):  # of vectors that are not finite
            scales = self.scales[rows][:, None] * columns.scales
            scores: Floats = (products[rows] * scales).astype(np.float32)
        return scores


@cache
def _int8_steps() -> int:
    """Return the largest code whose products this processor adds up without an error.

    Processors without VNNI add two products in int16, which can overflow unless codes are halved.
    """
    highest = torch.full((64, 64), 127, dtype=torch.int8)
    is_exact = bool((torch._int_mm(highest, highest) == 64 * 127**2).all())
    return 127 if is_exact else 63


class RoundedBlocks:
    """Rounds blocks of rows, and keeps the first ones for when they are needed again."""

    def __init__(self) -> None:
        self._kept: dict[int, RoundedRows] = {}

    def of(self, vectors: Tensor, rows: slice, kind: FastProduct) -> RoundedRows:
        """Round the vectors of consecutive rows; the same rows are always asked for together."""
        rounded = self._kept.get(rows.start)
        if rounded is None:
            rounded = RoundedRows.of(vectors, kind)
            if rows.stop * rounded.codes[0].nbytes <= _KEPT:
                self._kept[rows.start] = rounded
        return rounded


def lowest_products(kind: FastProduct, floors: Numbers, errors: Numbers) -> Floats:
    """Return the approximate scores below which a pair's float32 score is below its floor."""
    relative = 4 * _EPSILON + (_HALF_DIGIT if kind == "bfloat16" else 0)  # of the product itself
    with np.errstate(over="ignore"):  # where there is no floor, nothing is too low
        lowest: Errors = floors.astype(np.float64) - errors
        rounded = 4 * _EPSILON  # of the float32 comparison; factors, as a floor may be infinite
        higher, lower = (1 - rounded) / (1 + relative), (1 + rounded) / (1 - relative)
        return np.where(lowest > 0, lowest * higher, lowest * lower).astype(np.float32)


def highest_products(kind: FastProduct, floors: Numbers, errors: Numbers) -> Floats:
    """Return the approximate scores from which a pair's float32 score is not below its floor."""
    return -lowest_products(kind, -floors, errors)


def score_pairs(images: Floats, texts: Floats, rows: Int32s, columns: Int32s) -> Floats:
    """Score single pairs in float32.

    Equal vectors get equal scores, whatever else is scored with them.
    """
    from aoq.scoring import kernels  # compiled, or read from a cache

    tile = max(1, _TILE_BYTES // texts[0].nbytes)
    scores = np.empty(len(rows), np.float32)
    kernels.score_pairs(images, texts, rows, columns, tile, scores)
    return scores


_VERSION = 1  # of how speeds are measured


@dataclass(frozen=True)
class Speeds:
    """Seconds a pair takes of one thread, on this machine and for this width."""

    float32: float
    "In a float32 product."
    single: float
    "Scored by itself."
    fast: dict[FastProduct, float]
    "In an approximate product, with the rounding of its texts."


def machine_speeds(images: Tensor, texts: Tensor) -> Speeds:
    """Return the speeds of this machine for the width of these vectors.

    They are measured once and kept in the user's cache: what is chosen by them, and with it the
    last digit of a score, stays the same from run to run.
    """
    what = f"{processor_name()}, torch {torch.__version__}, width {images.shape[1]}, {_VERSION}"
    file = cache_folder() / "speeds" / f"{hash_parts(what.encode())[:32]}.json"
    with suppress(OSError, ValueError, TypeError):  # not measured yet, or damaged
        return Speeds(**json.loads(file.read_text()))
    speeds = measure_speeds(images, texts, FAST_PRODUCTS)
    with suppress(OSError):  # a read-only cache
        write_json(file, asdict(speeds))
    return speeds


def measure_speeds(images: Tensor, texts: Tensor, kinds: tuple[FastProduct, ...]) -> Speeds:
    """Measure on some vectors; a product that is slow on a few of them is left out.

    Seconds are those of this thread, so that other programs hardly change them.
    """
    images, texts = images[:_MEASURED].contiguous(), texts[:_MEASURED].contiguous()
    few = images[:_PROBED], texts[:_PROBED]
    enough = 4 * _seconds(partial(_multiply, *few)) + _NOTICED
    fast = {
        kind: _seconds(partial(_multiply, RoundedRows.of(images, kind), texts))
        for kind in kinds
        if _seconds(partial(_multiply, RoundedRows.of(few[0], kind), few[1])) < enough
    }
    n_pairs = len(images) * len(texts)
    single = np.random.default_rng(0).integers([len(images), len(texts)], size=(_SINGLE, 2))
    rows, columns = np.ascontiguousarray(single[np.lexsort(single.T[::-1])].T, dtype=np.int32)
    return Speeds(
        float32=_seconds(partial(_multiply, images, texts)) / n_pairs,
        single=_seconds(partial(score_pairs, images.numpy(), texts.numpy(), rows, columns))
        / len(rows),
        fast={kind: seconds / n_pairs for kind, seconds in fast.items()},
    )


def _multiply(images: Tensor | RoundedRows, texts: Tensor) -> None:
    if isinstance(images, Tensor):
        torch.mm(images, texts.T)
    else:
        images.products(RoundedRows.of(texts, images.kind))


def _seconds(work: Callable[[], object]) -> float:
    """Return the median of some turns; the first, which may compile something, is not counted."""
    work()
    seconds = []
    for _ in range(_TURNS):
        started = time.thread_time()
        work()
        seconds.append(time.thread_time() - started)
    return median(seconds)
