"""The spread of results over seeds: how much another training would change them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any

from aoq.errors import UserError
from aoq.evaluation.metrics import PAPER_FIGURES
from aoq.evaluation.tables import is_ensemble

_RANKS = tuple(f"{side}_{name}_rank" for side in ("i2t", "t2i") for name in ("median", "mean"))
FIGURES = (*PAPER_FIGURES, *_RANKS)


@dataclass(frozen=True)
class Spread:
    """The mean and deviation of a figure over several trainings."""

    mean: float
    deviation: float | None
    "Sample standard deviation (n - 1); none if there is only one training."
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(mean(values), stdev(values) if len(values) > 1 else None, len(values))


def over_seeds(lines: Sequence[Mapping[str, Any]]) -> dict[str, Spread]:
    """Compute mean and standard deviation of every figure over lines of results.jsonl.

    A model with several evaluations counts once, with its last line; ensembles do not count. Lines
    of different splits or data sets are rejected.

    >>> lines = [{"split": "test", "model": name, "rsum": rsum} for name, rsum in
    ...          (("a", 400.0), ("b", 406.0), ("a", 402.0))]
    >>> over_seeds(lines)["rsum"]
    Spread(mean=404.0, deviation=2.8284271247461903, count=2)
    """
    lines = [line for line in lines if not is_ensemble(line)]
    if not lines:
        raise UserError("there is no result to average; evaluate a model first.")
    judged_on = {(line.get("split"), line.get("data")) for line in lines}
    if len(judged_on) > 1:
        splits = ", ".join(sorted(f"{split} of {str(data)[:12]}" for split, data in judged_on))
        raise UserError(
            f"the results are of different splits or data sets: {splits}; give those of one."
        )
    models = {line.get("model", number): line for number, line in enumerate(lines)}
    spreads = {}
    for name in FIGURES:
        values = [float(line[name]) for line in models.values() if name in line]
        if values:
            spreads[name] = Spread.of(values)
    return spreads
