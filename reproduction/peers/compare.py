"""Runs the rows one after the other, those of the two libraries in turn, and records each result.

A recorded result is not computed again unless the row's settings or the data have changed. A
training that was stopped begins again, because its time has to be that of all of it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from aoq.experiments.results import machine
from aoq.progress import say
from aoq.storage import append_json_line, atomic_folder, read_json_lines, remove_folder
from aoq.training.inputs import TrainingData, open_training_data
from reproduction.peers import own, peer
from reproduction.peers.rows import Row, SetupName, find_row
from reproduction.peers.start import Start
from reproduction.peers.stopwatch import Stopwatch

_TRAIN = {"aoq": own.train, "sentence-transformers": peer.train}


@dataclass
class Comparison:
    """Where the data and the towers are, and where trainings and their results go."""

    data: Path
    image: str
    text: str
    out: Path
    results: Path
    _opened: dict[SetupName, TrainingData] = field(default_factory=dict)

    def run(self, rows: Iterable[Row], seeds: Sequence[int]) -> None:
        """Train every row with every seed; rows that only chose settings have the first seed."""
        torch.set_num_threads(1)
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        rows = list(rows)
        for seed in seeds:
            for row in rows:
                if row.judged or seed == seeds[0]:
                    self._train(row, seed)

    def _train(self, row: Row, seed: int) -> Path:
        """Train a row, unless that is done; return the folder of its model."""
        start = self._start(row, seed)
        folder = self.out / f"{row.setup}-{row.name}-{seed}"
        if folder.is_dir():
            if self._is_recorded(row, start):
                return folder
            remove_folder(folder)
        teacher = self._train(find_row(row.setup, row.teacher), seed) if row.teacher else None
        say(f"{row.setup}, {row.label}, seed {seed}")
        clock = Stopwatch()
        with atomic_folder(folder, what="training") as begun:
            judge = _TRAIN[row.library](row, start, begun, teacher=teacher, clock=clock)
        dev, test = (judge(split).as_dict() for split in (start.data.dev, start.test))
        line = _about(row, start) | {
            "dev": dev,
            **({"test": test} if row.judged else {}),
            "stages": clock.as_dict(),
            "machine": machine() | {"sentence-transformers": version("sentence-transformers")},
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        append_json_line(self.results, line, with_check=True)
        say(f"{row.label}: dev rsum {dev['rsum']:.1f}, {clock}")
        return folder

    def _is_recorded(self, row: Row, start: Start) -> bool:
        about = _about(row, start)
        return any(about.items() <= line.items() for line in read_json_lines(self.results))

    def _start(self, row: Row, seed: int) -> Start:
        recipe = row.recipe(data=str(self.data), image=self.image, text=self.text, seed=seed)
        if row.setup not in self._opened:
            data = open_training_data(recipe)
            for split in (data.train, data.dev, data.test):
                assert split is not None
                split.texts(np.zeros(1, np.int64))  # what is frozen is computed before any clock
            self._opened[row.setup] = data
        data = self._opened[row.setup]
        return Start(data.settle(recipe.resolved()), data)


def _about(row: Row, start: Start) -> dict[str, Any]:
    """Return what a result is about, by which it is found again."""
    return {
        "setup": row.setup,
        "row": row.label,
        "seed": start.recipe.seed,
        "settings": row.settings(),
        "data": start.data.train.dataset.contents,
    }
