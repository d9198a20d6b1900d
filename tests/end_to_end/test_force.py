"""No command that takes --force removes a file that aoq did not write."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import shutil
from dataclasses import replace

import pytest

import aoq.cli
from aoq.config import ModelConfig
from aoq.data.build import build_dataset
from aoq.features.regions import RegionSource
from aoq.manifest import NAME
from aoq.recipes import save_recipe
from tests.commands import aoq as run_command
from tests.retrieval.conftest import photo_records
from tests.training.cases import published, small_recipe


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Photos with captions, a data set, a trained run and its lists."""
    pytest.importorskip("efficientnet_lite_pytorch")
    root = tmp_path_factory.mktemp("force")
    records = photo_records(root / "photos")
    lines = [f"{record.image_id}\t{text}\n" for record in records for text in record.captions]
    (root / "photos" / "captions.tsv").write_text("".join(lines), encoding="utf-8")
    build_dataset(records, root / "data", name="squares", source=RegionSource(grid=2))
    save_recipe(
        replace(
            small_recipe(root / "data"),
            model=ModelConfig(name="vse", joint_width=8, word_width=5),
        ),
        root / "recipe.toml",
    )
    done = run_command("run", root / "recipe.toml", "--out", root / "run")
    assert done.returncode == 0, done.stderr
    (root / "lines.txt").write_text("red\n", encoding="utf-8")
    return root


def folders(root):
    """Commands that write a folder, without --out and --force."""
    files = published(root / "published")
    return {
        "run": ("run", root / "recipe.toml"),
        "train": ("train", root / "recipe.toml", "--round", "one"),
        "import": ("import", files.checkpoint, "--vocabulary", files.vocabulary),
        "build": ("data", "build", root / "photos" / "captions.tsv", "--grid", 2),
        "extract": ("extract", root / "photos", "--grid", 2),
        "index": ("index", root / "run", "--round", "two"),
        "demo": ("demo", "--size", "tiny"),
    }


def files(root):
    """Commands that write files into a folder, without --force: their words, and a file's name."""
    lists, run = root / "run" / "candidates.safetensors", root / "run"
    return {
        "mine": (
            lambda out: ("mine", run, "--out", out / "lists.safetensors"),
            "lists.safetensors",
        ),
        "inspect": (lambda out: ("mine", "inspect", lists, "--html", out / "a.html"), "a.html"),
        "export": (lambda out: ("mine", "export", lists, "--out", out), "i2t.jsonl"),
        "encode": (
            lambda out: ("encode", run, "--texts", root / "lines.txt", "--out", out / "a.npy"),
            "a.npy",
        ),
    }


FOLDERS = ("run", "train", "import", "build", "extract", "index", "demo")
FILES = ("mine", "inspect", "export", "encode")
# `experiment` starts its runs anew as `run` does: tests/experiments/test_grid.py; `pull` needs a
# hub and `interpolate` a run of towers: tests/runs.
ELSEWHERE = {"experiment", "pull", "interpolate"}


def test_every_command_that_takes_force_is_tested_here():
    modules = [
        importlib.import_module(f"aoq.cli.{found.name}")
        for found in pkgutil.iter_modules(aoq.cli.__path__)
    ]
    commands = {
        name.rstrip("_")
        for module in modules
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if function.__module__ == module.__name__
        and not name.startswith("_")
        and "force" in inspect.signature(function).parameters
    }
    assert commands == {*FOLDERS, *FILES, *ELSEWHERE}


