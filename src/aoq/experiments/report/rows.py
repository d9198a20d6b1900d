"""What each row of an experiment came to: its figures with every seed, and the ranks behind them.

Figures and curves are in the results file, so a table needs nothing else. Intervals and histograms
need the data set and the ranks, which are kept beside that file; examples need the runs themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from aoq.data.dataset import PairDataset
from aoq.evaluation.bootstrap import Difference, Resampled
from aoq.evaluation.kept_ranks import keep_ranks, kept_ranks
from aoq.evaluation.metrics import PAPER_FIGURES
from aoq.evaluation.protocols import JudgedFold
from aoq.evaluation.seeds import Spread, over_seeds
from aoq.experiments.cells import Cell
from aoq.experiments.definitions import Choice, Definition, EnsembleRow
from aoq.experiments.results import Results, ranks_beside
from aoq.progress import warn
from aoq.storage import RunDirectory
from aoq.training.trained import ranks_of

_RESAMPLES = 10_000  # with a tenth of them the ends of intervals still move by 0.4 of rsum
_SAME_RSUM = 0.5  # ranks of another machine may differ in a query or two


@dataclass(frozen=True, eq=False)
class Training:
    """A row with one seed, done: figures in percent, and where they are there, its ranks."""

    seed: int
    figures: Mapping[str, float]
    runs: tuple[Path, ...] = ()
    "Folders of the trained rounds: one, of an ensemble several, none if it is not there."
    ranks: JudgedFold | None = None
    line: Mapping[str, Any] = field(default_factory=dict)
    "What the results file says; empty for ensembles."

    @cached_property
    def resampled(self) -> Resampled | None:
        return None if self.ranks is None else Resampled.of([self.ranks], resamples=_RESAMPLES)


def mean_resampled(trainings: Sequence[Training]) -> Resampled | None:
    """The mean of trainings in every resample; none unless all their ranks are there."""
    drawn = [part for training in trainings if (part := training.resampled) is not None]
    return Resampled.mean(drawn) if drawn and len(drawn) == len(trainings) else None


@dataclass(frozen=True)
class Gain:
    """What a row has more than another in one figure, on the seeds that both have."""

    spread: Spread
    "Of the differences with each seed: what training again would change."
    interval: Difference | None
    "Of their mean, with these trainings: what other queries would change; none without ranks."


@dataclass(frozen=True)
class InPaper:
    """The rsum that the paper has for a row, and what that is about."""

    rsum: float
    of: str


@dataclass(frozen=True, eq=False)
class ResultRow:
    """A row of the table: a setting, and its trainings so far."""

    label: str
    group: str
    "Rows of one model; the first of a group is what the others are compared with."
    seeds: tuple[int, ...]
    "Those that there are to be."
    trainings: tuple[Training, ...]
    note: str = ""
    "Of which rows it is the best, where it was chosen."
    is_candidate: bool = False
    "One of those to choose from: for files, not for tables."
    paper: InPaper | None = None

    @cached_property
    def spreads(self) -> dict[str, Spread]:
        """Mean and deviation of every figure over the seeds; empty where there is none."""
        return over_seeds([t.figures for t in self.trainings]) if self.trainings else {}

    @cached_property
    def resampled(self) -> Resampled | None:
        """The mean over the seeds, in every resample; none unless all their ranks are there."""
        return mean_resampled(self.trainings)

    def differences(self, first: ResultRow) -> dict[int, dict[str, float]]:
        """What it has more than another row with each seed that both have; nothing than itself."""
        return {
            two.seed: {name: two.figures[name] - one.figures[name] for name in PAPER_FIGURES}
            for two in self.trainings
            if self is not first and (one := first.training(two.seed)) is not None
        }

    def minus(self, first: ResultRow) -> dict[str, Gain]:
        """What it has more than another row, by figure; empty where they share no seed."""
        by_seed = self.differences(first)
        if not by_seed:
            return {}
        spreads = over_seeds(list(by_seed.values()))
        one, two = (
            mean_resampled([t for t in row.trainings if t.seed in by_seed]) for row in (first, self)
        )
        intervals = two.minus(one) if one and two else {}
        return {name: Gain(spreads[name], intervals.get(name)) for name in PAPER_FIGURES}

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
    split: str,
    choices: Mapping[str, Mapping[str, float]],
    results: Path,
    dataset: PairDataset | None = None,
    data: Path | None = None,
) -> list[ResultRow]:
    """The rows of an experiment with what is done of them, what was chosen, and its ensembles.

    `lines` of the file `results` are comparable on `split`, and `choices` are made. With the
    `dataset` of that split, in the folder `data`, also the ranks.
    """
    judge = None if dataset is None else _Judge(results, dataset, data)
    trained = {
        key: _training(cell, lines[key], split=split, judge=judge)
        for cell in cells
        if cell.is_row and (key := (cell.label, cell.recipe.seed)) in lines
    }
    rows = []
    for label in dict.fromkeys(cell.label for cell in cells if cell.is_row):
        own = [cell for cell in cells if cell.is_row and cell.label == label]
        seeds = tuple(cell.recipe.seed for cell in own)
        done = tuple(trained[label, seed] for seed in seeds if (label, seed) in trained)
        rows.append(ResultRow(label, _group(own[0]), seeds, done))
    groups = {row.label: row.group for row in rows}
    for choice in definition.choices:
        rows = _with_choice(rows, choice, choices[choice.label], seeds=definition.seeds)
    for ensemble in definition.ensembles:
        members = [label for label, _ in ensemble.with_seed(0)]
        if all(label in groups for label in members):  # unless only some rows were asked for
            done = tuple(_judged_together(ensemble, trained, judge))
            group = " & ".join(groups[label] for label in members)
            rows.append(ResultRow(ensemble.label, group, ensemble.seeds, done))
    paper = definition.paper
    return [
        replace(row, paper=InPaper(paper.rsum[row.label], paper.of))
        if paper and row.label in paper.rsum
        else row
        for row in rows
    ]


def _with_choice(
    rows: Sequence[ResultRow],
    choice: Choice,
    means: Mapping[str, float],
    *,
    seeds: tuple[int, ...],
) -> list[ResultRow]:
    """The rows with the best of some before them, unless only some were asked for."""
    candidates = {row.label: row for row in rows if row.label in choice.of}
    if len(candidates) < len(choice.of):
        return list(rows)
    first, best = candidates[choice.of[0]], candidates.get(next(iter(means), ""))
    chosen = ResultRow(
        choice.label,
        first.group,
        seeds if best is None else best.seeds,
        () if best is None else best.trainings,
        note=choice.sentence(means),
    )
    marked = [replace(row, is_candidate=True) if row.label in candidates else row for row in rows]
    place = min(rows.index(row) for row in candidates.values())
    return [*marked[:place], chosen, *marked[place:]]


@dataclass(frozen=True)
class _Judge:
    """Finds the ranks of trainings: beside the results, or from runs that are there."""

    results: Path
    dataset: PairDataset
    data: Path | None

    def kept(self, *lines: Mapping[str, Any]) -> JudgedFold | None:
        return kept_ranks(self._file(lines), self.dataset)

    def keep(self, ranks: JudgedFold, *lines: Mapping[str, Any]) -> None:
        keep_ranks(self._file(lines), ranks)

    def judge(self, runs: Sequence[Path]) -> JudgedFold:
        return ranks_of(runs, self.dataset, data=self.data)

    def _file(self, lines: Sequence[Mapping[str, Any]]) -> Path:
        return ranks_beside(self.results, *lines, split=self.dataset.split)


def _judged_together(
    ensemble: EnsembleRow,
    trained: Mapping[tuple[str, int], Training],
    judge: _Judge | None,
) -> Iterator[Training]:
    """The ensemble with every seed with which it was judged before, or can be from its runs.

    Nothing tells its figures but its ranks, which count where those of its members do.
    """
    for seed in ensemble.seeds:
        members = [trained[key] for key in ensemble.with_seed(seed) if key in trained]
        ranked = [member for member in members if member.ranks is not None]
        if judge is None or len(ranked) < len(ensemble.members):
            continue
        all_there = all(member.runs for member in members)
        runs = tuple(run for member in members for run in member.runs) if all_there else ()
        lines = [member.line for member in members]
        if all_there:
            judge.keep(judge.judge(runs), *lines)
        ranks = judge.kept(*lines)
        if ranks is not None:
            yield Training(seed, ranks.metrics.figures(), runs, ranks)


def _group(cell: Cell) -> str:
    """Rows of the same model, in all its settings."""
    return repr(cell.recipe.model)


def _training(cell: Cell, line: Mapping[str, Any], *, split: str, judge: _Judge | None) -> Training:
    """Unrounded figures where ranks are there that are those of the line."""
    seed, figures, run = cell.recipe.seed, line[split], cell.last_round
    if judge is None:
        return Training(seed, figures, line=line)
    runs: tuple[Path, ...] = ()
    if RunDirectory(run).model.is_file():
        own = judge.judge([run])
        if _are_of(own, figures):
            judge.keep(own, line)
            runs = (run,)
        else:
            warn(
                f"{run} has rsum {own.metrics.rsum:.1f} on {split}, but {cell.name} is noted with "
                f"{figures['rsum']:.1f}: it is another run or other data, so it is left out."
            )
    ranks = judge.kept(line)
    if ranks is None or not _are_of(ranks, figures):
        return Training(seed, figures, runs, line=line)
    return Training(seed, ranks.metrics.figures(), runs, ranks, line)


def _are_of(ranks: JudgedFold, figures: Mapping[str, float]) -> bool:
    return abs(ranks.metrics.figures()["rsum"] - figures["rsum"]) <= _SAME_RSUM
