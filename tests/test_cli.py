"""The command as people use it: a process, its output and its exit code."""

from __future__ import annotations

import io
import json
import re
import shlex
import signal
import subprocess
import sys
from contextlib import nullcontext, redirect_stderr
from pathlib import Path

import pytest

from aoq import distributed
from aoq.cli import app, main
from aoq.distributed import Processes
from aoq.recipes import load_recipe, save_recipe
from aoq.runs.best_round import best_round
from tests.commands import aoq, aoq_process, assert_refused
from tests.training.cases import published, small_recipe

ROOT = Path(__file__).parents[1]


@pytest.fixture
def recipe_file(tmp_path, precomp):
    save_recipe(small_recipe(precomp), tmp_path / "recipe.toml")
    return tmp_path / "recipe.toml"


def test_help_names_every_command():
    done = aoq_process("--help")
    assert done.returncode == 0
    commands = ("demo", "data", "recipes", "train", "mine", "run", "runs", "evaluate", "import")
    commands += ("experiment", "extract", "index", "search", "score", "encode", "serve")
    for command in commands:
        assert command in done.stdout


def test_help_shows_every_command_by_its_purpose():
    grouped = {name for name in app if app[name].group}
    assert {name for name in app if not name.startswith("-")} <= grouped


@pytest.mark.parametrize("name", [name for name in app if not name.startswith("-")])
def test_the_help_of_a_command_ends_with_the_page_that_explains_it(name):
    (page,) = re.findall(r"^Explained in (docs/[\w-]+\.md)\.$", app[name].help_epilogue)
    assert (ROOT / page).is_file()


def test_an_error_links_to_its_page_on_a_terminal(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "argv", ["aoq", "search", "nowhere", "a dog"])
    with redirect_stderr(Terminal()) as said, pytest.raises(SystemExit, match="2"):
        main()
    assert said.getvalue().splitlines()[-1] == "see docs/search.md"


def test_importing_the_library_or_the_command_imports_nothing_that_takes_long():
    heavy = "torch", "numpy", "PIL", "matplotlib", "fastapi", "faiss", "nltk", "transformers"
    code = "import sys, aoq, aoq.cli, aoq.config, aoq.recipes; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert not set(heavy) & set(done.stdout.split())


@pytest.mark.parametrize(
    "command",
    [
        ["data", "build"],
        ["data", "check"],
        ["train"],
        ["mine"],
        ["run"],
        ["evaluate"],
        ["import"],
        ["demo"],
    ],
)
def test_every_command_explains_itself(command):
    done = aoq(*command, "--help")
    assert done.returncode == 0
    assert "Usage: aoq" in done.stdout


def test_settings_carry_their_explanation_and_their_choices():
    text = " ".join(aoq("run", "--help").stdout.replace("│", " ").split())
    assert "--round-two.loss.alpha" in text
    assert "Width of the joint space" in text
    assert "choices: standard, online, off_tri, off_quin, adap_off_quin" in text


def test_train_mine_run_and_evaluate_work_from_the_shell(tmp_path, recipe_file):
    assert aoq("train", recipe_file, "--out", tmp_path / "one").returncode == 0
    mined = aoq("mine", tmp_path / "one")
    assert mined.returncode == 0
    assert "55 texts for each of 12 images" in mined.stderr
    lists = tmp_path / "one" / "candidates.safetensors"
    two = aoq(
        "train", recipe_file, "--round", "two", "--candidates", lists, "--out", tmp_path / "two"
    )
    assert two.returncode == 0
    run = aoq_process("run", recipe_file, "--out", tmp_path / "run")
    assert run.returncode == 0
    assert "rsum" in run.stdout
    judged = aoq("evaluate", tmp_path / "two", "--json")
    other = aoq("evaluate", tmp_path / "run" / "round-two", "--json", "--memory", "1GiB")
    assert json.loads(judged.stdout) == json.loads(other.stdout)
    together = aoq("evaluate", tmp_path / "one", tmp_path / "two", "--json")
    results = json.loads(together.stdout)
    assert list(results) == [str(tmp_path / "one"), str(tmp_path / "two"), "ensemble"]
    assert results[str(tmp_path / "two")] == json.loads(judged.stdout)
    small = aoq("evaluate", tmp_path / "two", "--memory", "1MiB")
    assert small.returncode == 2
    assert "too small" in small.stderr


def test_flags_override_the_recipe_and_are_stored_with_the_run(tmp_path, recipe_file):
    done = aoq(
        *("train", recipe_file, "--out", tmp_path / "run"),
        *("--round-one.epochs", 1, "--round-one.loss.margin-online", 0.3, "--seed", 7),
    )
    assert done.returncode == 0
    stored = (tmp_path / "run" / "config.toml").read_text()
    assert "seed = 7" in stored
    assert "epochs = 1" in stored
    assert "margin_online = 0.3" in stored
    assert 'name = "adap_off_quin"' in stored