def refuse(done, *sentences):
    """The command ended with one sentence; lines before it may say which round was taken."""
    assert done.returncode == 2
    (error,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert done.stderr.strip().endswith(error)
    for sentence in sentences:
        assert sentence in error


def contents(folder):
    return {str(file): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_of_somebody_else_is_never_replaced(made, tmp_path, name):
    """It looks like a run, a data set, regions and an index; only a manifest makes it ours."""
    out = tmp_path / "proj"
    (out / "src").mkdir(parents=True)
    (out / "src" / "thesis.tex").write_text("years of work")
    (out / "config.toml").write_text('title = "site"')
    for likeness in ("dataset.json", "regions.json", "index.json"):
        (out / likeness).write_text('{"version": 1, "splits": {}, "source": null, "images": []}')
    before = contents(out)
    done = run_command(*folders(made)[name], "--out", out, "--force")
    refuse(done, str(out), f"it has no {NAME}")
    assert contents(out) == before


@pytest.mark.parametrize("name", [name for name in FOLDERS if name != "demo"])
def test_a_folder_of_ours_is_replaced_but_never_with_a_file_of_somebody_else(made, tmp_path, name):
    out, words = tmp_path / "out", folders(made)[name]
    done = run_command(*words, "--out", out)
    assert done.returncode == 0, done.stderr
    (out / "notes").mkdir()
    (out / "notes" / "thesis.tex").write_text("years of work")
    before = contents(out)
    done = run_command(*words, "--out", out, "--force")
    refuse(done, "notes/thesis.tex, which aoq did not write")
    assert contents(out) == before
    (out / "notes" / "thesis.tex").unlink()
    (out / "notes").rmdir()
    done = run_command(*words, "--out", out, "--force")
    assert done.returncode == 0, done.stderr
    assert (out / NAME).is_file()


@pytest.mark.parametrize("name", FOLDERS)
def test_a_link_is_never_replaced(made, tmp_path, name):
    target, link = shutil.copytree(made / "run", tmp_path / "target"), tmp_path / "link"
    link.symlink_to(target)
    before = contents(target)
    refuse(run_command(*folders(made)[name], "--out", link, "--force"), "is a link to")
    assert contents(target) == before
    assert link.is_symlink()


def users_files():
    """Files that look like what aoq leaves behind, by what a user did."""
    return {
        "keeps a lock": ("proj/.lock", "proj/.lock"),
        "keeps a folder like a temporary one": ("mine/.x.abcdefgh.part/t.tex", "mine/.x"),
        "changed a file of ours": ("config.toml", "config.toml"),
        "keeps a run of ours elsewhere": ("proj/run", "proj/run"),
    }


@pytest.mark.parametrize("name", users_files())
def test_what_a_user_keeps_in_a_folder_of_ours_stops_force(made, tmp_path, name):
    place, named = users_files()[name]
    out = shutil.copytree(made / "run", tmp_path / "run")
    if place.endswith("run"):
        shutil.copytree(made / "run", out / place)
    else:
        (out / place).parent.mkdir(parents=True, exist_ok=True)
        (out / place).write_text("years of work")
    before = contents(out)
    refuse(run_command(*folders(made)["run"], "--out", out, "--force"), named)
    assert contents(out) == before


def test_a_folder_named_like_one_put_aside_stays(made, tmp_path):
    thesis = tmp_path / ".data.before" / "thesis.tex"
    thesis.parent.mkdir()
    thesis.write_text("years of work")
    done = run_command(*folders(made)["build"], "--out", tmp_path / "data")
    assert thesis.read_text() == "years of work", done.stderr


def test_a_mining_report_of_somebody_else_is_not_replaced(made, tmp_path):
    words, _ = files(made)["mine"]
    (tmp_path / "lists.report.json").write_text("notes")
    refuse(run_command(*words(tmp_path)), "lists.report.json", "--force")
    refuse(run_command(*words(tmp_path), "--force"), "lists.report.json")
    assert (tmp_path / "lists.report.json").read_text() == "notes"


def test_lists_that_a_user_removed_are_mined_again(made, tmp_path):
    words, written = files(made)["mine"]
    for _ in range(2):
        assert run_command(*words(tmp_path)).returncode == 0
        (tmp_path / written).unlink()
        (tmp_path / "lists.report.json").unlink()


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_ours_is_replaced_and_one_of_somebody_else_never(made, tmp_path, name):
    words, written = files(made)[name]
    (tmp_path / written).write_text("years of work")
    refuse(run_command(*words(tmp_path)), written, "--force")
    refuse(run_command(*words(tmp_path), "--force"), "not written by aoq")
    assert (tmp_path / written).read_text() == "years of work"
    (tmp_path / written).unlink()
    for force in ((), ("--force",)):
        done = run_command(*words(tmp_path), *force)
        assert done.returncode == 0, done.stderr
    with (tmp_path / written).open("ab") as file:  # of the same form, but no longer ours
        file.write(b"\n")
    refuse(run_command(*words(tmp_path), "--force"), "not written by aoq")
