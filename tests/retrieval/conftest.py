"""A small data set with pictures, and a trained run of each kind of model, made once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from aoq.config import ModelConfig
from aoq.data.build import build_dataset
from aoq.data.sources.records import Record
from aoq.features.regions import RegionSource
from aoq.retrieval.build import Proposing, build_index
from aoq.retrieval.matcher import Matcher
from aoq.training.inputs import open_training_data
from aoq.training.two_rounds import train_round
from tests.conftest import WORDS
from tests.training.cases import ROUND, small_recipe

SIZES = {"train": 12, "dev": 5, "test": 5}


def draw_photo(path: Path, *, seed: int) -> Path:
    """A picture of coloured squares, unlike any of another seed."""
    cells = np.random.default_rng(seed).integers(0, 256, size=(6, 6, 3), dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(cells).resize((96, 96), Image.Resampling.NEAREST).save(path)
    return path


def photo_records(folder: Path) -> list[Record]:
    """One to three captions an image."""
    random = np.random.default_rng(0)
    records = []
    for split, count in SIZES.items():
        for number in range(count):
            name = f"{split}-{number}.png"
            picture = draw_photo(folder / name, seed=len(records))
            captions = tuple(
                " ".join(random.choice(WORDS, size=random.integers(3, 7)))
                for _ in range(random.integers(1, 4))
            )
            ids = tuple(f"{name}#{k}" for k in range(len(captions)))
            records.append(Record(name, picture, split, captions, ids))
    return records


@dataclass(frozen=True)
class SmallWorld:
    """A built data set and the runs that were trained on it, without an index."""

    data: Path
    photos: Path
    runs: dict[str, Path]


@pytest.fixture(scope="session")
def world(tmp_path_factory) -> SmallWorld:
    root = tmp_path_factory.mktemp("search")
    records = photo_records(root / "photos")
    build_dataset(records, root / "data", name="squares", source=RegionSource(grid=2))
    runs = {}
    for name in ("vsrn", "vse", "scan", "bfan"):
        recipe = replace(
            small_recipe(root / "data", round_one=replace(ROUND, epochs=1)),
            model=ModelConfig(name=name, joint_width=8, word_width=5, caption_width=6),
        )
        runs[name] = root / "runs" / name
        train_round(runs[name], recipe, open_training_data(recipe), which="one")
    return SmallWorld(root / "data", root / "photos", runs)


PROPOSED = "bfan with a teacher"


@pytest.fixture(scope="session")
def matchers(world) -> dict[str, Matcher]:
    """One of each model, and a bfan whose teacher proposes three."""
    for run in world.runs.values():
        build_index(run)
    bfan, place = world.runs["bfan"], world.data.parent / "proposed"
    proposing = Proposing(teacher=world.runs["vse"], proposals=3)
    build_index(bfan, out=place, proposing=proposing)
    alone = {name: Matcher.load(run) for name, run in world.runs.items()}
    return {**alone, PROPOSED: Matcher.load(bfan, index=place)}
