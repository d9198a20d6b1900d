"""How well each claim can be decided: its power with the seeds that the rows have.

A claim is found with a chance that depends on its error. That of claims with results is measured;
the others have that of VSRN (`aoq.evaluation.power`). Each claim states the chance that it needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import isfinite
from pathlib import Path

from aoq.evaluation.power import POWER, Design
from aoq.experiments.comparisons import Comparison, Contrast
from aoq.experiments.definition import load_definition
from aoq.experiments.forecast import shown_seeds
from aoq.experiments.rows import ResultRow
from aoq.experiments.tables import TextTable
from reproduction import definition_file
from reproduction.claims import Claim, load_paper_table
from reproduction.grid import all_comparisons, all_rows

_HEADINGS = ("claim", "to be found", "seeds", "chance", "of several", "needs", "needs, of several")


def power_table(name: str, results: Path, *, seeds: int | None = None) -> TextTable:
    """Tell the chance of each claim that compares rows, alone and as the first of all (Holm)."""
    definition = load_definition(definition_file(name))
    claims = [c for c in load_paper_table(name, definition).claims if c.others]
    n_seeds = seeds or len(definition.seeds)
    rows = []
    for claim in claims:
        alone = _design(claim, results, all_rows(results)[name])
        several = replace(alone, claims=len(claims))
        power = claim.power or POWER
        bounds = {"low": claim.low, "high": claim.high}
        found = f"+{claim.true:g}" if claim.above else f"equal, within {claim.high:g}"
        chances = [d.power(claim.true, seeds=n_seeds, **bounds) for d in (alone, several)]
        needs = [d.seeds_for(claim.true, power=power, **bounds) for d in (alone, several)]
        rows.append(
            (
                claim.sentence,
                found,
                str(n_seeds),
                *(f"{100 * chance:.0f} %" for chance in chances),
                *(shown_seeds(number) for number in needs),
            )
        )
    return TextTable(_HEADINGS, rows)


def _design(claim: Claim, results: Path, rows: Sequence[ResultRow]) -> Design:
    """Plan a claim with the error that it has so far."""
    by_label = {row.label: row for row in rows}
    ones, others = ([by_label.get(name) for name in of] for of in (claim.rows, claim.others))
    weight = 1 / len(ones) + 1 / len(others)
    found = None
    if None not in (*ones, *others):
        contrast = Contrast([row for row in ones if row], [row for row in others if row])
        found = all_comparisons(results).compare(contrast)
    return Design(weight=weight, rows=max(2, len(rows))) if found is None else again(found, weight)


def again(found: Comparison, weight: float = 2.0) -> Design:
    """Plan a comparison that has the error of one with results, at another number of seeds."""
    n_seeds, effect = len(found.by_seed), found.effect
    if n_seeds < 2 or not isfinite(effect.error):
        return Design(weight=weight)
    return Design(
        weight=weight,
        deviation=effect.error * (n_seeds / weight) ** 0.5,
        rows=1 + max(1, round(effect.degrees / (n_seeds - 1))),
    )
