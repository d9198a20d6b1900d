"""What the paper reports and claims about the rows of an experiment: claims/NAME.toml.

of = "table 1: MS-COCO, 1,000 test images, two models together"
rsum."VSRN + OffTri" = 518.6       # the paper's figure, shown beside ours

[[claims]]
says = "offline negatives help"
row = "VSRN + OffTri"              # or a list, for the mean of several rows
above = "VSRN"                     # its rsum is higher; instead of `above`:
# like = "VSRN", within = 5        #   it differs by less than 5
# not_above = "VSRN", within = 5   #   it is not higher by 5
# below = 25                       #   it is below 25
power = 0.8                        # chance to find it, which the number of seeds has to give

The chance is that of a true difference of 3 with `above`, and of no difference with `like` and
`not_above`. Bound and power are stated before the rows are trained.
"""

from __future__ import annotations

from math import inf
from typing import Annotated

from msgspec import Meta, Struct, field

from aoq.errors import UserError
from aoq.evaluation.power import DIFFERENCE
from aoq.experiments.definition import Definition, read_toml
from aoq.experiments.tables import Reference
from reproduction import ROOT

Labels = str | tuple[str, ...]


class Claim(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A row's rsum, or its gain over another row, is within bounds."""

    says: str
    row: Labels
    above: Labels = ()
    like: Labels = ()
    not_above: Labels = ()
    within: Annotated[float, Meta(gt=0)] | None = None
    below: float | None = None
    power: Annotated[float, Meta(gt=0, lt=1)] | None = None
    "Needed with `like` and `not_above`; 0.8 unless a claim says so."

    def __post_init__(self) -> None:
        kinds = [bool(self.above), bool(self.like), bool(self.not_above), self.below is not None]
        if sum(kinds) != 1 or (self.within is not None) != bool(self.like or self.not_above):
            raise ValueError(
                f"the claim {self.says!r} needs one of above, below, and like or not_above with "
                "within"
            )
        if self.within is not None and self.power is None:
            raise ValueError(f"the claim {self.says!r} has a bound; state the power for it too")
        if self.others and len(self.others) != len(self.rows):
            raise ValueError(
                f"the claim {self.says!r} compares {len(self.rows)} rows with {len(self.others)}"
            )

    @property
    def rows(self) -> tuple[str, ...]:
        return _labels(self.row)

    @property
    def others(self) -> tuple[str, ...]:
        """The rows to compare with, one for each row; empty if the claim bounds rsum itself."""
        return _labels(self.above or self.like or self.not_above)

    @property
    def low(self) -> float:
        if self.above:
            return 0.0
        return -self.within if self.like and self.within is not None else -inf

    @property
    def high(self) -> float:
        if self.below is not None:
            return self.below
        return inf if self.within is None else self.within

    @property
    def true(self) -> float:
        """The difference that has to be found with the stated power."""
        return DIFFERENCE if self.above else 0.0

    @property
    def sentence(self) -> str:
        """
        >>> Claim(says="offline pairs help", row="VSRN + OffTri", above="VSRN").sentence
        'offline pairs help: VSRN + OffTri above VSRN'
        >>> Claim(says="h hardly matters", row="h=2", like="h=3", within=5, power=0.8).sentence
        'h hardly matters: h=2 within 5 of h=3'
        """
        rows, others = ", ".join(self.rows), ", ".join(self.others)
        if self.below is not None:
            return f"{self.says}: {rows} below {self.high:g}"
        if self.above:
            return f"{self.says}: {rows} above {others}"
        if self.not_above:
            return f"{self.says}: {rows} less than {self.high:g} above {others}"
        return f"{self.says}: {rows} within {self.high:g} of {others}"


class PaperTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The paper's figures for the rows of an experiment, and its claims about them."""

    of: str = ""
    rsum: dict[str, float] = field(default_factory=dict)
    claims: tuple[Claim, ...] = ()

    @property
    def reference(self) -> Reference:
        return Reference("paper", self.rsum, self.of)


def load_paper_table(name: str, definition: Definition) -> PaperTable:
    """Load the paper's figures and claims; reject labels that the definition does not have."""
    path = ROOT / "reproduction" / "claims" / f"{name}.toml"
    table = read_toml(path, PaperTable)
    named = [label for claim in table.claims for label in (*claim.rows, *claim.others)]
    for label in (*table.rsum, *named):
        if label not in definition.labels:
            known = ", ".join(map(repr, definition.labels))
            raise UserError(f"{path}: unknown row {label!r}; expected one of: {known}.")
    return table


def _labels(labels: Labels) -> tuple[str, ...]:
    return (labels,) if isinstance(labels, str) else labels
