"""How a sweep multiplies: in float32, or rounded where that is faster and no list can tell.

A rounded product says of nearly every pair that neither of its lists needs it
(`aoq.scoring.approximation`); the pairs it admits are scored in float32. What is fastest depends on
the processor and on how close together scores lie, so it is measured on some images and texts
before a large sweep. Where a block admits too many pairs after all, it is multiplied in float32.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from aoq.config import FastProduct, Product
from aoq.mining.score_matrix import ScoreMatrix
from aoq.mining.toplists import Hits
from aoq.scoring.approximation import (
    WORTH_MEASURING,
    Errors,
    Products,
    RoundedRows,
    approximable,
    lowest_products,
    machine_speeds,
    score_pairs,
)
from aoq.scoring.blocks import evenly_spread
from aoq.scoring.encoded import EncodedDataset
from aoq.storage import hash_parts, write_json
from aoq.types import Encoding, Floats, Ids, Int32s, Positives

E = TypeVar("E")
_SAMPLE = 1024
_WORTH_IT = 0.95  # of the time of float32, which a rounded product must not exceed
_LOOKED_AT = 0.3e-9  # seconds a pair takes to look through, in any product
_HITS = 1.5  # pairs above a floor, by those that stay in a list
_MOST = 0.5  # share of a block's pairs that are scored singly if a product was asked for


@dataclass(frozen=True)
class ProductChoice:
    """The product of a sweep, and how many pairs of a block it may admit."""

    product: Product
    most: float = _MOST
    "Share of the pairs beyond which float32 is faster."

    @property
    def fast(self) -> FastProduct | None:
        return None if self.product == "auto" or self.product == "float32" else self.product

    @classmethod
    def kept(cls, file: Path, *, key: str) -> ProductChoice | None:
        """Read what an interrupted sweep of the same key chose."""
        try:
            fields = json.loads(file.read_text())
            return cls(**fields["choice"]) if fields["key"] == _key(key) else None
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def keep(self, file: Path, *, key: str) -> None:
        """Write the choice for when the sweep is interrupted: it then continues the same way."""
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, {"key": _key(key), "choice": asdict(self)})


FLOAT32 = ProductChoice("float32")


@dataclass(frozen=True)
class ProductReport:
    """The product that a sweep chose, and how many pairs it had to score again."""

    product: Product
    n_pairs: int
    "Pairs that a rounded product looked at, in all processes."
    n_scored: int
    "Pairs of them that were scored in float32."

    @property
    def sentence(self) -> str:
        if not self.n_pairs:
            return "all scores were computed in float32"
        share = self.n_scored / self.n_pairs
        return f"products in {self.product}, {share:.2%} of the pairs scored again in float32"


def _key(key: str) -> str:
    return hash_parts(key.encode())


def choose_product(
    wanted: Product,
    matrix: ScoreMatrix[Any],
    images: slice,
    *,
    depth_texts: int,
    depth_images: int,
) -> ProductChoice:
    """Choose how to multiply: as `wanted`, or what is fastest on a sample.

    Small sweeps, and scores that are no inner products, are computed in float32.
    """
    encoded = EncodedDataset(matrix.anchors, matrix.candidates, matrix.device)
    n_images, n_texts = images.stop - images.start, len(matrix.candidates)
    is_small = wanted == "auto" and n_images * n_texts < WORTH_MEASURING
    if wanted == "float32" or is_small or not approximable(matrix.scorer, encoded):
        return FLOAT32
    if wanted != "auto":
        return ProductChoice(wanted)
    some = images.start + evenly_spread(n_images, _SAMPLE)
    sample = matrix.anchors[torch.from_numpy(some)].vectors
    texts = matrix.candidates[torch.from_numpy(evenly_spread(n_texts, _SAMPLE))].vectors
    speeds = machine_speeds(sample, texts)
    shares = _HITS * depth_texts / n_texts, _HITS * depth_images / n_images
    whole = speeds.float32 + _LOOKED_AT
    best, choice = whole * _WORTH_IT, FLOAT32
    for kind, seconds in speeds.fast.items():
        admitted = _admitted(kind, sample, texts, shares)
        seconds += _LOOKED_AT
        most = (whole - seconds) / speeds.single
        if seconds + admitted * speeds.single < best and admitted < most:
            best = seconds + admitted * speeds.single
            choice = ProductChoice(kind, most=min(most, _MOST))
    return choice


def _admitted(
    kind: FastProduct, images: torch.Tensor, texts: torch.Tensor, shares: tuple[float, float]
) -> float:
    """Estimate the share of pairs that are admitted where the floors of lists will be."""
    rows, columns = RoundedRows.of(images, kind), RoundedRows.of(texts, kind)
    scores = rows.scores(columns, rows.products(columns), slice(None))
    row_floors = np.quantile(scores, max(0.0, 1 - shares[0]), axis=1)
    column_floors = np.quantile(scores, max(0.0, 1 - shares[1]), axis=0)
    low_rows = lowest_products(kind, row_floors, rows.errors(columns))
    low_columns = lowest_products(kind, column_floors, columns.errors(rows))
    return float(((scores >= low_rows[:, None]) | (scores >= low_columns)).mean())


@dataclass(frozen=True, eq=False)
class RoundedStripe:
    """The images of a stripe, as they are and rounded."""

    vectors: Floats
    rounded: RoundedRows
    most: float
    "Share of the pairs that a block may admit."

    @property
    def kind(self) -> FastProduct:
        return self.rounded.kind

    @classmethod
    def of(cls, images: Encoding, choice: ProductChoice) -> RoundedStripe | None:
        """Round a stripe if a rounded product was chosen."""
        if choice.fast is None:
            return None
        vectors = images.vectors.contiguous()
        return cls(vectors.numpy(), RoundedRows.of(vectors, choice.fast), choice.most)

    def block(self, texts: Encoding, columns: RoundedRows) -> AdmittingBlock:
        """Multiply with a block of texts, which are also given rounded."""
        return AdmittingBlock(
            self,
            np.ascontiguousarray(texts.vectors.numpy()),
            columns,
            self.rounded.products(columns),
            self.rounded.errors(columns),
            columns.errors(self.rounded),
        )


@dataclass(frozen=True, eq=False)
class AdmittingBlock:
    """A block of rounded products; pairs that a list may need are found and scored."""

    stripe: RoundedStripe
    texts: Floats
    columns: RoundedRows
    products: Products
    row_errors: Errors
    column_errors: Errors

    def lowest_scores(self, rows: Ids) -> Floats:
        """Return scores that those of some rows are not below. (rows, texts)"""
        scores = self.stripe.rounded.scores(self.columns, self.products, rows)
        return (scores - self.row_errors[rows, None]).astype(np.float32)

    def hits(
        self, rows: slice, row_floors: Floats, column_floors: Floats, struck: tuple[Ids, Ids]
    ) -> Hits | None:
        """Score the pairs of some rows that are not below both floors; None if they are too many.

        `struck` are rows and columns of the block that are no pairs, by row. The hits' `idx` are
        rows of the block and their `ids` columns of it.
        """
        from aoq.mining.kernels import RoundedBlock, find_pairs  # compiled, or from a cache

        rounded, kind = self.stripe.rounded, self.stripe.rounded.kind
        first, last = np.searchsorted(struck[0], (rows.start, rows.stop))
        own = struck[0][first:last] - rows.start
        n_rows = rows.stop - rows.start
        capacity = int(self.stripe.most * n_rows * len(self.texts))
        found: Int32s = np.empty((2, capacity), np.int32)
        block = RoundedBlock(
            self.products[rows],
            rounded.scales[rows],
            self.columns.scales,
            lowest_products(kind, row_floors, self.row_errors[rows]),
            lowest_products(kind, column_floors, self.column_errors),
            np.searchsorted(own, np.arange(n_rows + 1)),
            struck[1][first:last],
        )
        count = find_pairs(block, found[0], found[1])
        if count > capacity:
            return None
        idx, columns = found[0, :count] + np.int32(rows.start), found[1, :count]
        return Hits(idx, score_pairs(self.stripe.vectors, self.texts, idx, columns), columns)


def struck_within(positives: Positives, images: slice, texts: slice) -> tuple[Ids, Ids]:
    """Return the positives in a block, in the order of its rows."""
    rows, columns = positives.within(images, texts)
    return rows, np.ascontiguousarray(columns)
