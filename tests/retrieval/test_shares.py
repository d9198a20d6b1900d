"""Indexing by the processes of torchrun: the index of one process, also after a kill."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

from aoq.retrieval.build import Contents, build_index
from aoq.retrieval.index import Index
from aoq.retrieval.target import open_target
from tests.kills import ROOT
from tests.retrieval.conftest import draw_photo

_DIES = """
import os, signal
from aoq.retrieval import {module} as module
def dies(*arguments, **options):
    os.kill(os.getpid(), signal.SIGKILL)
module.{function} = dies
from aoq.cli import main
main()
"""


@pytest.fixture
def run(world, tmp_path):
    """A run of the test's own: processes keep encodings in it."""
    return shutil.copytree(world.runs["vse"], tmp_path / "run")


@pytest.fixture
def photos(tmp_path):
    for seed in range(7):
        draw_photo(tmp_path / "photos" / f"{seed}.png", seed=500 + seed)
    (tmp_path / "photos" / "broken.png").write_bytes(b"no picture")
    return tmp_path / "photos"


def torchrun(*command, cache, model):
    """Run two processes, whose cache holds nothing yet; torchrun takes --run for its own."""
    return subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", "2", *map(str, command)),
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "AOQ_CACHE": str(cache), "AOQ_MODEL": str(model)},
    )


def assert_same_index(one, two):
    for kind in ("images", "texts"):
        first, second = (index.rows(kind) for index in (one, two))
        assert (first is None) == (second is None)
        if first is not None:
            np.testing.assert_allclose(second[:].vectors, first[:].vectors, atol=1e-6)
    for kind in ("images", "texts"):
        np.testing.assert_array_equal(one.keys(kind), two.keys(kind))
    assert [image.picture for image in one.images] == [image.picture for image in two.images]


def test_two_processes_write_the_index_that_one_writes(run, photos, tmp_path):
    there = tmp_path / "there"
    here = build_index(run, Contents(pictures=[photos]), out=tmp_path / "here")
    command = ("index", run, "--pictures", photos, "--out", there)
    done = torchrun("-m", "aoq", *command, cache=tmp_path / "cache", model=run)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("indexed 29 images") == 1
    assert done.stderr.count("1 picture is left out") == 1
    assert_same_index(here, Index.open(there))


@pytest.mark.slow
@pytest.mark.parametrize(
    "moment", [("shares", "extract_pictures"), ("part_writer", "_encode"), ("sync", "save_index")]
)
def test_a_folder_that_two_processes_index_is_continued_after_a_kill(moment, run, photos, tmp_path):
    module, function = moment
    script = tmp_path / "dies.py"
    script.write_text(_DIES.format(module=module, function=function))
    command = ("index", photos, "--out", tmp_path / "there")
    done = torchrun(script, *command, cache=tmp_path / "cache", model=run)
    assert "SIGKILL" in done.stderr
    assert not (tmp_path / "there" / "index.json").exists()
    done = torchrun("-m", "aoq", *command, cache=tmp_path / "cache", model=run)
    assert done.returncode == 0, done.stderr
    here = open_target(photos, run=run, index=tmp_path / "here")
    assert_same_index(Index.open(here.index), Index.open(tmp_path / "there"))
