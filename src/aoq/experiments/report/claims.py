"""Whether what the paper says of its rows can be said of these.

A claim says where a figure lies: rsum of a row, or what it has more than another's. It holds if it
does so with every seed and if the 95 % interval of the mean, which tells what other queries would
change, lies there as well. It does not hold if both lie elsewhere. Anything between is not decided.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

from aoq.evaluation.bootstrap import Interval
from aoq.experiments.definitions import Claim
from aoq.experiments.report.rows import ResultRow, Training, mean_resampled

ENOUGH_SEEDS = 3


@dataclass(frozen=True)
class Judged:
    """A claim, what the paper has for it, and what was found."""

    claim: Claim
    by_seed: Mapping[int, float]
    "The figure with every seed that all rows have."
    interval: Interval | None
    "Of their mean; none without ranks."
    paper: float | None

    @property
    def verdict(self) -> str:
        claim, interval, found = self.claim, self.interval, self.by_seed.values()
        if len(found) < ENOUGH_SEEDS:
            return f"open: {len(found)} of {ENOUGH_SEEDS} seeds"
        if interval is None:
            return "open: no ranks (add --data)"
        low, high = round(interval.low, 1), round(interval.high, 1)  # as they are printed
        if all(claim.low < value < claim.high for value in (low, high, *found)):
            return "holds"
        is_elsewhere = high <= claim.low or low >= claim.high
        if is_elsewhere and not any(claim.low < value < claim.high for value in found):
            return "does not hold"
        return "not decided"


def judge_claims(claims: Sequence[Claim], rows: Sequence[ResultRow]) -> Iterator[Judged]:
    """The claims about rows that are there."""
    by_label = {row.label: row for row in rows}
    for claim in claims:
        if all(label in by_label for label in (*claim.rows, *claim.than)):
            ones = [by_label[label] for label in claim.rows]
            others = [by_label[label] for label in claim.than]
            yield _judged(claim, ones, others)


def _judged(claim: Claim, ones: Sequence[ResultRow], others: Sequence[ResultRow]) -> Judged:
    seeds = [
        t.seed for t in ones[0].trainings if all(row.training(t.seed) for row in (*ones, *others))
    ]
    papers = [row.paper for row in (*ones, *others)]
    return Judged(
        claim,
        by_seed={seed: _rsum(ones, seed) - _rsum(others, seed) for seed in seeds},
        interval=_interval(_trainings(ones, seeds), _trainings(others, seeds)),
        paper=None if None in papers else _in_paper(ones) - _in_paper(others),
    )


def _trainings(rows: Sequence[ResultRow], seeds: Sequence[int]) -> list[Training]:
    return [training for row in rows for training in row.trainings if training.seed in seeds]


def _rsum(rows: Sequence[ResultRow], seed: int) -> float:
    """The mean with a seed; 0 where there is nothing to hold against."""
    return mean([t.figures["rsum"] for t in _trainings(rows, [seed])] or [0.0])


def _in_paper(rows: Sequence[ResultRow]) -> float:
    return mean([row.paper.rsum for row in rows if row.paper] or [0.0])


def _interval(ones: Sequence[Training], others: Sequence[Training]) -> Interval | None:
    one, other = mean_resampled(ones), mean_resampled(others)
    if one is None or (others and other is None):
        return None
    return (one.intervals() if other is None else one.minus(other))["rsum"]
