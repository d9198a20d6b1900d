"""Settings of mining: how deep lists are, what scoring them may take, which rules apply."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from aoq.config.checks import require, require_counts
from aoq.errors import UserError
from aoq.field_types import settle_types

Precision = Literal["float32", "float16", "bfloat16"]
FastProduct = Literal["bfloat16", "int8"]
Product = Literal["auto", "float32", "bfloat16", "int8"]


def parse_memory(text: str) -> int:
    """Parse a memory size such as "2GiB" into bytes.

    >>> parse_memory("2GiB"), parse_memory("1.5 MB")
    (2147483648, 1500000)
    """
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([KMGT]i?)B", text.strip())
    if found is None:
        raise UserError(f"a memory of {text!r} cannot be read; write it as 512MiB or 2GiB.")
    number, unit = found.groups()
    base = 1024 if unit.endswith("i") else 1000
    return int(float(number) * base ** (1 + "KMGT".index(unit[0])))


@dataclass(frozen=True, kw_only=True)
class MiningConfig:
    """How much is kept of the ranking of all images against all texts."""

    depth_texts: int = 300
    "Hardest texts kept for each image."
    depth_images: int = 60
    "Hardest images kept for each text."
    memory: str | None = None
    "Budget for lists, blocks of scores and their inputs, such as 4GiB; none: the free memory."
    precision: Precision = "float32"
    "Precision of the encodings in scoring: float32 is exact; the report states what others miss."
    product: Product = "auto"
    "How float32 lists are found: all scores in float32, or those that a rounded product admits."
    skip_first: int = 0
    "Leave out the first N candidates of every list: the most likely false negatives."
    score_share: float | None = None
    "Drop candidates that score above this share of the anchor's best positive."
    equal_captions: bool = False
    "Drop captions with the same words as one of the image's own, and images with such captions."
    near_captions: float | None = None
    "Drop captions with this share of words (0.8, say) in common with one of the image's own."
    estimate_matches: bool = False
    """Estimate for every candidate the probability that it is right, a match that the data set does
    not name, from scores and captions; sampling.avoid_matches and loss.weigh_matches use it."""

    def __post_init__(self) -> None:
        settle_types(self)
        require_counts(self, "depth_texts", "depth_images")
        if self.memory is not None:
            parse_memory(self.memory)
        require(self.skip_first >= 0, f"skip_first is {self.skip_first}; it cannot be negative.")
        for name in ("score_share", "near_captions"):
            value = getattr(self, name)
            require(value is None or 0 < value <= 1, f"{name} is {value}; it has to lie in (0, 1].")
