"""`aoq evaluate`: how good a trained model is, and how reliable the figures are."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number

from aoq.cli.base import (
    Count,
    Flag,
    Json,
    ModelFunction,
    Seed,
    Which,
    app,
    command,
    next_steps,
    own_model,
    print_json,
    print_metrics,
    trained_round,
    trained_rounds,
)
from aoq.errors import UserError

if TYPE_CHECKING:
    from rich.table import Table

    from aoq.data.dataset import PairDataset
    from aoq.evaluation.protocols import JudgedFold
    from aoq.runs.checkpoint import MakeModel
    from aoq.runs.gate import Gate

_ENSEMBLE = "ensemble"
_HEADINGS = {
    "r1": "R@1",
    "r5": "R@5",
    "r10": "R@10",
    "median_rank": "median rank",
    "mean_rank": "mean rank",
    "map_at_r": "mAP@R",
    "rprecision": "R-Precision",
}


@app.command
def evaluate(
    *runs: Path,
    split: str = "test",
    data: Path | None = None,
    memory: str | None = None,
    folds: Count = 1,
    bootstrap: Annotated[int | None, Parameter(validator=Number(gte=1))] = None,
    paired: Flag = False,
    cross: Flag = False,
    extended: Flag = False,
    gate: Path | None = None,
    seed: Seed = 0,
    round: Which = None,  # noqa: A002
    model: ModelFunction = None,
    as_json: Json = False,
) -> None:
    """Report recalls, ranks and rsum of a trained model.

    Parameters
    ----------
    runs
        Folder of a run, whose best round is evaluated, or of a round. Several are evaluated one by
        one, and then as an ensemble (mean score).
    split
        Split to evaluate on.
    data
        Data set; default: the one the model was trained on.
    memory
        Budget for encodings and blocks of scores, such as 2GiB.
    folds
        Consecutive parts of the images, evaluated one by one and averaged: 5 for COCO 1K.
    bootstrap
        Resamples of the queries, such as 1000, for the 95 % interval of every figure.
    paired
        Compare the second run with the first, query by query, instead of averaging their scores.
    cross
        Report how well positive pairs are found in both directions at once (cross-retrieval rank).
    extended
        Report CxC and ECCV Caption on COCO's test set; needs the package eccv-caption.
    gate
        Run that others have to be above, such as one of CCA; default: the best runs of cca and bow
        beside the evaluated ones, if they were judged on the same split.
    seed
        Seed of the resamples.
    round
        Round to use of a run with two: one or two; default: the better one on dev.
    as_json
        Print JSON for programs.
    """
    rounds = dict(zip(map(str, runs), trained_rounds(runs, round), strict=True))
    if _ENSEMBLE in rounds and len(rounds) > 1:
        raise UserError(f"a run named {_ENSEMBLE} hides the row of all; name it ./{_ENSEMBLE}/.")
    if paired and len(rounds) != 2:
        raise UserError(f"--paired compares two runs; {len(rounds)} given; give two.")
    make_model = own_model(model, tuple(rounds.values()))
    if folds > 1 or bootstrap or paired or cross or extended:
        wanted = _Wanted(folds, bootstrap, paired, cross, extended, seed)
        rows = _examine(
            rounds, wanted, split=split, data=data, memory=memory, make_model=make_model
        )
    else:
        from aoq.runs.judge import evaluate_runs

        results = evaluate_runs(
            tuple(rounds.values()), split=split, data=data, memory=memory, make_model=make_model
        )
        names = (*rounds, _ENSEMBLE)
        rows = {name: metrics.as_dict() for name, (_, metrics) in zip(names, results, strict=False)}
    from aoq.data.splits import open_dataset
    from aoq.runs.encodings import own_data

    dataset = open_dataset(data or own_data(next(iter(rounds.values()))), split)
    gates = [] if folds > 1 else _find_gates(gate, tuple(rounds.values()), dataset, data=data)
    if as_json:
        for row in rows.values():
            above = {each.model: each.as_dict(row["rsum"]) for each in gates}
            row |= {"above": above} if above else {}
        print_json(rows if len(rows) > 1 else rows[next(iter(rows))])
    else:
        from aoq.progress import count_of, say

        size = f"{count_of(len(dataset), 'image')}, {count_of(dataset.n_texts, 'text')}"
        means = f", mean of {folds} folds" if folds > 1 else ""
        print_metrics(rows, title=f"split {split} ({size}){means}")
        _print_more(rows)
        for name, row in rows.items():
            for each in gates:
                say(each.sentence(name, row["rsum"]))
        intervals = () if bootstrap else (command("evaluate", *runs, "--bootstrap", 1000),)
        next_steps(*intervals, command("index", runs[0]))


def _find_gates(
    gate: Path | None, rounds: Sequence[Path], dataset: PairDataset, *, data: Path | None
) -> list[Gate]:
    """Return the simple models to be above: the named one, which is judged if need be."""
    from aoq.runs.encodings import own_data
    from aoq.runs.gate import gate_of, gates_beside
    from aoq.runs.judge import evaluate_run, result_on

    if gate is None:
        beside = gates_beside(rounds, dataset)
        judged = [path.resolve() for path in rounds]
        return [found for found in beside if found.run.resolve() not in judged]
    path = trained_round(gate)
    if result_on(path, dataset) is None:
        evaluate_run(path, split=dataset.split, data=data or own_data(rounds[0]))
    return [gate_of(path, dataset)]


@dataclass(frozen=True)
class _Wanted:
    """The figures that are requested besides those of the whole split."""

    folds: int
    bootstrap: int | None
    paired: bool
    cross: bool
    extended: bool
    seed: int


def _examine(
    rounds: Mapping[str, Path],
    wanted: _Wanted,
    *,
    split: str,
    data: Path | None,
    memory: str | None,
    make_model: MakeModel | None,
) -> dict[str, dict[str, Any]]:
    """Compute one row per run and, unless runs are compared, one for their ensemble."""
    from aoq.evaluation.extended import ExtendedJudge, open_package
    from aoq.runs.encodings import ScoredSplit, open_splits
    from aoq.runs.judge import note_result

    if wanted.extended:
        open_package()  # before anything is encoded
    opened = open_splits(tuple(rounds.values()), split=split, data=data, make_model=make_model)
    judge = ExtendedJudge.of(opened[0].dataset) if wanted.extended else None
    parts = dict(zip(rounds, opened, strict=True))
    if len(parts) > 1 and not wanted.paired:
        parts[_ENSEMBLE] = ScoredSplit.ensemble(opened)
    judged: dict[str, list[JudgedFold]] = {}
    rows: dict[str, dict[str, Any]] = {}
    for name, part in parts.items():
        started = time.monotonic()
        judged[name] = part.judge(memory=memory, folds=wanted.folds)
        rows[name] = _row(judged[name], wanted)
        if wanted.folds == 1:
            kept = {"intervals": rows[name]["intervals"]} if wanted.bootstrap else {}
            note_result(part, judged[name][0], seconds=time.monotonic() - started, **kept)
        if judge is not None:
            figures = judge.judge(part.scorer, part.encoded, memory=memory)
            rows[name]["extended"] = _rounded(figures)
    if wanted.paired:
        one, two = rounds
        rows[two]["paired"] = {"minus": one, **_differences(judged[one], judged[two], wanted)}
    return rows


def _row(folds: list[JudgedFold], wanted: _Wanted) -> dict[str, Any]:
    """Compute everything that follows from the ranks of one model."""
    from aoq.evaluation.bootstrap import bootstrap
    from aoq.evaluation.cross_retrieval import CrossRetrieval
    from aoq.evaluation.protocols import average

    row: dict[str, Any] = {**average(folds).as_dict(), "folds": wanted.folds}
    if wanted.bootstrap:
        intervals = bootstrap(folds, resamples=wanted.bootstrap, seed=wanted.seed)
        row["intervals"] = {
            name: [round(part.low, 3), round(part.high, 3)] for name, part in intervals.items()
        }
    if wanted.cross:
        ranks = CrossRetrieval.of(folds)
        row["cross_retrieval"] = {
            "pairs": len(ranks.ranks),
            "median": round(ranks.median, 3),
            "histogram": {part.name: part.count for part in ranks.histogram()},
        }
    return row


def _differences(
    one: list[JudgedFold], two: list[JudgedFold], wanted: _Wanted
) -> dict[str, dict[str, float]]:
    from aoq.evaluation.bootstrap import RESAMPLES, paired_bootstrap

    resamples = wanted.bootstrap or RESAMPLES
    differences = paired_bootstrap(one, two, resamples=resamples, seed=wanted.seed)
    return {name: _rounded(asdict(difference)) for name, difference in differences.items()}


def _rounded(figures: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 3) for name, value in figures.items()}


# Tables


def _print_more(rows: Mapping[str, Mapping[str, Any]]) -> None:
    """Print one table for each further kind of figures."""
    from rich.console import Console

    console = Console()
    intervals = {
        name: {key: f"[{low:.1f}, {high:.1f}]" for key, (low, high) in found.items()}
        for name, row in rows.items()
        if (found := row.get("intervals"))
    }
    cross = {
        name: {key: f"{100 * count / found['pairs']:.1f}" for key, count in bins.items()}
        for name, row in rows.items()
        if (found := row.get("cross_retrieval")) and (bins := found["histogram"])
    }
    extended = {
        name: {key: f"{value:.1f}" for key, value in found.items()}
        for name, row in rows.items()
        if (found := row.get("extended"))
    }
    for title, columns in (
        ("95 % intervals over queries (bootstrap)", intervals),
        ("cross-retrieval rank, % of the positive pairs", cross),
        ("more right answers (CxC, ECCV Caption), %", extended),
    ):
        if columns:
            console.print(_table(title, columns))
    for name, row in rows.items():
        if "paired" in row:
            console.print(_paired_table(name, row["paired"]))


def _table(title: str, columns: Mapping[str, Mapping[str, str]]) -> Table:
    """Build a table with one column per run and one row per figure."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("", no_wrap=True)
    for name in columns:
        table.add_column(Text(name), justify="right")
    for key in next(iter(columns.values())):
        table.add_row(_heading(key), *(column[key] for column in columns.values()))
    return table


def _paired_table(name: str, found: Mapping[str, Any]) -> Table:
    columns: dict[str, dict[str, str]] = {"difference": {}, "95 % interval": {}, "below zero": {}}
    for key, difference in found.items():
        if key != "minus":
            columns["difference"][key] = f"{difference['value']:+z.1f}"
            columns["95 % interval"][key] = "[{low:+z.1f}, {high:+z.1f}]".format(**difference)
            columns["below zero"][key] = f"{100 * difference['below_zero']:.1f} %"
    return _table(f"{name} minus {found['minus']}, the same queries (paired bootstrap)", columns)


def _heading(key: str) -> str:
    """Format `i2t_r1` and the like for people.

    >>> _heading("i2t_median_rank"), _heading("t2i_eccv_map_at_r"), _heading("rsum")
    ('i2t median rank', 't2i eccv mAP@R', 'rsum')
    """
    for ending, written in _HEADINGS.items():
        if key.endswith(f"_{ending}"):
            return key.removesuffix(ending).replace("_", " ") + written
    return key
