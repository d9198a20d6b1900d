"""What the paper tells of its trainings beside their recalls, row by row.

When a row passes the best R@1 that the first of its group ever has on dev, with the same seed (its
training curves), and how many positive pairs are first in both directions at once, or far behind
(the cross-retrieval ranks of its supplement).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aoq.evaluation.cross_retrieval import CrossRetrieval
from aoq.evaluation.seeds import Spread
from aoq.experiments.report.rows import ResultRow, Training, groups_of

PASSED = {"i2t_r1": "i2t R@1", "t2i_r1": "t2i R@1"}


@dataclass(frozen=True)
class Behaviour:
    """How a row's trainings went."""

    label: str
    passes: dict[str, tuple[int | None, ...]]
    "By figure, the epoch with each seed, none where it never does; empty without a curve to pass."
    first: Spread | None
    "Percent of the pairs with cross-retrieval rank 1; none without ranks."
    far: Spread | None
    "Of those above the last of the histogram's ranks, 200."


def behaviours(rows: Sequence[ResultRow]) -> list[Behaviour]:
    """Those of the rows that have been trained, each beside the first of its whole group."""
    return [
        _behaviour(row, group[0]) for group in groups_of(rows) for row in group if row.trainings
    ]


def _behaviour(row: ResultRow, first: ResultRow) -> Behaviour:
    both = [
        (mine, theirs)
        for mine in row.trainings
        if row is not first
        and (theirs := first.training(mine.seed)) is not None
        and all(training.line.get("curve") for training in (mine, theirs))  # no ensemble's
    ]
    histograms = [
        CrossRetrieval.of([training.ranks]).histogram()
        for training in row.trainings
        if training.ranks is not None
    ]
    return Behaviour(
        row.label,
        {name: tuple(_passes(*pair, name) for pair in both) for name in PASSED if both},
        first=Spread.of([bins[0].share for bins in histograms]) if histograms else None,
        far=Spread.of([bins[-1].share for bins in histograms]) if histograms else None,
    )


def _passes(mine: Training, theirs: Training, name: str) -> int | None:
    """The first epoch in which one training is above whatever the other one reaches."""
    best = max(point[name] for point in theirs.line["curve"])
    passing = (int(point["epoch"]) for point in mine.line["curve"] if point[name] > best)
    return next(passing, None)


BEHAVIOUR_HEADINGS = (
    *(f"passes the first's {title} in epoch" for title in PASSED.values()),
    "first both ways, %",
    "beyond 200, %",
)


def shown_behaviours(rows: Sequence[ResultRow]) -> list[tuple[str, ...]]:
    """Each row that has been trained: its label, and the columns of `BEHAVIOUR_HEADINGS`."""
    return [
        (
            found.label,
            *(
                ", ".join("-" if epoch is None else f"{epoch}" for epoch in epochs)
                for epochs in (found.passes.get(name, ()) for name in PASSED)
            ),
            _shown(found.first),
            _shown(found.far),
        )
        for found in behaviours(rows)
    ]


def _shown(spread: Spread | None) -> str:
    if spread is None:
        return ""
    deviation = "" if spread.deviation is None else f" ± {spread.deviation:.1f}"
    return f"{spread.mean:.1f}{deviation}"
