"""Places that cannot be written, files that are damaged, and budgets that are too small."""

from __future__ import annotations

import errno
import json
import shutil

import numpy as np
import pytest
import torch
from safetensors import SafetensorError

from aoq.disk import disk_errors
from aoq.features.tables import write_rows
from aoq.recipes import save_recipe
from aoq.runs.directory import RunDirectory
from aoq.storage import write_array
from tests.commands import aoq, assert_refused
from tests.conftest import write_precomp
from tests.disks import mounted, read_only
from tests.training.cases import small_recipe


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("disk")
    save_recipe(small_recipe(write_precomp(folder / "precomp")), folder / "recipe.toml")
    done = aoq("run", folder / "recipe.toml", "--out", folder / "run")
    assert done.returncode == 0, done.stderr
    (folder / "texts.txt").write_text("a red ball\n")
    return folder


def assert_ended(done):
    """One error, whatever was warned of before."""
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert sum(line.startswith("error: ") for line in done.stderr.splitlines()) == 1


def test_what_libraries_say_of_a_full_disk_is_an_os_error_with_the_file(tmp_path):
    said = "Error while serializing: I/O error: No space left on device (os error 28)"
    with pytest.raises(OSError, match="weights") as full, disk_errors(tmp_path / "weights"):
        raise SafetensorError(said)
    assert full.value.errno == errno.ENOSPC


def test_other_errors_stay_what_they_are(tmp_path):
    with pytest.raises(RuntimeError, match="diverged"), disk_errors(tmp_path / "file"):
        raise RuntimeError("diverged")


def test_numpy_and_torch_on_a_full_disk_raise_no_space_left(tmp_path):
    with mounted(tmp_path / "disk", "size=64k") as disk:
        for write in (
            lambda: write_array(disk / "array.npy", np.zeros(100_000)),
            lambda: _save_with_torch(disk / "state.pt"),
        ):
            with pytest.raises(OSError, match=r"array|state") as full:
                write()
            assert full.value.errno == errno.ENOSPC
            assert not list(disk.iterdir())


def _save_with_torch(path):
    from aoq.storage import atomic_file

    with atomic_file(path) as temporary:
        torch.save(torch.zeros(100_000), temporary)


class Table:
    """Regions that do not fit on a small disk."""

    name, ids, shape = "table", [str(number) for number in range(100)], (4, 100)
    source = None

    def read(self, row):
        return np.full((4, 100), row, np.float16), np.zeros((4, 4), np.float32)


def test_features_on_a_full_disk_raise_no_space_left_instead_of_a_signal(tmp_path):
    with (
        mounted(tmp_path / "disk", "size=32k") as disk,
        pytest.raises(OSError, match=r"f\.npy") as e,
    ):
        write_rows(Table(), range(100), features=disk / "f.npy")
    assert e.value.errno == errno.ENOSPC


def test_features_are_written_as_numpy_reads_them(tmp_path):
    write_rows(Table(), [3, 5], features=tmp_path / "f.npy", boxes=tmp_path / "b.npy")
    features = np.load(tmp_path / "f.npy")
    assert features.shape == (2, 4, 100)
    assert features.dtype == np.float16
    assert features[:, 0, 0].tolist() == [3, 5]
    assert np.load(tmp_path / "b.npy").shape == (2, 4, 4)


@pytest.mark.parametrize("out", [".", "..", "/", "file", "file/below"])
@pytest.mark.parametrize(
    "words",
    [
        ("data", "build", "scenes", "--size", "tiny"),
        ("mine", "{run}/round-one"),
        ("encode", "{run}", "--texts", "{texts}"),
        ("index", "{run}"),
        ("run", "{recipe}"),
        ("train", "{recipe}"),
    ],
    ids=lambda words: words[0],
)
def test_a_place_that_cannot_be_the_result_is_refused_in_one_sentence(
    trained, tmp_path, words, out
):
    here = tmp_path / "here"
    here.mkdir()
    for file in (here / "file", tmp_path / "taken"):
        file.write_text("mine")
    names = {
        "run": trained / "run",
        "recipe": trained / "recipe.toml",
        "texts": trained / "texts.txt",
    }
    done = aoq(*(word.format(**names) for word in words), "--out", out, cwd=here)
    assert_ended(done)
    assert (here / "file").read_text() == "mine"


def test_a_run_goes_to_the_empty_folder_one_is_in(trained, tmp_path):
    done = aoq("train", trained / "recipe.toml", "--out", ".", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert RunDirectory(tmp_path).model.is_file()


def test_a_read_only_run_is_judged_mined_indexed_and_searched(trained, tmp_path):
    pytest.importorskip("faiss")
    run = tmp_path / "run"
    shutil.copytree(trained / "run", run)
    shutil.rmtree(RunDirectory(run / "round-one").encodings)
    index, lists = tmp_path / "index", tmp_path / "lists.safetensors"
    before = RunDirectory(run / "round-two").results.read_bytes()
    with read_only(run):
        judged = aoq("evaluate", run, "--json")
        assert judged.returncode == 0, judged.stderr
        assert json.loads(judged.stdout)["rsum"] > 0
        last = judged.stderr.strip().splitlines()[-1]  # after which round was taken
        assert "read-only" in last
        assert "not kept" in last
        for words in (
            ("evaluate", run, "--bootstrap", "10"),
            ("mine", run / "round-one", "--out", lists),
            ("mine", "share", run / "round-one", "--batch-sizes", "16"),
            ("index", run, "--out", index),
            ("search", run, "red ball", "--index", index),
            ("encode", run, "--texts", trained / "texts.txt", "--out", tmp_path / "v.npy"),
            ("runs", run),
        ):
            done = aoq(*words)
            assert done.returncode == 0, done.stderr
        assert_refused(aoq("index", run / "round-two"), "read-only")
    assert lists.read_bytes() == RunDirectory(trained / "run").candidates.read_bytes()
    assert not list(tmp_path.glob(".*"))
    assert RunDirectory(run / "round-two").results.read_bytes() == before


@pytest.mark.parametrize("file", ["model.safetensors", "trainer.pt"])
@pytest.mark.parametrize("damage", ["cut", "text", "flipped"])
def test_damaged_weights_are_reported_in_our_own_words(trained, tmp_path, file, damage):
    run = tmp_path / "run"
    shutil.copytree(trained / "run", run)
    path = run / "round-two" / file
    content = path.read_bytes()
    path.write_bytes(
        {
            "cut": content[: len(content) // 2],
            "text": b"no weights at all",
            "flipped": bytes(byte ^ 255 for byte in content[:300]) + content[300:],
        }[damage]
    )
    words = (
        ("evaluate", run, "--round", "two")
        if file.startswith("model")
        else (
            *("train", run / "round-two" / "config.toml", "--out", run / "round-two"),
            *("--round", "two", "--candidates", run / "candidates.safetensors"),
        )
    )
    done = aoq(*words)
    assert_ended(done)
    assert f"{path} is damaged" in done.stderr
    assert "weights_only" not in done.stderr


@pytest.mark.parametrize("plan", [(), ("--plan",)])
def test_a_budget_too_small_for_mining_is_refused_before_round_one(trained, tmp_path, plan):
    words = ("run", trained / "recipe.toml", "--out", tmp_path / "run", *plan)
    done = aoq(*words, "--mining.memory", "10MiB")
    assert done.returncode == 2
    assert "10MiB is too small" in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_budget_that_is_large_enough_is_accepted(trained, tmp_path):
    words = ("run", trained / "recipe.toml", "--out", tmp_path / "run")
    assert aoq(*words, "--mining.memory", "2GiB").returncode == 0
