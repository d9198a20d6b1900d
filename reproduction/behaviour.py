"""How the trainings of each row went, besides their recalls.

The paper reports two things: when a row passes the best R@1 that the first row of its group reaches
on dev with the same seed (its training curves), and how many positive pairs are first in both
directions or far behind (the cross-retrieval ranks of its supplement).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aoq.evaluation.cross_retrieval import CrossRetrieval
from aoq.evaluation.seeds import Spread
from aoq.experiments.page import Section
from aoq.experiments.rows import ResultRow, Training, groups_of
from aoq.experiments.tables import TextTable

_PASSED = {"i2t_r1": "i2t R@1", "t2i_r1": "t2i R@1"}
_HEADINGS = (
    "",
    *(f"passes the first's {title} in epoch" for title in _PASSED.values()),
    "first both ways, %",
    "beyond 200, %",
)


@dataclass(frozen=True)
class Behaviour:
    """How a row's trainings went."""

    label: str
    passes: dict[str, tuple[int | None, ...]]
    "By figure, the epoch with each seed, none if it never passes; empty without curves."
    first: Spread | None
    "Percent of the pairs with cross-retrieval rank 1; none without ranks."
    far: Spread | None
    "Percent of the pairs above the last of the histogram's ranks, 200."

    @property
    def shown(self) -> tuple[str, ...]:
        epochs = (
            ", ".join("-" if epoch is None else f"{epoch}" for epoch in self.passes.get(name, ()))
            for name in _PASSED
        )
        return self.label, *epochs, _shown(self.first), _shown(self.far)


def behaviour_section(rows: Sequence[ResultRow]) -> Section:
    """Make a table of the rows that are trained."""
    found = [behaviour.shown for behaviour in behaviours(rows)]
    return Section(
        name="behaviour",
        title="How the trainings went",
        text="The epoch in which a row passes the best R@1 that the first row of its group reaches "
        "on dev, with each seed (- never), and the share of the positive pairs with "
        "cross-retrieval rank 1 and above 200.",
        table=TextTable(_HEADINGS, found) if found else None,
    )


def behaviours(rows: Sequence[ResultRow]) -> list[Behaviour]:
    """Compare the rows that are trained with the first of their group."""
    return [
        _behaviour(row, group[0]) for group in groups_of(rows) for row in group if row.trainings
    ]


def _behaviour(row: ResultRow, first: ResultRow) -> Behaviour:
    both = [
        (mine, theirs)
        for mine in row.trainings
        if row is not first
        and (theirs := first.training(mine.seed)) is not None
        and all(training.line.get("curve") for training in (mine, theirs))  # no ensembles
    ]
    histograms = [
        CrossRetrieval.of([training.ranks]).histogram()
        for training in row.trainings
        if training.ranks is not None
    ]
    return Behaviour(
        row.label,
        {name: tuple(_passes(*pair, name) for pair in both) for name in _PASSED if both},
        first=Spread.of([bins[0].share for bins in histograms]) if histograms else None,
        far=Spread.of([bins[-1].share for bins in histograms]) if histograms else None,
    )


def _passes(mine: Training, theirs: Training, name: str) -> int | None:
    """Return the first epoch in which a training is above the other one's best."""
    best = max(point[name] for point in theirs.line["curve"])
    passing = (int(point["epoch"]) for point in mine.line["curve"] if point[name] > best)
    return next(passing, None)


def _shown(spread: Spread | None) -> str:
    if spread is None:
        return ""
    deviation = "" if spread.deviation is None else f" ± {spread.deviation:.1f}"
    return f"{spread.mean:.1f}{deviation}"
