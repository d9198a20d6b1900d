"""Judges whether the paper's claims hold for the rows of an experiment.

A claim bounds an effect. It holds if the effect is found within its bounds, by two one-sided tests,
and does not hold if it is found outside of them; otherwise it is not decided. The p-values of all
claims of a table are corrected together (Holm), so that a table has no wrong verdict with a
probability of 95 %.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from aoq.evaluation.bootstrap import LEVEL
from aoq.evaluation.effects import Effect, holm
from aoq.experiments.comparisons import BOTH, Comparison, Comparisons, Contrast
from aoq.experiments.csv_files import csv_text
from aoq.experiments.page import Section
from aoq.experiments.rows import ResultRow
from aoq.experiments.tables import TextTable, shown_interval
from reproduction.claims import Claim

_ENOUGH_SEEDS = 3
_HEADINGS = ("claim", "paper", "effect", "dev", "test", "p, corrected", "verdict")


@dataclass(frozen=True)
class Verdict:
    """A claim, the paper's figure, and ours."""

    claim: Claim
    found: Comparison | None
    "None if no seed was trained for both rows."
    paper: float | None = None
    corrected: float = 1.0
    "The p-value, corrected for the other claims of the table."

    @property
    def effect(self) -> Effect | None:
        return None if self.found is None else self.found.effect

    @property
    def p(self) -> float:
        """The smaller p-value: that the claim is true, or that it is false."""
        return min(self._p_values)

    @property
    def _p_values(self) -> tuple[float, float]:
        claim, effect = self.claim, self.effect
        if effect is None or not self._is_complete:
            return 1.0, 1.0
        return effect.p_within(claim.low, claim.high), effect.p_outside(claim.low, claim.high)

    @property
    def _is_complete(self) -> bool:
        return self.seeds >= _ENOUGH_SEEDS and self.effect is not None and bool(self.effect.queries)

    @property
    def seeds(self) -> int:
        return 0 if self.found is None else len(self.found.by_seed)

    def __str__(self) -> str:
        if self.seeds < _ENOUGH_SEEDS:
            return f"open: {self.seeds} of {_ENOUGH_SEEDS} seeds"
        if not self._is_complete:
            return "open: no ranks"
        if self.corrected >= 1 - LEVEL:
            return "not decided"
        within, outside = self._p_values
        return "holds" if within < outside else "does not hold"

    @property
    def shown(self) -> tuple[str, ...]:
        """The claim in the columns of the table."""
        form = "{:+z.1f}" if self.claim.others else "{:.1f}"
        by_split = {} if self.found is None else self.found.by_split
        effect = ""
        if self.effect is not None:
            brackets = shown_interval(self.effect.interval()) if self._is_complete else ""
            effect = f"{form.format(self.effect.value)} {brackets}".strip()
        return (
            self.claim.sentence,
            "" if self.paper is None else form.format(self.paper),
            effect,
            *(form.format(by_split[s]) if s in by_split else "" for s in BOTH),
            shown_p(self.corrected) if self._is_complete else "",
            str(self),
        )

    def as_dict(self) -> dict[str, Any]:
        """The claim for programs, with the digits that any machine computes alike."""
        line: dict[str, Any] = {"claim": self.claim.sentence, "paper": self.paper}
        if self.found is not None:
            effect, interval = self.found.effect, self.found.effect.interval()
            line |= {"effect": effect.value, "low": interval.low, "high": interval.high}
            line |= {"error": effect.error, "degrees": effect.degrees}
            parts = {"runs": effect.runs, "queries": effect.queries, "both": effect.both}
            line |= {f"variance_{name}": part.value for name, part in parts.items() if part}
            line |= {split: self.found.by_split.get(split) for split in BOTH}
            line |= {"seeds": " ".join(map(str, self.found.by_seed))}
        line |= {"p": self.p, "p_corrected": self.corrected, "verdict": str(self)}
        return {
            name: f"{value:.6g}" if isinstance(value, float) else value
            for name, value in line.items()
        }


def judge_claims(
    claims: Sequence[Claim],
    rows: Sequence[ResultRow],
    rsum: Mapping[str, float],
    *,
    comparisons: Comparisons | None = None,
) -> list[Verdict]:
    """Judge the claims whose rows are all given, together; `rsum` holds the paper's figures.

    The deviation of trainings is that of `comparisons`, of these rows by default.
    """
    by_label = {row.label: row for row in rows}
    comparisons = comparisons or Comparisons(rows)
    verdicts = []
    for claim in claims:
        labels = (*claim.rows, *claim.others)
        if all(label in by_label for label in labels):
            ones, others = ([by_label[name] for name in of] for of in (claim.rows, claim.others))
            of_paper = None
            if all(label in rsum for label in labels):
                of_paper = _mean(rsum, claim.rows) - _mean(rsum, claim.others)
            verdicts.append(Verdict(claim, comparisons.compare(Contrast(ones, others)), of_paper))
    p_values = holm([verdict.p for verdict in verdicts])
    return [
        Verdict(verdict.claim, verdict.found, verdict.paper, corrected)
        for verdict, corrected in zip(verdicts, p_values, strict=True)
    ]


def claims_section(verdicts: Sequence[Verdict]) -> Section:
    """Make a table of the claims."""
    table = TextTable(_HEADINGS, [verdict.shown for verdict in verdicts], last_is_text=True)
    return Section(
        name="claims",
        title="What holds",
        text="A claim bounds the rsum of a row, or its gain over another row. The effect is the "
        "mean of dev and test over the seeds, of test alone where dev chose a row; brackets are "
        "its 95 % interval over other trainings and other queries. p is corrected for all claims "
        "of the table (Holm). A claim holds if p is below 0.05 for its being true, and does not "
        "hold if it is for its being false. Otherwise it is not decided.",
        table=table if verdicts else None,
        csv=csv_text([verdict.as_dict() for verdict in verdicts]),
    )


def claims_table(verdicts: Sequence[Verdict]) -> Table:
    """Make a table of the claims for the terminal."""
    table = Table(title="What holds", title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    claim, *figures, verdict = _HEADINGS
    table.add_column(claim, overflow="fold")
    for heading in figures:
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column(verdict)
    for found in verdicts:
        table.add_row(*map(Text, found.shown))
    return table


def shown_p(p: float) -> str:
    """
    >>> shown_p(0.00042), shown_p(0.0142), shown_p(0.27), shown_p(1.0)
    ('< 0.001', '0.014', '0.27', '1')
    """
    if p < 0.001:
        return "< 0.001"
    return "1" if p > 0.995 else f"{p:.3f}" if p < 0.1 else f"{p:.2f}"


def _mean(rsum: Mapping[str, float], labels: Sequence[str]) -> float:
    return mean([rsum[label] for label in labels] or [0.0])
