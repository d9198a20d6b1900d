"""What each row of an experiment came to: its figures with every seed, and the ranks behind them.

Figures and curves are in the results file, so a table needs nothing else. Intervals, histograms and
examples need the trained models' ranks, which are kept in the runs; where a run lies elsewhere
or the data set is not there, they are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from aoq.data.dataset import PairDataset
from aoq.evaluation.bootstrap import Difference, Resampled
from aoq.evaluation.kept_ranks import keep_ranks, kept_ranks
from aoq.evaluation.protocols import JudgedFold, judge_folds
from aoq.evaluation.seeds import Spread, over_seeds
from aoq.experiments.cells import Cell
from aoq.experiments.definitions import Definition, EnsembleRow
from aoq.experiments.results import Results, is_stale
from aoq.progress import warn
from aoq.storage import RunDirectory, hash_file
from aoq.training.trained import ScoredSplit, open_splits

_SAME_RSUM = 0.5  # ranks of another machine may differ in a query or two


@dataclass(frozen=True, eq=False)
class Training:
    """A row with one seed, done: figures in percent, and where its run is there, its ranks."""

    seed: int
    figures: Mapping[str, float]
    runs: tuple[Path, ...] = ()
    "Folders of the trained rounds: one, of an ensemble several, none if it is not there."
    ranks: JudgedFold | None = None
    line: Mapping[str, Any] = field(default_factory=dict)
    "What the results file says; empty for ensembles."

    @cached_property
    def resampled(self) -> Resampled | None:
        return None if self.ranks is None else Resampled.of([self.ranks])


@dataclass(frozen=True, eq=False)
class ResultRow:
    """A row of the table: a setting, and its trainings so far."""

    label: str
    group: str
    "Rows of one model; the first of a group is what the others are compared with."
    seeds: tuple[int, ...]
    "Those that there are to be."
    trainings: tuple[Training, ...]

    @cached_property
    def spreads(self) -> dict[str, Spread]:
        """Mean and deviation of every figure over the seeds; empty where there is none."""
        return over_seeds([t.figures for t in self.trainings]) if self.trainings else {}

    @cached_property
    def resampled(self) -> Resampled | None:
        """The mean over the seeds, in every resample; none unless all their ranks are there."""
        parts = [part for t in self.trainings if (part := t.resampled) is not None]
        return Resampled.mean(parts) if parts and len(parts) == len(self.trainings) else None

    def minus(self, first: ResultRow) -> dict[str, Difference]:
        """What it has more than another row, over the seeds that both have; empty if none."""
        pairs = [
            (one.resampled, two.resampled)
            for one in first.trainings
            for two in self.trainings
            if one.seed == two.seed
        ]
        known = [(one, two) for one, two in pairs if one is not None and two is not None]
        if not known or self is first:
            return {}
        ones, twos = zip(*known, strict=True)
        return Resampled.mean(twos).minus(Resampled.mean(ones))

    def training(self, seed: int) -> Training | None:
        return next((t for t in self.trainings if t.seed == seed), None)


def groups_of(rows: Sequence[ResultRow]) -> list[list[ResultRow]]:
    """Rows of the same group together, in their order."""
    names = dict.fromkeys(row.group for row in rows)
    return [[row for row in rows if row.group == name] for name in names]


def read_rows(
    definition: Definition,
    cells: Sequence[Cell],
    lines: Results,
    *,
    dataset: PairDataset | None = None,
    data: Path | None = None,
) -> list[ResultRow]:
    """The rows of an experiment with what is done of them, then its ensembles.

    With the `dataset` that they were judged on, in the folder `data`, also their ranks.
    """
    trained: dict[tuple[str, int], Training] = {}
    for cell in cells:
        key = (cell.label, cell.recipe.seed)
        if not cell.is_row or key not in lines:
            continue
        if is_stale(cell, lines):
            warn(f"{cell.name} is left out: its result is of other settings.")
            continue
        trained[key] = _training(cell, lines[key], dataset=dataset, data=data)
    rows = []
    for label in dict.fromkeys(cell.label for cell in cells if cell.is_row):
        own = [cell for cell in cells if cell.is_row and cell.label == label]
        seeds = tuple(cell.recipe.seed for cell in own)
        done = tuple(trained[label, seed] for seed in seeds if (label, seed) in trained)
        rows.append(ResultRow(label, _group(own[0]), seeds, done))
    groups = {row.label: row.group for row in rows}
    for ensemble in definition.ensembles:
        members = [label for label, _ in ensemble.with_seed(0)]
        if all(label in groups for label in members):  # unless only some rows were asked for
            done = tuple(_judged_together(ensemble, trained, dataset=dataset, data=data))
            group = " & ".join(groups[label] for label in members)
            rows.append(ResultRow(ensemble.label, group, ensemble.seeds, done))
    return rows


def _judged_together(
    ensemble: EnsembleRow,
    trained: Mapping[tuple[str, int], Training],
    *,
    dataset: PairDataset | None,
    data: Path | None,
) -> Iterator[Training]:
    """The ensemble with every seed for which the runs of all members are there."""
    for seed in ensemble.seeds:
        members = [trained[key] for key in ensemble.with_seed(seed) if key in trained]
        runs = tuple(run for member in members for run in member.runs)
        if dataset is not None and len(runs) == len(ensemble.members):
            ranks = judged(runs, dataset, data=data)
            yield Training(seed, ranks.metrics.figures(), runs, ranks)


def _group(cell: Cell) -> str:
    """Rows of the same model, in all its settings."""
    return repr(cell.recipe.model)


def _training(
    cell: Cell, line: Mapping[str, Any], *, dataset: PairDataset | None, data: Path | None
) -> Training:
    """Unrounded figures where the ranks are there, and are those of the line."""
    seed, figures, run = cell.recipe.seed, line["test"] or line["dev"], cell.last_round
    if dataset is None or not RunDirectory(run).model.is_file():
        return Training(seed, figures, line=line)
    ranks = judged([run], dataset, data=data)
    found = ranks.metrics.figures()
    if abs(found["rsum"] - figures["rsum"]) > _SAME_RSUM:
        warn(
            f"{run} has rsum {found['rsum']:.1f} on {dataset.split}, but {cell.name} is noted with "
            f"{figures['rsum']:.1f}: it is another run or other data, so its ranks are left out."
        )
        return Training(seed, figures, line=line)
    return Training(seed, found, (run,), ranks, line)


def judged(runs: Sequence[Path], dataset: PairDataset, *, data: Path | None) -> JudgedFold:
    """The ranks of a model, or of several as an ensemble: as they are kept, or judged and kept."""
    model = "+".join(hash_file(RunDirectory(run).require_trained().model) for run in runs)
    kept = kept_ranks(runs[0], model=model, dataset=dataset)
    if kept is None:
        part = ScoredSplit.together(open_splits(runs, split=dataset.split, data=data))
        (kept,) = judge_folds(part.scorer, part.encoded, dataset.positives)
        keep_ranks(runs[0], kept, model=model, dataset=dataset)
    return kept
