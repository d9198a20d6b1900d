"""Judges whether the paper's claims hold for the rows of an experiment.

A claim holds if it is true with every seed and over the whole 95 % interval of the mean, which
shows what other queries would change. It does not hold if it is false for all of these. Otherwise
it is not decided.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from aoq.evaluation.bootstrap import Interval
from aoq.experiments.page import Section
from aoq.experiments.rows import ResultRow, Training, mean_resampled
from aoq.experiments.tables import TextTable, shown_interval
from reproduction.claims import Claim

_ENOUGH_SEEDS = 3
_HEADINGS = ("claim", "paper", "here", "with each seed", "verdict")


@dataclass(frozen=True)
class Verdict:
    """A claim, the paper's figure, and ours with each seed."""

    claim: Claim
    by_seed: Mapping[int, float]
    "The figure with every seed that all rows have."
    interval: Interval | None
    "Of their mean; none without ranks."
    paper: float | None

    def __str__(self) -> str:
        claim, interval, found = self.claim, self.interval, self.by_seed.values()
        if len(found) < _ENOUGH_SEEDS:
            return f"open: {len(found)} of {_ENOUGH_SEEDS} seeds"
        if interval is None:
            return "open: no ranks (add --data)"
        low, high = round(interval.low, 1), round(interval.high, 1)  # as they are printed
        if all(claim.low < value < claim.high for value in (low, high, *found)):
            return "holds"
        is_elsewhere = high <= claim.low or low >= claim.high
        if is_elsewhere and not any(claim.low < value < claim.high for value in found):
            return "does not hold"
        return "not decided"

    @property
    def shown(self) -> tuple[str, ...]:
        """The claim in the columns of the table."""
        form = "{:+z.1f}" if self.claim.others else "{:.1f}"
        found = self.by_seed.values()
        here = [
            form.format(mean(found)) if found else "",
            shown_interval(self.interval) if self.interval else "",
        ]
        return (
            self.claim.sentence,
            "" if self.paper is None else form.format(self.paper),
            " ".join(filter(None, here)),
            ", ".join(map(form.format, found)),
            str(self),
        )


def judge_claims(
    claims: Sequence[Claim], rows: Sequence[ResultRow], rsum: Mapping[str, float]
) -> Iterator[Verdict]:
    """Judge the claims whose rows are all given; `rsum` holds the paper's figures."""
    by_label = {row.label: row for row in rows}
    for claim in claims:
        labels = (*claim.rows, *claim.others)
        if all(label in by_label for label in labels):
            ones = [by_label[label] for label in claim.rows]
            others = [by_label[label] for label in claim.others]
            seeds = [
                training.seed
                for training in ones[0].trainings
                if all(row.training(training.seed) for row in (*ones, *others))
            ]
            yield Verdict(
                claim,
                by_seed={seed: _rsum(ones, seed) - _rsum(others, seed) for seed in seeds},
                interval=_interval(_trainings(ones, seeds), _trainings(others, seeds)),
                paper=_mean(rsum, claim.rows) - _mean(rsum, claim.others)
                if all(label in rsum for label in labels)
                else None,
            )


def claims_section(verdicts: Sequence[Verdict]) -> Section:
    """Make a table of the claims."""
    table = TextTable(_HEADINGS, [verdict.shown for verdict in verdicts], last_is_text=True)
    return Section(
        name="claims",
        title="What holds",
        text="A claim bounds the rsum of a row, or its gain over another row. It holds if it is "
        "true with every seed, three or more, and over the whole 95 % interval of the mean over "
        "queries. It does not hold if it is false for all of these. Otherwise it is not decided.",
        table=table if verdicts else None,
    )


def claims_table(verdicts: Sequence[Verdict]) -> Table:
    """Make a table of the claims for the terminal."""
    table = Table(title="What holds", title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    claim, paper, here, seeds, verdict = _HEADINGS
    table.add_column(claim, overflow="fold")
    for heading in (paper, here):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column(seeds, justify="right")
    table.add_column(verdict)
    for found in verdicts:
        *cells, by_seed, decision = found.shown
        table.add_row(*map(Text, cells), by_seed.replace(", ", "\n"), decision)
    return table


def _trainings(rows: Sequence[ResultRow], seeds: Sequence[int]) -> list[Training]:
    return [training for row in rows for training in row.trainings if training.seed in seeds]


def _rsum(rows: Sequence[ResultRow], seed: int) -> float:
    """Average rows with a seed; 0 if there is nothing to compare with."""
    return mean([t.figures["rsum"] for t in _trainings(rows, [seed])] or [0.0])


def _mean(rsum: Mapping[str, float], labels: Sequence[str]) -> float:
    return mean([rsum[label] for label in labels] or [0.0])


def _interval(ones: Sequence[Training], others: Sequence[Training]) -> Interval | None:
    one, other = mean_resampled(ones), mean_resampled(others)
    if one is None or (others and other is None):
        return None
    return (one.intervals() if other is None else one.minus(other))["rsum"]
