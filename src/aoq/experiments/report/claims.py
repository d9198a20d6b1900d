"""Whether what the paper says of its rows can be said of these.

A claim is that one row is better than another. It holds if the row has the higher rsum with every
seed, and if the 95 % interval of the mean difference, which tells what other queries would change,
lies above zero. It does not hold if both are the other way round. Anything between is not decided.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from aoq.experiments.definitions import Claim
from aoq.experiments.report.rows import Gain, ResultRow

ENOUGH_SEEDS = 3


@dataclass(frozen=True)
class Judged:
    """A claim, what the paper has for it, and what was found."""

    claim: Claim
    gain: Gain | None
    "Of rsum, over the seeds that both rows have; none where they have none."
    by_seed: Mapping[int, float]
    paper: float | None
    "What rsum is more there."

    @property
    def verdict(self) -> str:
        found = self.by_seed.values()
        if len(found) < ENOUGH_SEEDS:
            return f"open: {len(found)} of {ENOUGH_SEEDS} seeds"
        interval = None if self.gain is None else self.gain.interval
        if interval is None:
            return "open: the runs are not there"
        if interval.low > 0 and min(found) > 0:
            return "holds"
        if interval.high < 0 and max(found) < 0:
            return "does not hold"
        return "not decided"


def judge_claims(claims: Sequence[Claim], rows: Sequence[ResultRow]) -> Iterator[Judged]:
    """The claims about rows that are there."""
    by_label = {row.label: row for row in rows}
    for claim in claims:
        better, than = by_label.get(claim.better), by_label.get(claim.than)
        if better is None or than is None:  # only some rows were asked for
            continue
        differences = better.differences(than)
        yield Judged(
            claim,
            gain=better.minus(than).get("rsum"),
            by_seed={seed: figures["rsum"] for seed, figures in differences.items()},
            paper=better.paper.rsum - than.paper.rsum if better.paper and than.paper else None,
        )
