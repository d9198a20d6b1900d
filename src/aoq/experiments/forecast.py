"""What an experiment will be able to decide, before it trains.

The rows of each model are compared with the first of them. How small a difference is found depends
on the deviation of the trainings: that of finished ones, if there are some, else the one that the
definition states, else that of VSRN on Flickr8k.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from aoq.evaluation.power import DEVIATION, MOST_SEEDS, Design
from aoq.evaluation.tables import longest_word
from aoq.experiments.comparisons import Comparisons
from aoq.experiments.definition import Definition
from aoq.experiments.report import recorded_rows
from aoq.experiments.results import Experiment
from aoq.progress import count_of


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """The comparisons of one model's rows with the first of them."""

    first: str
    "Label of the first row."
    design: Design
    seeds: int
    difference: float
    power: float
    source: str
    "Where the deviation is from."

    @property
    def smallest(self) -> float:
        """The smallest true difference that is found with the wanted power."""
        return self.design.smallest_difference(seeds=self.seeds, power=self.power)

    @property
    def needed(self) -> int | None:
        """The seeds that find the wanted difference."""
        return self.design.seeds_for(self.difference, power=self.power)

    @property
    def sentence(self) -> str:
        """
        >>> design = Design(rows=4, deviation=2.6, claims=3)
        >>> print(Forecast(first="VSRN", design=design, seeds=3, difference=3, power=0.8,
        ...                source="assumed").sentence)
        VSRN, 3 seeds: a true difference of 9.1 rsum is found with 80 %; one of 3 needs 17 seeds \
(deviation of a training 2.6, assumed).
        """
        return (
            f"{self.first}, {count_of(self.seeds, 'seed')}: a true difference of "
            f"{self.smallest:.1f} rsum is found with {self.power * 100:g} %; one of "
            f"{self.difference:g} needs {shown_seeds(self.needed)} (deviation of a training "
            f"{self.design.deviation:.1f}, {self.source})."
        )


def forecasts(experiment: Experiment) -> list[Forecast]:
    """Look ahead at the rows of each model with more than one row and seed."""
    definition = experiment.definition
    done = Comparisons(recorded_rows(experiment))
    groups: dict[str, dict[str, set[int]]] = {}
    for run in experiment.plan(experiment.read()):
        if run.is_row:
            rows = groups.setdefault(run.group, {})
            rows.setdefault(run.label, set()).add(run.recipe.seed)
    found = []
    for group, planned in groups.items():
        rows = {label: seeds for label, seeds in planned.items() if len(seeds) > 1}
        if len(rows) > 1:
            deviation, source = _deviation(definition, group, done)
            seeds = min(map(len, rows.values()))
            design = Design(rows=len(rows), deviation=deviation, claims=len(rows) - 1)
            found.append(
                Forecast(
                    first=next(iter(rows)),
                    design=design,
                    seeds=seeds,
                    difference=definition.difference,
                    power=definition.power,
                    source=source,
                )
            )
    return found


def _deviation(definition: Definition, group: str, done: Comparisons | None) -> tuple[float, str]:
    error = None if done is None else done.run_error(group)
    if error is not None and error.variance.value:
        return error.variance.value**0.5, f"measured, {error.variance.degrees:g} degrees of freedom"
    if definition.deviation is not None:
        return definition.deviation, "as the definition states"
    return DEVIATION, "assumed from Flickr8k"


def forecast_table(found: Sequence[Forecast]) -> Table:
    """Show what each comparison will find."""
    power, difference = f"{found[0].power * 100:g} %", f"{found[0].difference:g}"
    table = Table(
        title="What the rows can decide, compared with the first of their model",
        title_justify="left",
        caption=f"finds: the smallest true difference in rsum that is found with {power}; equal "
        f"within: the smallest bound within which equal rows are found to be, with {power}; "
        "both by tests at 5 % that are corrected for all rows of the model.",
        caption_justify="left",
        box=SIMPLE_HEAD,
    )
    table.add_column("first row", min_width=longest_word(one.first for one in found))
    for heading in ("compared", "seeds", "finds", f"to find {difference}", "equal within"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("deviation of a training")
    for one in found:
        table.add_row(
            Text(one.first),
            str(one.design.claims),
            str(one.seeds),
            f"{one.smallest:.1f}",
            shown_seeds(one.needed),
            f"{one.design.smallest_bound(seeds=one.seeds, power=one.power):.1f}",
            f"{one.design.deviation:.1f}, {one.source}",
        )
    return table


def shown_seeds(seeds: int | None) -> str:
    return f"more than {MOST_SEEDS} seeds" if seeds is None else count_of(seeds, "seed")
