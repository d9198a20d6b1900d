"""Pretrained towers on Flickr8k, by the shipped recipes: the results of docs/pretrained.md.

Each row is a recipe, as `aoq run` trains it: heads on two frozen towers, a text tower that learns
too, and BFAN on the patches of the one and the words of the other.

    python -m reproduction towers --data FOLDER --patches FOLDER --image FOLDER --text FOLDER
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from aoq.config import TOWER_NAMES, Recipe
from aoq.evaluation.seeds import Spread
from aoq.experiments.results import machine
from aoq.experiments.tables import TextTable
from aoq.progress import say
from aoq.recipes import load_recipe, settings_that_matter
from aoq.runs.directory import ROUND_ONE
from aoq.runs.summary import find_runs
from aoq.storage import append_json_line, read_json_lines
from aoq.training.two_rounds import run_recipe
from reproduction import ROOT

TOWER_RESULTS = ROOT / "results" / "towers.jsonl"
_FIGURES = ("rsum", "i2t_r1", "t2i_r1")
_TOWERS = frozenset(f"model.{name}" for name in TOWER_NAMES)


@dataclass(frozen=True, kw_only=True)
class TowerRow:
    """A recipe, with its changes, and what it shows."""

    label: str
    recipe: str
    round_one: Mapping[str, Any] = field(default_factory=dict)
    "Changed settings of the round."

    @property
    def name(self) -> str:
        return re.sub(r"[^a-z0-9]+", "-", self.label.lower())

    @property
    def reads_patches(self) -> bool:
        """Whether the row is a model of the paper, which reads regions."""
        return load_recipe(self.recipe).model.name != "towers"

    def changed(self, recipe: Recipe) -> Recipe:
        """Return the recipe with this row's changes; it ends with round one."""
        round_one = replace(recipe.round_one, **self.round_one)
        return replace(recipe, rounds="one", round_one=round_one)

    def settings(self) -> dict[str, Any]:
        """Return all that a result depends on but the data, the towers and the seed."""
        settings = settings_that_matter(self.changed(load_recipe(self.recipe)))
        return {"recipe": self.recipe} | {
            name: value
            for name, value in settings.items()
            if name.startswith(("model.", "round_one.")) and name not in _TOWERS
        }


ROWS = (
    TowerRow(label="heads on frozen towers", recipe="towers"),
    TowerRow(
        label="the same, batches of 128",
        recipe="towers",
        round_one={"batch_size": 128},
    ),
    TowerRow(
        label="and the last two blocks of the text tower",
        recipe="towers-text",
        round_one={"precision": "bfloat16"},
    ),
    TowerRow(label="BFAN on patches and words", recipe="bfan-small"),
)


@dataclass(frozen=True)
class TowerTrainings:
    """Where the data and the towers are, and where runs and results go."""

    data: Path
    patches: Path
    image: str
    text: str
    out: Path
    results: Path = TOWER_RESULTS

    def train(self, rows: Sequence[TowerRow], seeds: Sequence[int]) -> None:
        """Train rows and record their results; what is recorded is not repeated."""
        for seed in seeds:
            for row in rows:
                about = {"row": row.label, "seed": seed, "settings": row.settings()}
                lines = read_json_lines(self.results) if self.results.is_file() else []
                if not any(about.items() <= line.items() for line in lines):
                    say(f"{row.label}, seed {seed}")
                    append_json_line(self.results, about | self._result(row, seed), with_check=True)

    def _result(self, row: TowerRow, seed: int) -> dict[str, Any]:
        out = self.out / f"{row.name}-{seed}"
        run_recipe(out, self._recipe(row, seed))
        (run,) = find_runs([out / ROUND_ONE])
        assert run.dev is not None
        assert run.test is not None
        return {
            "dev": dict(run.dev.metrics),
            "test": dict(run.test),
            "seconds": round(run.seconds, 1),
            "machine": machine(),
        }

    def _recipe(self, row: TowerRow, seed: int) -> Recipe:
        recipe = row.changed(load_recipe(row.recipe))
        towers = {"image": self.image, "text": self.text, "image_precision": "bfloat16"}
        if row.reads_patches:
            towers = {"words": self.text}
        return replace(
            recipe,
            data=str(self.patches if row.reads_patches else self.data),
            seed=seed,
            model=replace(recipe.model, **towers),  # type: ignore[arg-type]
        )


def tower_table(results: Path = TOWER_RESULTS) -> TextTable:
    """Show quality and time of the rows, means over the seeds."""
    lines, table = read_json_lines(results), []
    for row in ROWS:
        found = [
            line for line in lines if (line["row"], line["settings"]) == (row.label, row.settings())
        ]
        if not found:
            continue
        figures = [[line["dev"]["rsum"] for line in found]]
        figures += [[line["test"][name] for line in found] for name in _FIGURES]
        seconds = Spread.of([line["seconds"] for line in found]).mean
        cells = [f"{Spread.of(values).mean:.1f}" for values in figures]
        table.append((row.label, f"`{row.recipe}`", str(len(found)), *cells, f"{seconds / 60:.0f}"))
    headings = ("recipe", "seeds", "dev rsum", "test rsum", "i2t R@1", "t2i R@1", "minutes")
    return TextTable(("", *headings), table)
