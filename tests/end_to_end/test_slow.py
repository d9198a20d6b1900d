"""Minutes rather than seconds: real photos from file to result."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

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
    assert json.loads((data / "dataset.json").read_text())["splits"]["train"]["images"] == 300
    trained = aoq("run", "scenes-small", "--data", data, "--out", run)
    assert trained.returncode == 0, trained.stderr
    results = [
        json.loads(aoq("evaluate", run / "round-two", "--json", "--memory", memory).stdout)
        for memory in ("160MiB", "4GiB")
    ]
    assert results[0] == results[1]
    assert results[0]["rsum"] > 75  # chance is about 55
