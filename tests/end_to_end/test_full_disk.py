"""A full disk ends every command with one sentence; with space made, the same command continues."""

from __future__ import annotations

import os

import pytest
import torch

from aoq.recipes import save_recipe
from aoq.runs.directory import RunDirectory
from aoq.storage import append_json_line, hash_file, read_json_lines
from tests.conftest import write_precomp
from tests.disks import aoq_limited, assert_no_space, mounted, resize
from tests.training.cases import small_recipe

KIB = 1024
SHARES = (0.02, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.97)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A recipe, and a run of it that had enough space."""
    folder = tmp_path_factory.mktemp("full")
    save_recipe(small_recipe(write_precomp(folder / "precomp")), folder / "recipe.toml")
    done = aoq_limited("run", folder / "recipe.toml", "--out", folder / "whole")
    assert done.returncode == 0, done.stderr
    return folder / "recipe.toml", folder / "whole"


def size_of(folder):
    """Bytes on a disk of pages."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return sum(-(-path.stat().st_size // 4096) * 4096 for path in files)


def assert_equal(one, two):
    """Tensors in dictionaries, bit by bit."""
    assert one.keys() == two.keys()
    for name, value in one.items():
        if isinstance(value, dict):
            assert_equal(value, two[name])
        else:
            assert torch.equal(value, two[name])


def assert_same(whole, out):
    for name in ("round-one", "round-two"):
        one, two = RunDirectory(whole / name), RunDirectory(out / name)
        assert hash_file(one.model) == hash_file(two.model)
        last, continued = (torch.load(run.trainer, weights_only=True) for run in (one, two))
        assert last["state"] == continued["state"]
        assert_equal(last["model"], continued["model"])
        assert_equal(last["optimizer"]["state"], continued["optimizer"]["state"])
    assert hash_file(RunDirectory(whole).candidates) == hash_file(RunDirectory(out).candidates)
    last = RunDirectory(out / "round-two")
    results = read_json_lines(RunDirectory(whole / "round-two").results)
    assert read_json_lines(last.results)[-1] == results[-1]


def run_into(limit, whole, out):
    recipe, complete = whole
    assert_no_space(aoq_limited("run", recipe, "--out", out, largest=limit))
    done = aoq_limited("run", recipe, "--out", out)
    assert done.returncode == 0, done.stderr
    assert_same(complete, out)


def test_a_run_that_finds_no_space_continues_to_the_same_bits(whole, tmp_path):
    largest = max(path.stat().st_size for path in whole[1].rglob("*") if path.is_file())
    run_into(largest - 1, whole, tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("share", SHARES)
def test_a_run_on_a_disk_that_is_full_at_any_moment_continues(whole, tmp_path, share):
    recipe, complete = whole
    size = max(4096, int(share * size_of(complete)))
    with mounted(tmp_path / "disk", f"size={size}") as disk:
        out = disk / "run"
        assert_no_space(aoq_limited("run", recipe, "--out", out))
        resize(disk, "64m")
        done = aoq_limited("run", recipe, "--out", out)
        assert done.returncode == 0, done.stderr
        assert_same(complete, out)


def commands_of(run, out):
    """Commands that write something, by name: their words, and which file must exist after."""
    return {
        "mine": (("mine", run / "round-one", "--out", out / "lists.safetensors"), "lists*"),
        "index": (("index", run, "--out", out / "index"), "index/index.json"),
    }


@pytest.mark.parametrize("name", ["mine", "index"])
def test_a_command_that_finds_no_space_says_so_and_does_it_later(whole, tmp_path, name):
    words, made = commands_of(whole[1], tmp_path)[name]
    assert_no_space(aoq_limited(*words, largest=600))
    assert not list(tmp_path.rglob("*.part"))
    done = aoq_limited(*words)
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.glob(made))


def test_evaluate_says_that_there_is_no_space(whole):
    _, run = whole
    before = RunDirectory(run / "round-two").results.read_bytes()
    assert_no_space(aoq_limited("evaluate", run, largest=100))
    assert RunDirectory(run / "round-two").results.read_bytes() == before


@pytest.mark.parametrize("largest", [500, 10 * KIB, 40 * KIB, 200 * KIB])
def test_a_data_set_that_finds_no_space_is_built_later(tmp_path, largest):
    pytest.importorskip("efficientnet_lite_pytorch")
    words = ("data", "build", "scenes", "--size", "tiny", "--grid", "2", "--out", tmp_path / "data")
    env = {**os.environ, "AOQ_CACHE": str(tmp_path / "cache")}
    assert_no_space(aoq_limited(*words, largest=largest, env=env))
    assert not (tmp_path / "data").exists()


def fill(log):
    for number in range(1000):
        append_json_line(log, {"number": number, "more": "x" * 300})


def test_a_log_that_ends_in_half_a_line_is_read_and_continued(whole, tmp_path):
    with mounted(tmp_path / "disk", "size=4096") as disk:
        log = disk / "events.jsonl"
        with pytest.raises(OSError, match=r"events\.jsonl") as full:
            fill(log)
        assert full.value.filename == str(log)
        lines = read_json_lines(log)
        assert [line["number"] for line in lines] == list(range(len(lines)))
        resize(disk, "64k")
        append_json_line(log, {"number": -1})
        assert read_json_lines(log) == [*lines, {"number": -1}]
