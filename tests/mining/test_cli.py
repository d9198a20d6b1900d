"""`aoq mine`, `aoq mine inspect` and `aoq mine export` as people use them."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from aoq.distributed import ALONE, Processes
from aoq.mining.candidates import CandidateLists
from aoq.mining.sweep_file import sweep_file
from aoq.runs.directory import RunDirectory
from tests.commands import aoq, assert_refused
from tests.conftest import write_precomp
from tests.mining.processes import trained_run


def words(text):
    """What a help text says, without its frames and line breaks."""
    return " ".join(text.replace("│", " ").split())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A trained run in `run`, its data set in `data`, another one in `other`."""
    folder = tmp_path_factory.mktemp("mine")
    trained_run(folder)
    write_precomp(folder / "other", images=12, seed=7)
    done = aoq("mine", folder / "run")
    assert done.returncode == 0
    assert "mined 55 texts for each of 12 images" in done.stderr
    assert f"next: aoq mine inspect {folder / 'run' / 'candidates.safetensors'}" in done.stderr
    return folder


@pytest.fixture
def lists(folder):
    return RunDirectory(folder / "run").candidates


def test_the_help_explains_every_rule_and_the_other_commands():
    said = words(aoq("mine", "--help").stdout)
    for flag in ("memory", "precision", "skip-first", "score-share", "near-captions", "force"):
        assert f"--{flag}" in said
    assert "--equal-captions" in said
    assert "torchrun --nproc-per-node 4 -m aoq mine RUN" in said
    for command in ("inspect", "export"):
        assert command in said
        help_of = words(aoq("mine", command, "--help").stdout)
        assert f"Usage: aoq mine {command}" in help_of
        assert "--data" in help_of


def test_lists_are_whole_and_fit_the_data_they_were_mined_on(lists):
    stored = CandidateLists.load(lists)
    assert stored.i2t.shape == (12, 55)
    assert stored.t2i.shape == (60, 11)
    assert stored.provenance.rules == ()


def test_rules_precision_depth_and_budget_are_flags(folder, tmp_path):
    done = aoq(
        *("mine", folder / "run", "--out", tmp_path / "lists", "--depth-texts", 6),
        *("--depth-images", 3, "--score-share", 0.95, "--equal-captions", "--skip-first", 1),
        *("--near-captions", 0.8, "--precision", "bfloat16", "--memory", "1GiB"),
    )
    assert done.returncode == 0
    stored = CandidateLists.load(tmp_path / "lists")
    assert stored.i2t.shape == (12, 6)
    assert stored.t2i.shape == (60, 3)
    assert stored.provenance.rules == (
        "equal captions",
        "score share 0.95",
        "near captions 0.8",
        "skip first 1",
    )
    assert stored.provenance.precision == "bfloat16"


def test_a_budget_changes_nothing_and_one_that_is_too_small_is_refused(folder, tmp_path, lists):
    done = aoq("mine", folder / "run", "--out", tmp_path / "same", "--memory", "200MiB")
    assert done.returncode == 0
    same, whole = CandidateLists.load(tmp_path / "same"), CandidateLists.load(lists)
    np.testing.assert_array_equal(same.i2t, whole.i2t)
    np.testing.assert_array_equal(same.t2i, whole.t2i)
    depths = ("--depth-texts", 5, "--depth-images", 5)
    small = aoq("mine", folder / "run", "--out", tmp_path / "small", "--memory", "20MiB", *depths)
    assert_refused(small, "a memory of 20MiB is too small", "allow at least 1GiB")
    assert not [path for path in tmp_path.iterdir() if "small" in path.name]


def test_what_killed_processes_left_behind_is_removed_when_the_lists_are_there(folder, tmp_path):
    lists, others = tmp_path / "lists", sweep_file(tmp_path / "other.lists", ALONE)
    saved = sweep_file(lists, Processes(1, 2))
    saved.parent.mkdir()
    saved.write_text("killed when there were two")
    saved.with_name(".0-of-1.safetensors.abcdefgh.part").write_text("killed while it saved")
    others.parent.mkdir()
    others.write_text("of other lists, which are still being mined")
    assert aoq("mine", folder / "run", "--out", lists).returncode == 0
    assert list(tmp_path.glob(".*")) == [others.parent]
    assert others.exists()


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--memory", "much"], "cannot be read; write it as 512MiB"),
        (["--precision", "int8"], "--precision"),
        (["--score-share", "1.5"], "score_share is 1.5; it has to lie in (0, 1]"),
        (["--near-captions", "0"], "near_captions is 0.0"),
        (["--skip-first", "-1"], "skip_first is -1"),
        (["--skip-first", "60"], "no texts are left to mine"),
        (["--depth-texts", "0"], "--depth-texts"),
        (["--data", "nowhere"], "nowhere is not a folder"),
        ([], "candidates.safetensors exists already; name another file or add --force"),
    ],
)
def test_what_cannot_be_mined_is_refused(folder, tmp_path, flags, sentence):
    out = ["--out", tmp_path / "lists"] if flags else []
    assert_refused(aoq("mine", folder / "run", *out, *flags, cwd=tmp_path), sentence)
    assert list(tmp_path.iterdir()) == []


