"""Rounds side by side: as many at a time as there are cores for.

The models of a demo are so small that a second core makes one round hardly faster; two rounds on
two cores take half the time. Each lane is a process of its own, quiet but for its epochs; one
progress bar counts the epochs of all. Lanes end with the process that started them.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

from aoq.config import Recipe
from aoq.progress import be_quiet, progress_bar
from aoq.storage import RunDirectory, read_json_lines
from aoq.training.checkpoint import load_run
from aoq.training.inputs import open_training_data
from aoq.training.trained import judge_once
from aoq.training.two_rounds import train_round

_LOOK_EVERY_SECONDS = 0.5


@dataclass(frozen=True)
class RoundTwo:
    """One setting of round two: where it goes and what it draws from."""

    folder: Path
    recipe: Recipe
    candidates: Path
    label: str


def train_and_judge(job: RoundTwo) -> None:
    """Train a setting, or what is left of it, and judge it on the test split."""
    data = open_training_data(job.recipe, checked=True)
    train_round(
        job.folder, job.recipe, data, which="two", candidates=job.candidates, label=job.label
    )
    if data.test is not None:
        judge_once(job.folder, data.test, lambda: load_run(job.folder).model)


def run_side_by_side(jobs: Sequence[RoundTwo]) -> None:
    """All jobs, several at a time; on a GPU, which one round fills, one after the other."""
    cores = torch.get_num_threads()
    lanes = 1 if torch.cuda.is_available() else min(cores, len(jobs))
    if lanes == 1:
        for job in jobs:
            train_and_judge(job)
        return
    total = sum(job.recipe.round_two.epochs for job in jobs)
    with (
        ProcessPoolExecutor(
            max_workers=lanes,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_start_lane,
            initargs=(cores // lanes,),
        ) as pool,
        progress_bar("round two, all settings", total=total, unit="epochs") as update,
    ):
        running = [pool.submit(train_and_judge, job) for job in jobs]
        done = 0
        while not all(future.done() for future in running):
            time.sleep(_LOOK_EVERY_SECONDS)
            seen = sum(_epochs_done(job.folder) for job in jobs)
            update(advance=seen - done)
            done = seen
        for future in running:
            future.result()


def _start_lane(threads: int) -> None:
    torch.set_num_threads(threads)
    be_quiet()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # ends the lane at once instead of one job of it
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _epochs_done(folder: Path) -> int:
    events = read_json_lines(RunDirectory(folder).events)
    return len({line["epoch"] for line in events if line["event"] == "validation"})