@pytest.mark.parametrize("which", ["one", "two"])
def test_a_flag_for_fewer_epochs_shortens_how_a_recipe_starts(tmp_path, recipe_file, which):
    settings = f"[round_{which}]\nepochs = 12\nwarmup_epochs = 2\nrise_epochs = 1.0\n"
    change = tmp_path / "slow-start.toml"
    change.write_text(settings)
    (tmp_path / "taken").mkdir()
    command = ("train", f"{recipe_file}+{change}", "--out", tmp_path / "taken", "--data", "none")
    flag = f"--round-{which}.epochs"
    assert "shorten" not in aoq(*command, flag, 3).stderr
    assert "shortened: warmup_epochs 1" in aoq(*command, flag, 2).stderr
    assert "warmup_epochs 0 and rise_epochs 0.5" in aoq(*command, flag, 1).stderr
    refused = aoq(*command, flag, 1, f"--round-{which}.warmup-epochs", 1)
    assert "warmup_epochs is 1; it has to be" in refused.stderr


def test_a_plan_prints_steps_time_disk_and_memory_and_writes_nothing(tmp_path, recipe_file):
    done = aoq("run", recipe_file, "--out", tmp_path / "run", "--plan")
    assert done.returncode == 0
    assert "12 steps" in done.stdout
    for word in ("round one", "mining", "round two", "time in all", "disk", "memory"):
        assert word in done.stdout
    assert not (tmp_path / "run").exists()


def test_a_plan_is_one_process_s_and_refused_under_torchrun(tmp_path, recipe_file, monkeypatch):
    monkeypatch.setattr(distributed, "join_processes", lambda: nullcontext(Processes(0, 2)))
    done = aoq("run", recipe_file, "--out", tmp_path / "run", "--plan")
    assert_refused(done, "leave torchrun out")


