"""Pretrained towers train by the same commands, continue after a kill, and are searched."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from aoq.config import LossConfig, MiningConfig, ModelConfig, Recipe, RoundConfig, SamplingConfig
from aoq.data.build import build_dataset
from aoq.features.outputs import Output
from aoq.features.regions import RegionSource
from aoq.recipes import load_recipe, save_recipe
from aoq.runs.directory import RunDirectory
from aoq.storage import hash_file
from tests.commands import aoq
from tests.kills import ROOT, assert_same_state, die
from tests.retrieval.conftest import photo_records
from tests.towers import TinyModels
from tests.training.test_collectives import LAUNCHER

ROUND = RoundConfig(
    epochs=2,
    batch_size=8,
    optimizer="adamw",
    weight_decay=0.1,
    learning_rate=1e-3,
    tower_learning_rate=1e-4,
    schedule="cosine",
    rise_epochs=0.5,
    checkpoint_every=2,
    validate_every=3,
)
TEXT_ONLY = "top, text only"
LEARN = (
    "full",
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("heads", "top", "lora", TEXT_ONLY)),
)
MOMENTS = {
    "in a step": ("aoq.training.step", "step_loss", 4),
    "in a checkpoint": ("torch", "save", 3),
    "in a step of round two": ("aoq.training.step", "step_loss", 11),
    "in what is frozen of photos": ("aoq.features.extract", "keep_array", 3),
    "in what is frozen of texts": ("aoq.features.texts", "keep_array", 1),
    "in the best weights": ("aoq.runs.checkpoint", "save_model", 2),
}

COMPUTED = {"photos": ("top", "lora", "full"), "texts": ("heads", "top", "lora")}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory, towers: TinyModels) -> Path:
    root = tmp_path_factory.mktemp("towers-data")
    source = RegionSource.of_backbone(str(towers.vit), output=Output("cls"))
    build_dataset(photo_records(root / "photos"), root / "data", name="squares", source=source)
    return root / "data"


def recipe_of(data: Path, model: ModelConfig, **changes: object) -> Recipe:
    second = RoundConfig(**{**vars(ROUND), "loss": LossConfig(name="adap_off_quin")})
    settings = {"data": str(data), "model": model, "round_one": ROUND, "round_two": second}
    sizes = {"depth_texts": 10, "depth_images": 4}
    lists = {"mining": MiningConfig(**sizes), "sampling": SamplingConfig(**sizes)}
    return Recipe(**{**settings, **lists, **changes})  # type: ignore[arg-type]


def two_towers(towers: TinyModels, learn: str) -> ModelConfig:
    return ModelConfig(
        name="towers",
        image=str(towers.vit),
        text=str(towers.bert),
        learn=learn.removesuffix(", text only"),  # type: ignore[arg-type]
        image_pooling="cls",
        text_pooling="mean",
        image_blocks=0 if learn == TEXT_ONLY else 1,
        text_blocks=1,
        joint_width=8,
        head_width=16,
        lora_rank=2,
    )


def aoq_run(recipe: Path, out: Path, *, launcher: tuple[str, ...] = (sys.executable,)) -> None:
    command = [*launcher, "-m", "aoq", "run", str(recipe), "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def assert_same(one: Path, two: Path) -> None:
    for name in ("round-one", "round-two"):
        assert_same_state(RunDirectory(one / name).trainer, RunDirectory(two / name).trainer)
        assert hash_file(one / name / "model.safetensors") == hash_file(
            two / name / "model.safetensors"
        )
    assert hash_file(RunDirectory(one).candidates) == hash_file(RunDirectory(two).candidates)


@pytest.fixture(scope="module", params=LEARN)
def whole(
    tmp_path_factory: pytest.TempPathFactory,
    data: Path,
    towers: TinyModels,
    request: pytest.FixtureRequest,
) -> tuple[Path, Path, float]:
    """A recipe, a run of it that nothing interrupted, and the seconds that it took."""
    folder = tmp_path_factory.mktemp("whole")
    save_recipe(recipe_of(data, two_towers(towers, request.param)), folder / "recipe.toml")
    started = time.monotonic()
    aoq_run(folder / "recipe.toml", folder / "whole")
    return folder / "recipe.toml", folder / "whole", time.monotonic() - started


def test_a_run_killed_in_a_step_of_round_two_loses_nothing(
    tmp_path: Path, whole: tuple[Path, Path, float]
) -> None:
    recipe, uninterrupted, _ = whole
    die(MOMENTS["in a step of round two"], "run", recipe, "--out", tmp_path / "killed")
    continued = aoq("run", recipe, "--out", tmp_path / "killed")
    assert continued.returncode == 0, continued.stderr
    assert_same(uninterrupted, tmp_path / "killed")


@pytest.mark.slow
@pytest.mark.parametrize("moment", [moment for moment in MOMENTS if "round two" not in moment])
def test_a_run_killed_in_the_middle_of_something_else_loses_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    whole: tuple[Path, Path, float],
    moment: str,
) -> None:
    recipe, uninterrupted, _ = whole
    model, (*_, of) = load_recipe(recipe).model, moment.split()
    if "frozen" in moment:
        is_kept = of == "photos" and not model.image_blocks  # vectors are in the data set
        if is_kept or model.learn not in COMPUTED[of]:
            pytest.skip(f"{model.learn}: nothing of {of} is computed")
        monkeypatch.setenv("AOQ_CACHE", str(tmp_path / "cache"))
    die(MOMENTS[moment], "run", recipe, "--out", tmp_path / "killed")
    aoq_run(recipe, tmp_path / "killed")
    assert_same(uninterrupted, tmp_path / "killed")


@pytest.mark.slow
@pytest.mark.parametrize("moment", range(5))
def test_a_run_killed_at_a_random_moment_continues_to_the_same_end(
    tmp_path: Path, whole: tuple[Path, Path, float], moment: int
) -> None:
    recipe, uninterrupted, seconds = whole
    out, random_moment = tmp_path / "killed", random.Random(moment)
    command = [sys.executable, "-m", "aoq", "run", str(recipe), "--out", str(out)]
    for _ in range(2):
        process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)
        time.sleep(random_moment.uniform(0.3, 0.8) * seconds)
        process.send_signal(signal.SIGKILL)
        process.wait()
    aoq_run(recipe, out)
    assert_same(uninterrupted, out)


@pytest.mark.slow
@pytest.mark.parametrize("learn", ["heads", "lora", "full"])
def test_two_processes_train_as_one(
    tmp_path: Path, data: Path, towers: TinyModels, learn: str
) -> None:
    """CLIP has no dropout, in which alone processes differ."""
    model = ModelConfig(
        name="towers",
        image=str(towers.clip),
        learn=learn,  # type: ignore[arg-type]
        image_blocks=1,
        text_blocks=1,
        joint_width=8,
        head="linear",
        lora_rank=2,
    )
    save_recipe(recipe_of(data, model, rounds="one"), tmp_path / "recipe.toml")
    aoq_run(tmp_path / "recipe.toml", tmp_path / "one")
    aoq_run(tmp_path / "recipe.toml", tmp_path / "two", launcher=tuple(LAUNCHER))
    one, two = (
        torch.load(RunDirectory(tmp_path / name / "round-one").trainer, weights_only=True)["model"]
        for name in ("one", "two")
    )
    torch.testing.assert_close(two, one, rtol=1e-3, atol=1e-4)


def answer_of(*command: object) -> Any:
    """What a command prints as JSON."""
    done = aoq(*command, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_trained_run_is_indexed_searched_and_judged(
    tmp_path: Path, whole: tuple[Path, Path, float], data: Path
) -> None:
    _, run, _ = whole
    index = tmp_path / "index"
    made = aoq("index", run, "--out", index)
    assert made.returncode == 0, made.stderr
    by_text = answer_of("search", run, "a small red ball", "--index", index, "--top", 3)
    assert len(by_text["hits"]) == 3
    photo = data.parent / "photos" / "test-0.png"
    assert answer_of("search", run, "--image", photo, "--index", index)["hits"]
    assert answer_of("evaluate", run, "--split", "test")["rsum"] > 0


@pytest.mark.parametrize("name", ["towers", "towers-text"])
def test_shipped_recipes_of_towers_train_on_any_photos(
    tmp_path: Path, data: Path, towers: TinyModels, name: str
) -> None:
    small = ("--round-one.epochs", 2, "--round-one.batch-size", 8, "--model.joint-width", 8)
    done = aoq(
        *("run", name, "--data", data, "--model.image", towers.clip, *small),
        *("--out", tmp_path / "run"),
    )
    assert done.returncode == 0, done.stderr
    assert answer_of("evaluate", tmp_path / "run", "--split", "test")["rsum"] > 0


@pytest.mark.parametrize("name", ["vsrn", "scan", "bfan", "vse"])
def test_the_paper_s_models_read_the_words_of_a_text_tower(
    tmp_path: Path, data: Path, towers: TinyModels, name: str
) -> None:
    model = ModelConfig(name=name, joint_width=8, words=str(towers.bert))  # type: ignore[arg-type]
    settings = replace(ROUND, tower_learning_rate=None)  # the words are frozen
    recipe = recipe_of(data, model, rounds="one", round_one=settings)
    save_recipe(recipe, tmp_path / "recipe.toml")
    run = tmp_path / "run"
    for command in (("run", tmp_path / "recipe.toml", "--out", run), ("index", run)):
        done = aoq(*command)
        assert done.returncode == 0, done.stderr
    answer = answer_of("search", run, "an unheard-of xylophone")
    assert answer["hits"]
    assert not answer["unknown_words"]
