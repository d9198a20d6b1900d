"""The rows of a table: the figures of each with every seed, and the ranks behind them.

Figures and curves are in the results file, so a table needs nothing else. Intervals need the ranks,
which are in an archive beside the results; examples need the data set and the runs themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from aoq.config import BAGS
from aoq.data.dataset import PairDataset
from aoq.evaluation.bootstrap import Difference, Resampled
from aoq.evaluation.metrics import PAPER_FIGURES
from aoq.evaluation.protocols import JudgedFold
from aoq.evaluation.rank_archive import RankArchive
from aoq.evaluation.seeds import Spread, over_seeds
from aoq.experiments.definition import Choice, EnsembleRow
from aoq.experiments.plan import GridRun
from aoq.experiments.results import Line, Results, ranks_key
from aoq.progress import warn
from aoq.runs.directory import RunDirectory
from aoq.runs.judge import ranks_of

_RESAMPLES = 10_000  # with a tenth of them the ends of intervals still move by 0.4 of rsum
_SAME_RSUM = 0.5  # ranks of another machine may differ in a query or two


@dataclass(frozen=True, eq=False)
class Training:
    """A finished training of a row with one seed: figures in percent, and ranks if available."""

    seed: int
    figures: Mapping[str, float]
    runs: tuple[Path, ...] = ()
    "Folders of the trained rounds: one, several for an ensemble, none if they are missing."
    ranks: JudgedFold | None = None
    line: Line = field(default_factory=dict)
    "The line of the results file; empty for ensembles."
    dev_ranks: JudgedFold | None = None

    @cached_property
    def resampled(self) -> Resampled | None:
        return None if self.ranks is None else Resampled.of([self.ranks], resamples=_RESAMPLES)


def mean_resampled(trainings: Sequence[Training]) -> Resampled | None:
    """Average trainings in every resample; none unless all have ranks."""
    drawn = [part for training in trainings if (part := training.resampled) is not None]
    return Resampled.mean(drawn) if drawn and len(drawn) == len(trainings) else None


@dataclass(frozen=True)
class Gain:
    """The difference of a row from another in one figure, on the seeds that both have."""

    spread: Spread
    "Of the differences with each seed: what training again would change."
    interval: Difference | None
    "Of their mean, with these trainings: what other queries would change; none without ranks."


@dataclass(frozen=True, eq=False)
class ResultRow:
    """A row of the table: a setting and its finished trainings."""

    label: str
    group: str
    "Rows of one model; the others are compared with the first of the group."
    seeds: tuple[int, ...]
    "Planned seeds."
    trainings: tuple[Training, ...]
    note: str = ""
    "How the row was chosen, if it was."
    is_candidate: bool = False
    "Whether a choice is made from this row and others: such rows are in files, not in tables."
    simple: str = ""
    "cca or bow where the row is one, which other rows have to be above."

    @cached_property
    def spreads(self) -> dict[str, Spread]:
        """Mean and deviation of every figure over the seeds; empty without trainings."""
        return over_seeds([t.figures for t in self.trainings]) if self.trainings else {}

    @cached_property
    def resampled(self) -> Resampled | None:
        """The mean over the seeds in every resample; none unless all have ranks."""
        return mean_resampled(self.trainings)

    def training(self, seed: int) -> Training | None:
        return next((t for t in self.trainings if t.seed == seed), None)

    def differences(self, first: ResultRow) -> dict[int, dict[str, float]]:
        """Subtract another row, by seed that both have; empty for the row itself."""
        return {
            two.seed: {name: two.figures[name] - one.figures[name] for name in PAPER_FIGURES}
            for two in self.trainings
            if self is not first and (one := first.training(two.seed)) is not None
        }

    def minus(self, first: ResultRow) -> dict[str, Gain]:
        """Subtract another row, by figure; empty if they share no seed."""
        by_seed = self.differences(first)
        if not by_seed:
            return {}
        spreads = over_seeds(list(by_seed.values()))
        one, two = (
            mean_resampled([t for t in row.trainings if t.seed in by_seed]) for row in (first, self)
        )
        intervals = two.minus(one) if one and two else {}
        return {name: Gain(spreads[name], intervals.get(name)) for name in PAPER_FIGURES}


def groups_of(rows: Sequence[ResultRow]) -> list[list[ResultRow]]:
    """Collect the rows of each group, in order."""
    names = dict.fromkeys(row.group for row in rows)
    return [[row for row in rows if row.group == name] for name in names]


@dataclass(frozen=True)
class RankReader:
    """Reads ranks from the archive beside the results, and adds those of runs that are there."""

    results: Path
    split: str
    dataset: PairDataset | None = None
    "That split; without it, runs are not opened."
    data: Path | None = None

    @property
    def archive(self) -> RankArchive:
        return RankArchive.beside(self.results)

    def read(self, *lines: Line, split: str = "") -> JudgedFold | None:
        return self.archive.read(*ranks_key(*lines, split=split or self.split))

    def judge(self, runs: Sequence[Path]) -> JudgedFold | None:
        """Judge a run, or an ensemble; none if the data set or one of them is missing."""
        there = bool(runs) and all(RunDirectory(run).model.is_file() for run in runs)
        if self.dataset is None or not there:
            return None
        return ranks_of(runs, self.dataset, data=self.data)

    def keep(self, ranks: JudgedFold, *lines: Line) -> None:
        self.archive.keep(*ranks_key(*lines, split=self.split), ranks)


def read_rows(
    runs: Sequence[GridRun],
    results: Results,
    *,
    choices: Mapping[str, Mapping[str, float]],
    reader: RankReader,
) -> list[ResultRow]:
    """Make the rows of an experiment from what is done: trained, chosen and ensembles.

    The results are comparable on the split of the `reader`; `choices` are the means of candidates.
    """
    definition, lines = results.definition, results.lines
    own = {run.key: run for run in runs if run.is_row}
    trained = {key: _training(run, lines[key], reader) for key, run in own.items() if key in lines}
    models = {run.label: run.recipe.model for run in own.values()}
    groups = {run.label: run.group for run in own.values()}
    rows = []
    for label, model in models.items():
        planned = tuple(seed for name, seed in own if name == label)
        done = tuple(trained[label, seed] for seed in planned if (label, seed) in trained)
        simple = model.name if model.name in BAGS else ""
        rows.append(ResultRow(label, groups[label], planned, done, simple=simple))
    for choice in definition.choices:
        rows = _with_choice(rows, choice, choices[choice.label], seeds=definition.seeds)
    for ensemble in definition.ensembles:
        members = [label for label, _ in ensemble.with_seed(0)]
        if all(label in groups for label in members):  # unless only some rows were asked for
            done = tuple(_judge_ensemble(ensemble, trained, reader))
            group = " & ".join(groups[label] for label in members)
            rows.append(ResultRow(ensemble.label, group, ensemble.seeds, done))
    return rows


def _with_choice(
    rows: list[ResultRow], choice: Choice, means: Mapping[str, float], *, seeds: tuple[int, ...]
) -> list[ResultRow]:
    """Insert the chosen row before its candidates, unless only some of those are there."""
    candidates = {row.label: row for row in rows if row.label in choice.of}
    if len(candidates) < len(choice.of):
        return rows
    first, best = candidates[choice.of[0]], candidates.get(next(iter(means), ""))
    chosen = replace(
        best or replace(first, seeds=seeds, trainings=()),
        label=choice.label,
        group=first.group,
        note=choice.sentence(means),
        simple=first.simple,
    )
    marked = [replace(row, is_candidate=True) if row.label in candidates else row for row in rows]
    place = min(rows.index(row) for row in candidates.values())
    return [*marked[:place], chosen, *marked[place:]]


def _judge_ensemble(
    ensemble: EnsembleRow, trained: Mapping[tuple[str, int], Training], reader: RankReader
) -> Iterator[Training]:
    """Judge an ensemble with every seed whose members have ranks: from runs, or kept ranks."""
    for seed in ensemble.seeds:
        members = [trained[key] for key in ensemble.with_seed(seed) if key in trained]
        ranked = [member for member in members if member.ranks is not None]
        if len(ranked) < len(ensemble.members):
            continue
        all_there = all(member.runs for member in members)
        runs = tuple(run for member in members for run in member.runs) if all_there else ()
        lines = [member.line for member in members]
        ranks = reader.judge(runs)
        if ranks is not None:
            reader.keep(ranks, *lines)
        if (ranks := reader.read(*lines)) is not None:
            yield Training(seed, ranks.metrics.figures(), runs, ranks)


def _training(run: GridRun, line: Line, reader: RankReader) -> Training:
    """Take unrounded figures from ranks that agree with the line, else the line's."""
    seed, figures, folder = run.recipe.seed, line[reader.split], run.last_round
    runs: tuple[Path, ...] = ()
    own = reader.judge([folder])
    if own is not None and _agree(own, figures):
        reader.keep(own, line)
        runs = (folder,)
    elif own is not None:
        warn(
            f"{folder} has rsum {own.metrics.rsum:.1f} on {reader.split}, but the result of "
            f"{run.name} is {figures['rsum']:.1f}: it holds another run or other data, so it is "
            "not used."
        )
    ranks = reader.read(line)
    if ranks is None or not _agree(ranks, figures):
        return Training(seed, figures, runs, line=line)
    dev = reader.read(line, split="dev")
    dev = dev if dev is not None and _agree(dev, line["dev"]) else None
    return Training(seed, ranks.metrics.figures(), runs, ranks, line, dev)


def _agree(ranks: JudgedFold, figures: Mapping[str, float]) -> bool:
    return abs(ranks.metrics.figures()["rsum"] - figures["rsum"]) <= _SAME_RSUM
