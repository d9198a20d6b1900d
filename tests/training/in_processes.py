"""Steps of several models and whole recipes, by those processes that torchrun starts.

torchrun --nproc-per-node 2 -m tests.training.in_processes folder
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from aoq.distributed import join_processes
from aoq.recipes import load_recipe
from aoq.training.callbacks import Callback
from aoq.training.two_rounds import run_recipe
from tests.training.steps_in_processes import CASES, train


class Told(Callback):
    """Writes the steps that it is told of to a file of this process."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_step(self, step):
        with self.path.open("a") as file:
            file.write(f"{step.step}\n")


def main() -> None:
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    with join_processes() as processes:
        steps = {case: train(case, **options) for case, options in CASES.items()}
        (folder / f"steps.{processes.rank}.json").write_text(json.dumps(steps))
        for path in sorted(folder.glob("*.toml")):
            out = path.with_suffix("")
            told = Told(path.with_suffix(f".{processes.rank}"))
            run_recipe(out, load_recipe(path), processes=processes, callbacks=[told])


if __name__ == "__main__":
    main()
