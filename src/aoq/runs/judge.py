"""Judging the model of a run: results and ranks are noted in the run, and found again there."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from aoq.config import RoundName
from aoq.data.collate import Collator
from aoq.data.dataset import PairDataset
from aoq.data.splits import open_dataset
from aoq.evaluation.metrics import FIGURES, Metrics
from aoq.evaluation.protocols import JudgedFold
from aoq.evaluation.rank_cache import keep_ranks, kept_ranks, ranks_file
from aoq.progress import EventLog
from aoq.runs.checkpoint import MakeModel, hash_model, hash_models
from aoq.runs.directory import RunDirectory, unless_read_only
from aoq.runs.encodings import ScoredSplit, open_splits, own_data
from aoq.scoring.protocol import TrainableModel
from aoq.storage import append_json_line, read_json_lines


def evaluate_run(
    run: Path | str,
    *,
    split: str = "test",
    data: Path | str | None = None,
    memory: str | None = None,
    round: RoundName | None = None,  # noqa: A002
    make_model: MakeModel | None = None,
) -> Metrics:
    """Judge the best round of a run on one split, and note the result in the run.

    `data` defaults to the data set that the run was trained on, `round` to the better one on dev.
    `make_model` builds a model of your own, as in training.
    """
    ((_, metrics),) = evaluate_runs(
        [run], split=split, data=data, memory=memory, round=round, make_model=make_model
    )
    return metrics


def evaluate_runs(
    runs: Path | str | Sequence[Path | str],
    *,
    split: str = "test",
    data: Path | str | None = None,
    memory: str | None = None,
    round: RoundName | None = None,  # noqa: A002
    make_model: MakeModel | None = None,
) -> list[tuple[str, Metrics]]:
    """Judge each run as `evaluate_run` does, and last, of several, their ensemble."""
    runs = [runs] if isinstance(runs, Path | str) else runs
    opened = open_splits(runs, split=split, data=data, round=round, make_model=make_model)
    results = [(str(scored.runs[0]), judge_split(scored, memory=memory)) for scored in opened]
    if len(opened) > 1:
        results.append(("ensemble", judge_split(ScoredSplit.ensemble(opened), memory=memory)))
    return results


def judge_split(scored: ScoredSplit, *, memory: str | None = None) -> Metrics:
    """Rank everything, and note the result and the ranks in the (first) run."""
    started = time.monotonic()
    (fold,) = scored.judge(memory=memory)
    return note_result(scored, fold, seconds=time.monotonic() - started)


def note_result(scored: ScoredSplit, fold: JudgedFold, *, seconds: float, **more: Any) -> Metrics:
    """Note a result of the whole split and its ranks in the (first) run; `more` joins the line."""
    metrics, model, dataset = fold.metrics, scored.model_hash, scored.dataset
    run = RunDirectory(scored.runs[0])
    line = {
        "split": dataset.split,
        "model": model,
        "data": dataset.fingerprint,
        **metrics.as_dict(),
        **more,
    }
    with unless_read_only(run.path, "the result"):
        keep_ranks(ranks_file(run.path, model=model, dataset=dataset), fold)
        append_json_line(run.results, line)
        EventLog(run.events).write(
            "evaluated",
            split=dataset.split,
            seconds=round(seconds, 2),
            threads=torch.get_num_threads(),
        )
    return metrics


def ranks_of(runs: Sequence[Path], dataset: PairDataset, *, data: Path | None) -> JudgedFold:
    """Return the ranks of a model, or of an ensemble; judge it if they are not kept yet."""
    file = ranks_file(runs[0], model=hash_models(runs), dataset=dataset)
    kept = kept_ranks(file, dataset)
    if kept is None:
        scored = ScoredSplit.ensemble(open_splits(runs, split=dataset.split, data=data))
        (kept,) = scored.judge()
        with unless_read_only(runs[0], "what was judged"):
            keep_ranks(file, kept)
    return kept


def stored_result(run: Path | str, *, split: str) -> dict[str, Any] | None:
    """Find the last noted result of a run's current model on its own data set."""
    return result_on(Path(run), open_dataset(own_data(Path(run)), split))


def result_on(
    run: Path, dataset: PairDataset, *, model_hash: str | None = None
) -> dict[str, Any] | None:
    """Find the last noted result of a run's model on a split; `model_hash` defaults to its own."""
    about = {
        "split": dataset.split,
        "model": model_hash or hash_model(run),
        "data": dataset.fingerprint,
    }
    fitting = [
        line
        for line in read_json_lines(RunDirectory(run).results)
        if about.items() <= line.items() and all(name in line for name in FIGURES)
    ]
    return fitting[-1] if fitting else None


def judge_once(run: Path, split: Collator, load: Callable[[], TrainableModel]) -> dict[str, Any]:
    """Return the noted result of a finished run; judge the model that `load` gives if need be."""
    model_hash = hash_model(run)
    if result_on(run, split.dataset, model_hash=model_hash) is None:
        judge_split(ScoredSplit.encode(run, load(), split, model_hash=model_hash))
    result = result_on(run, split.dataset, model_hash=model_hash)
    assert result is not None
    return result
