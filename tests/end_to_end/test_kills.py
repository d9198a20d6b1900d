"""Killed at any moment, a run continues to what an uninterrupted one ends with, bit for bit.

A kill is SIGKILL to a process of its own: nothing in the program can notice it. The moments are
functions that the program calls on its way; the process dies in the middle of the n-th call.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from aoq.recipes import save_recipe
from aoq.runs.directory import RunDirectory
from aoq.storage import hash_file, read_json_lines
from tests.commands import aoq
from tests.conftest import write_precomp
from tests.kills import ROOT, assert_same_state, die
from tests.training.cases import small_recipe

# Half of a checkpoint is written, under its temporary name.
HALF = (
    "import torch; torch.save({'half': torch.zeros(1000)}, arguments[1]); "
    "arguments[1].flush(); os.truncate(arguments[1].fileno(), 2000)"
)
MOMENTS = {
    "in a step": ("aoq.training.step", "step_loss", 7),
    "in a checkpoint": ("torch", "save", 5),
    "in mining": ("aoq.mining.sweep", "evenly_spread", 2),
    "in a step of round two": ("aoq.training.step", "step_loss", 19),
    "in the best weights": ("aoq.runs.checkpoint", "save_model", 2),
    "in a validation": ("aoq.training.round", "evaluate", 2),
    "in the lists": ("aoq.mining.candidates", "save_file", 1),
    "in the encodings": ("aoq.scoring.encoding_files", "save_file", 2),
    "in the report of mining": ("aoq.runs.mine", "mining_report", 1),
    "in the judgement": ("aoq.runs.judge", "keep_ranks", 1),
}
QUICK = ("in a step", "in a checkpoint", "in mining")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A recipe, and a run of it that nothing interrupted."""
    folder = tmp_path_factory.mktemp("kills")
    data = write_precomp(folder / "precomp")
    recipe = small_recipe(data)
    settings = {"checkpoint_every": 2, "validate_every": 3}
    save_recipe(
        replace(
            recipe,
            round_one=replace(recipe.round_one, **settings),
            round_two=replace(recipe.round_two, **settings),
        ),
        folder / "recipe.toml",
    )
    started = time.monotonic()
    aoq_run(folder / "recipe.toml", folder / "whole")
    return folder / "recipe.toml", folder / "whole", time.monotonic() - started


def aoq_run(recipe, out):
    done = aoq("run", recipe, "--out", out)
    assert done.returncode == 0, done.stderr


def results(out):
    return read_json_lines(RunDirectory(out / "round-two").results)


def assert_same(whole, out):
    """The best weights, the last ones with the optimiser's state, lists and results."""
    for name in ("round-one", "round-two"):
        assert_same_state(RunDirectory(whole / name).trainer, RunDirectory(out / name).trainer)
    for name in ("round-one/model.safetensors", "round-two/model.safetensors"):
        assert hash_file(whole / name) == hash_file(out / name), name
    assert hash_file(RunDirectory(whole).candidates) == hash_file(RunDirectory(out).candidates)
    assert results(out)[-1] == results(whole)[-1]


def kill(recipe, out, moment):
    before = HALF if moment == "in a checkpoint" else "pass"
    die(MOMENTS[moment], "run", recipe, "--out", out, before=before)


@pytest.mark.parametrize("moment", QUICK)
def test_a_run_killed_in_the_middle_of_something_loses_nothing(tmp_path, whole, moment):
    recipe, uninterrupted, _ = whole
    kill(recipe, tmp_path / "killed", moment)
    aoq_run(recipe, tmp_path / "killed")
    assert_same(uninterrupted, tmp_path / "killed")
    assert not list((tmp_path / "killed").rglob("*.part"))


@pytest.mark.slow
@pytest.mark.parametrize("moment", [moment for moment in MOMENTS if moment not in QUICK])
def test_a_run_killed_in_the_middle_of_something_else_loses_nothing(tmp_path, whole, moment):
    recipe, uninterrupted, _ = whole
    kill(recipe, tmp_path / "killed", moment)
    aoq_run(recipe, tmp_path / "killed")
    assert_same(uninterrupted, tmp_path / "killed")


@pytest.mark.slow
@pytest.mark.parametrize("moment", range(20))
def test_a_run_killed_at_a_random_moment_continues_to_the_same_end(tmp_path, whole, moment):
    """Twice: what continues can be killed as well."""
    recipe, uninterrupted, seconds = whole
    out, random_moment = tmp_path / "killed", random.Random(moment)
    command = [sys.executable, "-m", "aoq", "run", str(recipe), "--out", str(out)]
    for _ in range(2):
        process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)
        while not RunDirectory(out).config.exists() and process.poll() is None:
            time.sleep(0.001)
        time.sleep(random_moment.uniform(0, seconds / 2))
        process.send_signal(signal.SIGKILL)
        process.wait()
    aoq_run(recipe, out)
    assert_same(uninterrupted, out)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_the_program_after_the_step_and_nothing_is_lost(
    tmp_path, whole, number, code
):
    recipe, uninterrupted, _ = whole
    out = tmp_path / "stopped"
    command = [sys.executable, "-m", "aoq", "run", str(recipe), "--out", str(out)]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    while not RunDirectory(out / "round-one").trainer.exists() and process.poll() is None:
        time.sleep(0.001)
    process.send_signal(number)
    _, message = process.communicate(timeout=60)
    assert process.returncode == code, message
    assert "the same command resumes from what is kept" in message
    aoq_run(recipe, out)
    assert_same(uninterrupted, out)
