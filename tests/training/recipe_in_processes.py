"""A round with all that optimisation has, by those processes that torchrun starts.

torchrun --nproc-per-node 2 -m tests.training.recipe_in_processes recipe.toml out
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from aoq.distributed import join_processes
from aoq.recipes import load_recipe
from aoq.training.callbacks import Callback
from aoq.training.two_rounds import run_recipe


class Told(Callback):
    """Writes the steps that it is told of to a file of this process."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_step(self, step):
        with self.path.open("a") as file:
            file.write(f"{step.step}\n")


def main() -> None:
    torch.set_num_threads(1)
    recipe, out = load_recipe(sys.argv[1]), Path(sys.argv[2])
    with join_processes() as processes:
        told = Told(out.with_suffix(f".{processes.rank}"))
        run_recipe(out, recipe, processes=processes, callbacks=[told])


if __name__ == "__main__":
    main()
