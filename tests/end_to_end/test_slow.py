"""Minutes rather than seconds: real photos from file to result, and kills at random moments."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from aoq.recipes import save_recipe
from aoq.training.two_rounds import run_recipe
from tests.training.test_round import assert_same_weights, small_recipe

pytestmark = pytest.mark.slow

DEFAULT = Path(__file__).resolve().parents[3] / "shared" / "flickr8k"
FLICKR8K = Path(os.environ.get("AOQ_FLICKR8K", DEFAULT))
PHOTOS = {"train": 300, "dev": 60, "test": 60}


def aoq(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "aoq", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.skipif(not FLICKR8K.is_dir(), reason=f"{FLICKR8K} is absent; set AOQ_FLICKR8K")
def test_real_photos_go_from_a_token_file_to_a_result(tmp_path):
    lists = tmp_path / "lists"
    lists.mkdir()
    for split, count in PHOTOS.items():
        names = (FLICKR8K / f"{split}.txt").read_text().splitlines()[:count]
        (lists / f"{split}.txt").write_text("\n".join(names) + "\n")
    data, run = tmp_path / "data", tmp_path / "run"
    built = aoq(
        *("data", "build", FLICKR8K / "captions.tsv", "--pictures", FLICKR8K / "images"),
        *("--splits", lists, "--out", data),
    )
    assert built.returncode == 0, built.stderr
    assert "train images: 300" in built.stderr
    trained = aoq("run", "scenes-small", "--data", data, "--out", run)
    assert trained.returncode == 0, trained.stderr
    results = [
        json.loads(aoq("evaluate", run / "round-two", "--json", "--memory", memory).stdout)
        for memory in ("160MiB", "4GiB")
    ]
    assert results[0] == results[1]
    assert results[0]["rsum"] > 75  # chance is about 55


@pytest.mark.parametrize("moment", range(10))
def test_a_run_killed_at_a_random_moment_continues_to_the_same_weights(tmp_path, precomp, moment):
    recipe = small_recipe(precomp)
    save_recipe(recipe, tmp_path / "recipe.toml")
    command = [sys.executable, "-m", "aoq", "run", tmp_path / "recipe.toml", "--out"]
    whole = time.monotonic()
    run_recipe(tmp_path / "whole", recipe)
    whole = time.monotonic() - whole
    out = tmp_path / "killed"
    process = subprocess.Popen([*command, out], stderr=subprocess.DEVNULL)
    while not out.exists() and process.poll() is None:
        time.sleep(0.001)
    time.sleep(random.Random(moment).uniform(0, whole))
    process.send_signal(signal.SIGKILL)
    process.wait()
    continued = subprocess.run([*command, out], capture_output=True, text=True, check=False)
    assert continued.returncode == 0, continued.stderr
    for name in ("round-one", "round-two"):
        assert_same_weights(tmp_path / "whole" / name, out / name)