def test_the_lists_of_an_image_and_a_text_are_shown_and_written_as_a_page(folder, tmp_path, lists):
    page = tmp_path / "page.html"
    done = aoq(
        *("mine", "inspect", lists, "--data", folder / "data", "--image", 3, "--text", 7),
        *("--depth", 4, "--html", page),
    )
    assert done.returncode == 0, done.stderr
    captions = (folder / "data" / "train_caps.txt").read_text().splitlines()
    hardest = CandidateLists.load(lists).i2t[3, :4]
    for text in hardest:
        assert captions[text] in words(done.stdout)
        assert captions[text] in page.read_text()
    assert captions[7] in words(done.stdout)
    assert_refused(
        aoq("mine", "inspect", lists, "--data", folder / "data", "--html", page), "add --force"
    )


def test_some_lists_are_shown_where_none_is_named(folder, lists):
    arguments = ("mine", "inspect", lists, "--data", folder / "data")
    done = aoq(*arguments, "--seed", 3)
    assert done.returncode == 0
    assert done.stdout == aoq(*arguments, "--seed", 3).stdout
    assert done.stdout != aoq(*arguments, "--seed", 4).stdout


def test_lists_are_exported_for_other_programs(folder, tmp_path, lists):
    stored = CandidateLists.load(lists)
    arguments = ("mine", "export", lists, "--data", folder / "data")
    assert aoq(*arguments, "--out", tmp_path / "out", "--depth", 2).returncode == 0
    lines = (tmp_path / "out" / "i2t.jsonl").read_text().splitlines()
    assert len(lines) == 60
    captions = (folder / "data" / "train_caps.txt").read_text().splitlines()
    line = json.loads(lines[0])
    assert line["negative_1"] == captions[stored.i2t[0, 0]]
    assert "negative_3" not in line
    assert len((tmp_path / "out" / "t2i.jsonl").read_text().splitlines()) == 60
    assert aoq(*arguments, "--out", tmp_path / "out", "--form", "npy").returncode == 0
    np.testing.assert_array_equal(np.load(tmp_path / "out" / "i2t.npy")[:12], stored.i2t)
    assert_refused(aoq(*arguments, "--out", tmp_path / "out"), "add --force")
    assert aoq(*arguments, "--out", tmp_path / "out", "--force").returncode == 0


@pytest.mark.parametrize("form", ["jsonl", "npy"])
def test_lists_that_are_shallower_than_the_depth_are_exported_whole(folder, tmp_path, lists, form):
    arguments = ("mine", "export", lists, "--data", folder / "data", "--out", tmp_path)
    done = aoq(*arguments, "--form", form, "--depth", 20)
    assert done.returncode == 0, done.stderr
    assert f"i2t.{form} (20 texts for each image)" in done.stderr
    assert f"t2i.{form} (11 images for each text)" in done.stderr
    stored = CandidateLists.load(lists)
    for side, depth in (("i2t", 20), ("t2i", 11)):
        file = tmp_path / f"{side}.{form}"
        if form == "npy":
            np.testing.assert_array_equal(np.load(file), getattr(stored, side)[:, :depth])
        else:
            written = [json.loads(line) for line in file.read_text().splitlines()]
            assert {len(line["negative_ids"]) for line in written} == {depth}


def missing(path):
    path.unlink()


def cut_short(path):
    path.write_bytes(path.read_bytes()[:-50])


def changed(path):
    arrays = load_file(path)
    with safe_open(path, framework="np") as file:
        metadata = file.metadata()
    arrays["i2t"][0, 0] += 1
    save_file(arrays, path, metadata=metadata)


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (missing, "does not exist"),
        (cut_short, "cut short"),
        (changed, "is damaged"),
        (None, "was mined on another data set than"),
    ],
)
@pytest.mark.parametrize("command", ["inspect", "export"])
def test_lists_that_cannot_be_right_are_refused(folder, tmp_path, lists, command, damage, sentence):
    copy = tmp_path / "lists.safetensors"
    shutil.copy(lists, copy)
    if damage:
        damage(copy)
    data = folder / ("data" if damage else "other")
    out = ["--out", tmp_path / "out"] if command == "export" else []
    assert_refused(aoq("mine", command, copy, "--data", data, *out), sentence)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["inspect", "--image", "no such image"], "no such image"),
        (["inspect", "--text", "no such words at all"], "no such words at all"),
        (["inspect", "--depth", "0"], "--depth"),
        (["export", "--out", "out", "--depth", "56"], "expected a depth of 1 to 55"),
        (["export", "--out", "out", "--depth", "56", "--form", "npy"], "55 texts and 11 images"),
        (["export", "--out", "out", "--form", "csv"], "--form"),
        (["export"], "--out"),
    ],
)
def test_what_lists_cannot_show_is_refused(folder, tmp_path, lists, arguments, sentence):
    command, *flags = arguments
    done = aoq("mine", command, lists, "--data", folder / "data", *flags, cwd=tmp_path)
    assert_refused(done, sentence)
    assert list(tmp_path.iterdir()) == []
