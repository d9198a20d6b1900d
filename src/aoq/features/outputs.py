"""What a frozen network returns of a picture or a text, by name: the key of what is kept of it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, Self, cast

from aoq.errors import UserError
from aoq.parsing import shown

OutputKind = Literal["patches", "pooled", "cls", "mean", "states", "input"]
TowerPrecision = Literal["float32", "bfloat16"]
_NAMES = re.compile(r"(patches|pooled|cls|mean|input|block-([0-9]{1,4}))(-bfloat16)?")


@dataclass(frozen=True)
class Output:
    """What a network returns, and in which precision it computes.

    patches   cells of a grid over a picture
    pooled    the network's own vector of the whole, which a dual encoder compares
    cls       the state of the first token
    mean      the mean of all states
    states    all states that reach a block, for a model that goes on from there
    input     what the network would see: the pixels of a picture, the tokens of a text

    >>> Output.parse("block-10").block
    10
    """

    kind: OutputKind = "patches"
    block: int = 0
    "states: the block that they reach, counted from 0."
    precision: TowerPrecision = "float32"

    @classmethod
    def parse(cls, text: object) -> Self:
        """Read the name of an output; raise a `UserError` for anything else."""
        found = _NAMES.fullmatch(text) if isinstance(text, str) else None
        if found is None:
            raise UserError(
                f"{shown(text)} is not an output of a network; expected patches, pooled, cls, "
                "mean, input or block-N, with -bfloat16 for that precision."
            )
        name, block, low = found.groups()
        kind = "states" if block is not None else cast("OutputKind", name)
        return cls(kind, int(block or 0), "bfloat16" if low else "float32")

    def __str__(self) -> str:
        name = f"block-{self.block}" if self.kind == "states" else self.kind
        return name if self.precision == "float32" else f"{name}-{self.precision}"

    @property
    def is_vector(self) -> bool:
        """Whether it is one vector of the whole."""
        return self.kind in ("pooled", "cls", "mean")


PATCHES = Output()