def test_nothing_is_overwritten_without_force(tmp_path, recipe_file):
    aoq("train", recipe_file, "--out", tmp_path / "run", "--round-one.epochs", 1)
    aoq("mine", tmp_path / "run")
    again = aoq("mine", tmp_path / "run")
    assert again.returncode == 2
    assert "add --force" in again.stderr
    assert aoq("mine", tmp_path / "run", "--force").returncode == 0
    other = aoq("train", recipe_file, "--out", tmp_path / "run")
    assert other.returncode == 2
    assert "other settings" in other.stderr
    forced = aoq("train", recipe_file, "--out", tmp_path / "run", "--force")
    assert forced.returncode == 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run"], "--out"),
        (["run", "nowhere", "--out", "run"], "no recipe 'nowhere'"),
        (["run", "scenes-tiny", "--out", "run"], "add --data"),
        (["run", "scenes-tiny", "--out", "run", "--data", "missing"], "missing is not a folder"),
        (["run", "scenes-tiny", "--out", "run", "--seed", "x"], "--seed"),
        (["run", "scenes-tiny", "--out", "run", "--round-one.epochs", "0"], "at least 1"),
        (["run", "scenes-tiny", "--out", "run", "--widht", "3"], "--widht"),
        (["run", "scenes-tiny", "--out", "run", "--seed", "-1"], "cannot be negative"),
        (["run", "scenes-tiny", "--out", "run", "--behaviour", "best"], "--behaviour"),
        (["evaluate"], "no run is given"),
        (["evaluate", "missing"], "there is no folder missing"),
        (["mine", "missing"], "there is no folder missing"),
        (["data", "check", "missing"], "missing is not a folder"),
        (["data", "build", "missing.csv", "--out", "out"], "missing.csv"),
        (["data", "build", "scenes", "--size", "giant", "--out", "out"], "giant"),
        (["demo", "--size", "giant", "--out", "out"], "giant"),
        (["import", "a.pth.tar", "--vocabulary", "b.json", "--out", "c"], "b.json is not a file"),
        (["import", "a.pth.tar", "--out", "c"], "--vocabulary"),
        (["import", "a", "--vocabulary", "b", "--out", "c", "--model", "clip"], "--model"),
        (["import", "a", "--vocabulary", "b", "--out", "c", "--i2t", "d"], "name both --i2t"),
        (["frobnicate"], "frobnicate"),
    ],
)
def test_a_mistake_is_one_sentence_exit_code_2_and_nothing_written(tmp_path, arguments, sentence):
    done = aoq(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_behaviour_gives_way_to_flags(tmp_path, recipe_file):
    done = aoq(
        *("train", recipe_file, "--out", tmp_path / "run", "--behaviour", "official"),
        *("--round-one.epochs", 1, "--round-one.select-by", "rsum"),
    )
    assert done.returncode == 0
    stored = (tmp_path / "run" / "config.toml").read_text()
    assert 'behaviour = "official"' in stored
    assert 'select_by = "rsum"' in stored


def test_lists_are_refused_in_round_one(tmp_path, recipe_file):
    done = aoq("train", recipe_file, "--out", tmp_path / "run", "--candidates", tmp_path / "lists")
    assert done.returncode == 2
    assert "--candidates is for round two" in done.stderr


def test_weights_to_start_from_are_refused_where_a_round_starts_from_scratch(tmp_path, recipe_file):
    done = aoq(
        *("train", recipe_file, "--round", "two", "--out", tmp_path / "run"),
        *("--candidates", tmp_path / "lists", "--start", tmp_path / "one"),
    )
    assert done.returncode == 2
    assert "--round-two.start-from round_one" in done.stderr
    assert not (tmp_path / "run").exists()


def test_what_to_do_after_round_one_keeps_all_that_flags_changed(tmp_path, recipe_file):
    one, two = tmp_path / "one", tmp_path / "two"
    done = aoq("train", recipe_file, "--out", one, "--seed", 3, "--model.joint-width", 8)
    mine, train = re.findall(r"next: aoq (mine .*|train .*)", done.stderr)
    assert aoq(*shlex.split(mine)).returncode == 0
    assert aoq(*shlex.split(train.replace("...", str(two)))).returncode == 0
    stored = load_recipe(two / "config.toml")
    assert (stored.seed, stored.model.joint_width) == (3, 8)


def test_the_folder_of_a_whole_run_stands_for_its_best_round(tmp_path, recipe_file):
    aoq("run", recipe_file, "--out", tmp_path / "run", "--round-two.epochs", 1)
    best = best_round(tmp_path / "run").path
    judged = [aoq("evaluate", folder, "--json") for folder in (tmp_path / "run", best)]
    assert [done.returncode for done in judged] == [0, 0]
    whole, last = (json.loads(done.stdout) for done in judged)
    assert whole["rsum"] == last["rsum"]


def test_a_file_where_a_folder_should_go_is_one_sentence(tmp_path, recipe_file):
    (tmp_path / "file").write_text("mine")
    done = aoq("train", recipe_file, "--out", tmp_path / "file")
    assert done.returncode == 2
    (error,) = [line for line in done.stderr.splitlines() if not line.startswith("warning: ")]
    assert str(tmp_path / "file") in error
    assert (tmp_path / "file").read_text() == "mine"


def test_an_interruption_from_the_keyboard_says_how_to_go_on(tmp_path, recipe_file):
    command = [sys.executable, "-m", "aoq", "train", recipe_file, "--out", tmp_path / "run"]
    process = subprocess.Popen(
        [*command, "--round-one.epochs", "100000"], stderr=subprocess.PIPE, text=True
    )
    line = next(line for line in process.stderr if not line.startswith("warning: "))
    assert "epoch 1/100000" in line
    process.send_signal(signal.SIGINT)
    _, rest = process.communicate(timeout=60)
    assert process.returncode == 130
    assert rest.splitlines()[-1].startswith("error: interrupted; the same command resumes")
    assert "Traceback" not in rest


def test_bad_features_stop_a_run_before_anything_is_written(tmp_path, recipe_file, precomp):
    import numpy as np

    features = np.load(precomp / "train_ims.npy")
    features[3, 1, 2] = np.nan
    np.save(precomp / "train_ims.npy", features)
    done = aoq("run", recipe_file, "--out", tmp_path / "run")
    assert done.returncode == 2
    assert "train_ims.npy, image row 3" in done.stderr
    assert not (tmp_path / "run").exists()


def test_published_files_are_imported_evaluated_and_mined_from_the_shell(tmp_path, precomp):
    files = published(tmp_path / "files", "vsrn_f30k")
    out = tmp_path / "run"
    command = ("import", files.checkpoint, "--vocabulary", files.vocabulary, "--out", out)
    done = aoq(*command, "--data", precomp)
    assert done.returncode == 0
    assert "vsrn, f30k" in done.stderr
    assert f"next: aoq evaluate {out}" in done.stderr
    assert "rsum" in json.loads(aoq("evaluate", out, "--json").stdout)
    assert aoq("mine", out).returncode == 0
    again = aoq(*command)
    assert again.returncode == 2
    assert "add --force" in again.stderr


def test_no_command_has_a_flag_that_empties_a_list():
    def helps(application, words=()):
        yield aoq(*words, "--help").stdout
        for name in application:
            if not name.startswith("-"):
                yield from helps(application[name], (*words, name))

    pages = list(helps(app))
    assert len(pages) > 10
    assert not [page for page in pages if "--empty-" in page]
