"""Scores keep single precision where the encoders run in mixed precision.

Bfloat16 tells scores apart to about 1/256, too coarse to say which negative is the hardest.
Mining may round the encodings, by wish: that costs digits of each factor, not of the sum.
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
    """At least single precision; double stays double."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def full_precision(values: Tensor) -> torch.autocast:
    """A context without mixed precision on the device of `values`."""
    return torch.autocast(values.device.type, enabled=False)


@dataclass(frozen=True)
class Rounded:
    """A scorer of encodings that are rounded first; what it then computes is not."""

    scorer: Scorer[Any]
    dtype: torch.dtype

    def score_matrix(self, images: Any, texts: Any) -> Tensor:
        return self.scorer.score_matrix(self._round(images), self._round(texts))

    def score_pairs(self, images: Any, texts: Any) -> Tensor:
        return self.scorer.score_pairs(self._round(images), self._round(texts))

    def _round(self, encoded: Any) -> Any:
        if isinstance(encoded, tuple):  # of an ensemble
            return tuple(map(self._round, encoded))
        return replace(encoded, vectors=encoded.vectors.to(self.dtype))


def rounded(scorer: Scorer[E], precision: Precision) -> Scorer[E]:
    """The same scorer, or one that rounds."""
    return scorer if precision == "float32" else Rounded(scorer, getattr(torch, precision))


@contextmanager
def tensor_cores(precision: Precision) -> Iterator[None]:
    """Let products of rounded numbers run on tensor cores, which lose none of their digits.

    The switch is one for the whole process: turn it where no thread is at work.
    """
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_tf32
    matmul.allow_tf32 = before or precision != "float32"
    try:
        yield
    finally:
        matmul.allow_tf32 = before
