"""Models for small sets on Flickr8k: the tables of docs/training.md.

Three of the experiments that ship with aoq: the models side by side, what each setting of their
recipes adds, and three ways to harder negatives. They share one file of results.

    aoq experiment small-sets --data FOLDER --results results/small-sets.jsonl
    python -m reproduction small-sets --data FOLDER
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean

from aoq.experiments.csv_files import rows_csv, trainings_csv
from aoq.experiments.definition import load_definition
from aoq.experiments.report import read_experiment
from aoq.experiments.results import Experiment
from aoq.experiments.tables import TextTable
from aoq.storage import write_text
from reproduction import ROOT

SMALL_SETS = ("small-sets", "ingredients", "hard-negatives")
SMALL_SET_RESULTS = ROOT / "results" / "small-sets.jsonl"
Cells = Mapping[str, str]


def write_small_sets(data: Path) -> None:
    """Write the figures of all rows, with intervals over the queries of a data set."""
    for name in SMALL_SETS:
        experiment = Experiment(
            definition=load_definition(name), out=Path(), data=data, file=SMALL_SET_RESULTS
        )
        report = read_experiment(experiment, command=f"aoq experiment {name}")
        write_text(_file(name, "rows"), rows_csv(report.rows))
        write_text(_file(name, "trainings"), trainings_csv(report.rows))


def small_set_tables() -> dict[str, str]:
    """Return the tables by the names of their files."""
    return {name: small_set_table(name).markdown() for name in SMALL_SETS}


def small_set_table(name: str) -> TextTable:
    """Show the finished rows of an experiment: dev, test, and what each has more than the first.

    Rows of several models are not compared with each other.
    """
    trainings, table = _read(name, "trainings"), []
    rows = [row for row in _read(name, "rows") if row["rsum"]]
    is_compared = any(row["rsum_more"] for row in rows)
    for row in rows:
        own = [training for training in trainings if training["row"] == row["row"]]
        cells = [f"`{own[0]['recipe'].partition('+')[0]}`"] if not is_compared else []
        cells += [str(len(own)), _mean(own, "dev_rsum"), *_figures(row)]
        if is_compared:
            cells.append(_gain(row))
        table.append((row["row"], *cells, f"{mean(_values(own, 'seconds')) / 60:.1f}"))
    recipe = [] if is_compared else ["recipe"]
    gain = ["more on test"] if is_compared else []
    headings = ("", *recipe, "seeds", "dev rsum", "test rsum", "i2t R@1", "t2i R@1", *gain)
    return TextTable((*headings, "minutes"), table)


def _figures(row: Cells) -> list[str]:
    return [f"{float(row[name]):.1f}" for name in ("rsum", "i2t_r1", "t2i_r1")]


def _gain(row: Cells) -> str:
    """Show the gain in rsum over the first row, and its interval over queries."""
    if not row["rsum_more"]:
        return ""
    more, low, high = (float(row[f"rsum_more{end}"]) for end in ("", "_low", "_high"))
    return f"{more:+.1f} [{low:.1f}, {high:.1f}]"


def _values(lines: Sequence[Cells], name: str) -> list[float]:
    return [float(line[name]) for line in lines]


def _mean(lines: Sequence[Cells], name: str) -> str:
    return f"{mean(_values(lines, name)):.1f}"


def _file(name: str, what: str) -> Path:
    return ROOT / "results" / name / f"{what}.csv"


def _read(name: str, what: str) -> list[Cells]:
    file = _file(name, what)
    if not file.is_file():  # nothing is finished yet
        return []
    with file.open(encoding="utf-8") as lines:
        return list(csv.DictReader(lines))
