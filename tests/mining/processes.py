"""Mining in several processes, and runs to mine with."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np

from aoq.config import ModelConfig
from aoq.distributed import Processes
from aoq.training.inputs import open_training_data
from aoq.training.two_rounds import train_round
from tests.conftest import write_precomp
from tests.training.cases import ROUND, small_recipe


class Meeting:
    """Where threads that stand for processes wait for each other."""

    def __init__(self, size):
        self.barrier = threading.Barrier(size, timeout=60)
        self.arrays = [None] * size


class ThreadAsProcess(Processes):
    """One of several threads that stand for processes."""

    def __init__(self, rank, meeting):
        super().__init__(rank, meeting.barrier.parties)
        object.__setattr__(self, "meeting", meeting)

    def barrier(self):
        self.meeting.barrier.wait()

    def gather(self, array):
        self.meeting.arrays[self.rank] = np.array(array)
        self.barrier()
        gathered = list(self.meeting.arrays) if self.is_first else []
        assert len({part.shape for part in gathered}) <= 1
        self.barrier()
        return gathered


def run_in_threads(size, work):
    """What `work(processes)` returns in each of so many threads."""
    meeting = Meeting(size)

    def run(rank):
        try:
            return work(ThreadAsProcess(rank, meeting))
        except BaseException:
            meeting.barrier.abort()
            raise

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(run, range(size)))


def trained_run(folder, *, images=12):
    """A tiny trained round with its data set."""
    recipe = small_recipe(
        write_precomp(folder / "data", images=images),
        model=ModelConfig(name="vse", joint_width=8, word_width=5),
        round_one=replace(ROUND, epochs=1),
    )
    train_round(folder / "run", recipe, open_training_data(recipe), which="one")
    return folder / "run"
