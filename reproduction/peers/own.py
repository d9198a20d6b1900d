"""Trains a row with aoq: one round, or mining with a teacher row and round two."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from aoq.evaluation.protocols import evaluate
from aoq.runs.checkpoint import hash_model, load_run
from aoq.runs.encodings import ScoredSplit
from aoq.runs.mine import mine_split
from aoq.training.two_rounds import train_round
from reproduction.peers.rows import Row
from reproduction.peers.start import Judge, Start
from reproduction.peers.stopwatch import Stopwatch

RUN = "run"


def train(row: Row, start: Start, folder: Path, *, teacher: Path | None, clock: Stopwatch) -> Judge:
    """Train into `folder`; return what judges the best model on dev."""
    run, lists = folder / RUN, folder / "candidates.safetensors"
    if teacher is not None:
        with clock("mining"):
            _mine(start, teacher / RUN, lists)
    with clock("training"):
        train_round(
            run,
            start.recipe,
            start.data,
            which="one" if teacher is None else "two",
            candidates=None if teacher is None else lists,
            label=row.label,
        )
    return partial(evaluate, load_run(run, device="cpu").model)


def _mine(start: Start, run: Path, lists: Path) -> None:
    model = load_run(run, device="cpu").model
    encoded = ScoredSplit.encode(run, model, start.data.train, model_hash=hash_model(run))
    mine_split(encoded, lists, config=start.recipe.mining)
