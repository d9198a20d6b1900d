"""The rows of all experiments as they are recorded, without the data and the runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from aoq.experiments.comparisons import Comparisons
from aoq.experiments.definition import load_definition
from aoq.experiments.report import recorded_rows
from aoq.experiments.results import Experiment
from aoq.experiments.rows import ResultRow
from reproduction import EXPERIMENTS, definition_file
from reproduction.claims import load_paper_table
from reproduction.verdicts import Verdict, judge_claims


@cache
def all_rows(results: Path) -> Mapping[str, Sequence[ResultRow]]:
    """Read the rows of every experiment from a file of results and the ranks beside it."""
    return {
        name: recorded_rows(
            Experiment(definition=load_definition(definition_file(name)), out=Path(), file=results)
        )
        for name in EXPERIMENTS
    }


@cache
def all_comparisons(results: Path) -> Comparisons:
    """Compare rows with the deviation of all trainings in a file of results."""
    return Comparisons([row for rows in all_rows(results).values() for row in rows])


def verdicts_of(name: str, results: Path) -> list[Verdict]:
    """Judge the claims of an experiment by what is recorded."""
    paper = load_paper_table(name, load_definition(definition_file(name)))
    rows = all_rows(results)[name]
    return judge_claims(paper.claims, rows, paper.rsum, comparisons=all_comparisons(results))
