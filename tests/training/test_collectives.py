"""Several processes take the steps of one: the same losses, gradients and weights."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from aoq.distributed import ALONE
from aoq.recipes import load_recipe, save_recipe
from aoq.runs.directory import RunDirectory
from aoq.storage import read_json_lines
from aoq.training.collectives import Collectives, start_fabric
from aoq.training.two_rounds import run_recipe
from tests.conftest import write_precomp
from tests.training.cases import (
    cca_recipe,
    regularised,
    small_recipe,
    weights,
    with_round_two,
)
from tests.training.steps_in_processes import CASES, STEPS, train

ROOT = Path(__file__).parents[2]


LAUNCHER = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]


def torchrun(*command: object) -> None:
    """Two processes on this machine."""
    arguments = [*LAUNCHER, *map(str, command)]
    done = subprocess.run(
        arguments, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stderr


def test_the_tasks_of_a_cluster_s_job_are_not_taken_for_processes(monkeypatch):
    monkeypatch.setenv("SLURM_NTASKS", "4")
    monkeypatch.setenv("SLURM_JOB_NAME", "train")
    assert Collectives(start_fabric(torch.device("cpu"))).processes == ALONE


def whole_recipe(data):
    recipe = small_recipe(data)
    recipe = replace(recipe, model=replace(recipe.model, name="bfan"))
    return with_round_two(recipe, batches="grouped", group_size=4)


def recipe_with_everything(data):
    """Pieces, and all that optimisation has."""
    recipe = small_recipe(data, rounds="one")
    settings = replace(
        recipe.round_one,
        optimizer="adamw",
        weight_decay=0.01,
        schedule="cosine",
        rise_epochs=0.5,
        ema=0.9,
        encode_at_once=3,
    )
    return replace(recipe, model=replace(recipe.model, name="vse"), round_one=settings)


def standardised(data):
    dropped = ("feature_dropout", "word_dropout", "drop_regions", "drop_words")
    recipe = regularised(data, "scan")
    return replace(recipe, model=replace(recipe.model, **dict.fromkeys(dropped, 0.0)))


def remining(data):
    """Lists of the average, mined by both."""
    recipe = small_recipe(data)
    recipe = replace(recipe, model=replace(recipe.model, name="vse"))
    return with_round_two(recipe, remine_every=1, ema=0.9, warmup_epochs=1, epochs=4)


RECIPES = {
    "remining": remining,
    "whole": whole_recipe,
    "everything": recipe_with_everything,
    "standardised": standardised,
    "dropouts": lambda data: regularised(data, "scan"),
    "cca": cca_recipe,
}


@pytest.fixture(scope="module")
def in_processes(tmp_path_factory):
    """A folder with what two processes did: a run of every recipe, and steps.0 and steps.1."""
    folder = tmp_path_factory.mktemp("processes")
    data = write_precomp(folder / "precomp")
    for name, recipe in RECIPES.items():
        save_recipe(recipe(data), folder / f"{name}.toml")
    torchrun("-m", "tests.training.in_processes", folder)
    return folder


@pytest.fixture(scope="module")
def steps(in_processes):
    """What each of two processes got."""
    return [json.loads((in_processes / f"steps.{rank}.json").read_text()) for rank in (0, 1)]


@pytest.mark.parametrize("case", [case for case in CASES if case != "vsrn"])
def test_two_processes_take_the_steps_of_one(steps, case):
    alone = train(case, **CASES[case])
    for process in steps:
        assert len(process[case]["terms"]) == STEPS
        for two, one in zip(process[case]["terms"], alone["terms"], strict=True):
            assert two == pytest.approx(one, abs=1e-5, rel=1e-5)
        assert process[case]["norms"] == pytest.approx(alone["norms"], rel=1e-3)
        np.testing.assert_allclose(process[case]["weights"], alone["weights"], atol=2e-5)
    assert len({json.dumps(process[case]["weights"]) for process in steps}) == 1


def test_a_model_with_batch_norm_and_dropout_trains_in_two_processes(steps):
    """Its batch norm sees the share, so the numbers are others; the weights stay the same."""
    first, second = (process["vsrn"] for process in steps)
    assert first["weights"] == second["weights"]
    assert np.isfinite(first["weights"]).all()
    totals = [sum(terms.values()) for terms in first["terms"]]
    assert np.mean(totals[-5:]) < np.mean(totals[:5])


@pytest.mark.parametrize("name", ["whole", "everything", "standardised", "cca", "remining"])
def test_two_processes_end_a_recipe_like_one(tmp_path, in_processes, name):
    """Statistics of inputs and computed models included."""
    recipe = load_recipe(in_processes / f"{name}.toml")
    run_recipe(tmp_path / "one", recipe)
    for stage in ("round-one", "round-two") if recipe.rounds == "both" else ("round-one",):
        one, two = weights(tmp_path / "one" / stage), weights(in_processes / name / stage)
        for key, value in one.items():
            atol = 0 if name == "cca" else 1e-4
            np.testing.assert_allclose(two[key], value, rtol=0, atol=atol, err_msg=key)
    assert len(read_json_lines(RunDirectory(in_processes / name / stage).results)) == 1


def test_callbacks_are_called_in_the_first_process_alone(in_processes):
    told = (in_processes / "everything.0").read_text().split()
    assert told == [str(step) for step in range(1, 13)]
    assert not (in_processes / "everything.1").exists()


def test_dropouts_are_each_process_s_own_and_train(in_processes):
    learned = weights(in_processes / "dropouts" / "round-one")
    assert all(torch.isfinite(value).all() for value in learned.values())


def test_a_recipe_is_continued_by_processes_of_the_command(in_processes):
    last = RunDirectory(in_processes / "whole" / "round-two")
    before = weights(last.path)
    for file in (last.trainer, last.model, last.results):
        file.unlink()
    torchrun("-m", "aoq", "run", in_processes / "whole.toml", "--out", in_processes / "whole")
    assert all(np.array_equal(before[name], value) for name, value in weights(last.path).items())


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds the process by /proc")
def test_one_process_that_is_asked_to_stop_stops_all_and_they_go_on(tmp_path, precomp):
    """None waits for it forever, and what is continued ends bit for bit the same."""
    recipe = small_recipe(precomp)
    longer = replace(recipe.round_one, epochs=40, log_every=1)
    recipe = replace(recipe, rounds="one", round_one=longer)
    save_recipe(recipe, tmp_path / "recipe.toml")
    command = ("-m", "aoq", "run", tmp_path / "recipe.toml", "--out")
    torchrun(*command, tmp_path / "whole")

    events = RunDirectory(tmp_path / "stopped" / "round-one").events
    with subprocess.Popen(
        [*LAUNCHER, *map(str, command), str(tmp_path / "stopped")],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as started:
        deadline = time.monotonic() + 300
        while len(read_json_lines(events)) < 5:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        os.kill(process_of_rank(started.pid, 1), signal.SIGTERM)
        started.wait(timeout=300)
    assert started.returncode != 0
    steps = [line for line in read_json_lines(events) if line["event"] == "steps"]
    assert len(steps) < 40 * 3

    torchrun(*command, tmp_path / "stopped")
    whole, stopped = (weights(tmp_path / name / "round-one") for name in ("whole", "stopped"))
    assert all(np.array_equal(whole[name], value) for name, value in stopped.items())


def process_of_rank(launcher: int, rank: int) -> int:
    """The process that a launcher started for a rank."""
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    (found,) = (
        int(child)
        for child in children
        if f"RANK={rank}" in Path(f"/proc/{child}/environ").read_bytes().decode().split("\0")
    )
    return found
