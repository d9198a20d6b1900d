"""Keeps scores in single precision when the encoders run in mixed precision.

Bfloat16 distinguishes scores only to about 1/256, too coarse to find the hardest negative. Mining
can round the encodings on request: that costs digits of each factor, not of the sum.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from aoq.config import Precision
from aoq.scoring.protocol import Scorer

E = TypeVar("E")


def as_single(values: Tensor) -> Tensor:
    """Convert to at least single precision; double stays double."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def full_precision(values: Tensor) -> torch.autocast:
    """Return a context without mixed precision on the device of `values`."""
    return torch.autocast(values.device.type, enabled=False)


@dataclass(frozen=True)
class Rounded:
    """A scorer that rounds encodings first, and then computes in full precision."""

    scorer: Scorer[Any]
    dtype: torch.dtype

    def score_matrix(self, images: Any, texts: Any) -> Tensor:
        return self.scorer.score_matrix(self._round(images), self._round(texts))

    def score_pairs(self, images: Any, texts: Any) -> Tensor:
        return self.scorer.score_pairs(self._round(images), self._round(texts))

    def _round(self, encoded: Any) -> Any:
        if isinstance(encoded, tuple):  # encodings of an ensemble
            return tuple(map(self._round, encoded))
        return replace(encoded, vectors=encoded.vectors.to(self.dtype))


def rounded(scorer: Scorer[E], precision: Precision) -> Scorer[E]:
    """Return the scorer itself, or one that rounds to `precision`."""
    return scorer if precision == "float32" else Rounded(scorer, getattr(torch, precision))


@contextmanager
def tensor_cores(precision: Precision) -> Iterator[None]:
    """Let products of rounded numbers run on tensor cores, where they lose no digits.

    The switch applies to the whole process: use it only while no thread is computing.
    """
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_tf32
    matmul.allow_tf32 = before or precision != "float32"
    try:
        yield
    finally:
        matmul.allow_tf32 = before
