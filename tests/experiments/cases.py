"""A small experiment of two rows and two seeds, and results that cost nothing."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from aoq.config import ModelConfig
from aoq.experiments.definition import load_definition
from aoq.experiments.grid import run_grid
from aoq.experiments.results import Experiment
from aoq.recipes import save_recipe
from aoq.storage import hash_file
from tests.training.cases import small_recipe

RESULT = {
    **{f"{side}_{name}": 10.0 for side in ("i2t", "t2i") for name in ("r1", "r5", "r10")},
    "i2t_median_rank": 5.0,
    "t2i_median_rank": 5.0,
    "rsum": 60.0,
}
CAPTION = "a <script>alert(1)</script> dog"
ROWS = """
name = "made"
description = "Two losses."
seeds = [0, 1]
teacher = "VSRN"

[mining]
depth_texts = 10
depth_images = 4

[[rows]]
label = "VSRN"
recipe = "small.toml+online"

[[rows]]
label = "VSRN + AdapOffQuin"
recipe = "small.toml"

[[ensembles]]
label = "2 x VSRN"
members = ["VSRN", "VSRN, seed 1"]
"""


def results_file(out: Path) -> Path:
    return out / "results.jsonl"


def built_folder(folder: Path, *, caption: str) -> Path:
    """A data set as `aoq data build` writes it, with features that cost nothing."""
    random = np.random.default_rng(0)
    splits = {}
    (folder / "pictures").mkdir(parents=True)
    for split, count in (("train", 24), ("dev", 12), ("test", 12)):
        np.save(folder / f"{split}.features.npy", random.random((count, 4, 6), np.float32))
        names = [f"pictures/{split}-{i}.png" for i in range(count)]
        for name in names:
            Image.new("RGB", (8, 8), tuple(random.integers(255, size=3))).save(folder / name)
        listing = {
            "images": [{"id": name, "picture": name} for name in names],
            "captions": [{"id": f"{n}#0", "text": f"{caption} {i}"} for i, n in enumerate(names)],
            "pairs": [[i, i] for i in range(count)],
        }
        (folder / f"{split}.json").write_text(json.dumps(listing))
        files = (f"{split}.features.npy", f"{split}.json")
        splits[split] = {"sha256": {name: hash_file(folder / name) for name in files}}
    manifest = {"version": 1, "name": "made", "splits": splits}
    (folder / "dataset.json").write_text(json.dumps(manifest))
    return folder


def make_experiment(folder: Path):
    """Train the experiment; return its definition, data set and runs."""
    data = built_folder(folder / "data", caption=CAPTION)
    recipe = replace(
        small_recipe(""), model=ModelConfig(joint_width=8, word_width=5, caption_width=6)
    )
    save_recipe(recipe, folder / "small.toml")
    (folder / "made.toml").write_text(ROWS)
    definition = load_definition(folder / "made.toml")
    experiment = Experiment(definition=definition, data=data, out=folder / "out")
    assert run_grid(experiment, at_once=1) == {}
    return definition, data, folder / "out"
