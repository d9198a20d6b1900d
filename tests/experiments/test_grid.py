"""`aoq experiment`: rows and seeds, who waits for whom, kills, failures and mistakes."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from aoq.data.splits import open_dataset
from aoq.evaluation.rank_archive import RankArchive
from aoq.evaluation.ranks import PairRanks
from aoq.evaluation.tables import METRICS
from aoq.experiments.definition import load_definition
from aoq.experiments.plan import plan_grid
from aoq.experiments.results import Results, ranks_key
from aoq.experiments.tables import grid_table
from aoq.recipes import save_recipe
from aoq.runs.directory import RunDirectory
from aoq.runs.judge import stored_result
from aoq.runs.summary import find_runs
from aoq.storage import hash_file, locked, read_json_lines, write_text
from tests.commands import aoq, assert_refused
from tests.conftest import write_precomp
from tests.training.cases import small_recipe

ROOT = Path(__file__).parents[2]
ROWS = """
name = "small"
seeds = [0, 1]
teacher = "small.toml"

[mining]
depth_texts = 12
depth_images = 5

[[rows]]
label = "VSRN"
recipe = "small.toml+online"

[[rows]]
label = "VSRN + OffTri"
recipe = "small.toml+off-tri"

[[rows]]
label = "VSRN (Fine-tune)"
recipe = "small.toml+fine-tune"

[[rows]]
label = "VSE, own teacher"
recipe = "small.toml+off-quin"
teacher = "VSE"
settings = { model.name = "vse" }

[[rows]]
label = "VSE"
recipe = "small.toml+online"
settings = { model.name = "vse" }
"""
LABELS = ("VSRN", "VSRN + OffTri", "VSRN (Fine-tune)", "VSE, own teacher", "VSE")
TIMES = ("seconds", "steps_per_second", "threads", "date")


def write_definition(folder: Path, text: str = ROWS, **rounds) -> Path:
    """A definition and its recipe, with shorter or longer rounds."""
    recipe, rounds = small_recipe(""), {"epochs": 2, "checkpoint_every": 100, **rounds}
    one = replace(recipe.round_one, **rounds)
    two = replace(recipe.round_two, **rounds)
    save_recipe(replace(recipe, round_one=one, round_two=two), folder / "small.toml")
    (folder / "mine.toml").write_text(text)
    return folder / "mine.toml"


def without_times(path):
    """The lines of a results file by row and seed, each there once."""
    lines = read_json_lines(path)
    found = {(line["row"], line["seed"]): line for line in lines}
    assert len(found) == len(lines)
    return {
        key: {name: value for name, value in line.items() if name not in TIMES}
        for key, line in found.items()
    }


def read_lines(definition, out):
    return Results.read(out / "results.jsonl", load_definition(definition)).lines


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An experiment that nothing interrupted, two runs at a time."""
    folder = tmp_path_factory.mktemp("grid")
    definition, data = write_definition(folder), write_precomp(folder / "precomp")
    done = aoq("experiment", definition, "--data", data, "--out", folder / "out", "--jobs", 2)
    assert done.returncode == 0, done.stderr
    return definition, data, folder / "out"


def test_every_row_ends_with_every_seed_and_one_complete_line(whole):
    _, _, out = whole
    lines = read_json_lines(out / "results.jsonl")
    assert sorted((line["row"], line["seed"]) for line in lines) == sorted(
        (label, seed) for label in LABELS for seed in (0, 1)
    )
    for line in lines:
        assert line["experiment"] == "small"
        assert [point["epoch"] for point in line["curve"]] == [1, 2]
        best = max(line["curve"], key=lambda point: point["rsum"])
        assert line["best_epoch"] == best["epoch"]
        assert line["dev"]["rsum"] == best["rsum"]
        assert set(line["test"]) == set(line["dev"]) == set(METRICS)
        assert line["seconds"] > 0
        assert line["steps_per_second"] > 0
        assert line["threads"] == 1
        assert line["settings"]["model.joint_width"] == 8
        assert not {"seed", "data", "candidates"} & line["settings"].keys()
    assert len({line["digest"] for line in lines}) == len(lines)
    assert len({line["data"] for line in lines}) == 1


def test_cells_are_runs_and_only_those_that_have_to_train_round_one(whole):
    definition, _, out = whole
    rounds = {str(run.path.relative_to(out.resolve())) for run in find_runs([out.resolve()])}
    assert {path for path in rounds if "seed-0" in path} == {
        "small.toml+online/seed-0/round-one",
        "small.toml+off-tri/seed-0/round-two",
        "small.toml+fine-tune/seed-0/round-one",
        "small.toml+fine-tune/seed-0/round-two",
        "small-VSE-own-teacher/seed-0/round-two",
        "small-VSE/seed-0/round-one",
    }
    lists = {path.relative_to(out).parts[0] for path in out.rglob("candidates.safetensors")}
    assert lists == {"small.toml+online", "small-VSE"}
    assert all(run.stage == "finished" for run in find_runs([out]))
    line = read_lines(definition, out)["VSRN + OffTri", 1]
    stored = stored_result(out / "small.toml+off-tri/seed-1/round-two", split="test")
    assert line["test"] == {name: stored[name] for name in METRICS}


def test_fine_tuning_starts_from_the_teacher_s_weights_without_training_them_again(whole):
    _, _, out = whole
    teacher = RunDirectory(out / "small.toml+online/seed-0/round-one")
    copied = RunDirectory(out / "small.toml+fine-tune/seed-0/round-one")
    assert hash_file(teacher.trainer) == hash_file(copied.trainer)
    trained = [line for line in read_json_lines(copied.events) if line["event"] == "epoch"]
    assert trained == [line for line in read_json_lines(teacher.events) if line["event"] == "epoch"]
    origin = RunDirectory(out / "small.toml+fine-tune/seed-0/round-two").origin.read_text()
    assert hash_file(teacher.model) in origin


def test_a_finished_experiment_is_left_alone_and_listed(whole):
    definition, data, out = whole
    files = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}
    assert aoq("experiment", definition, "--data", data, "--out", out).returncode == 0
    assert files == {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}
    seen = aoq("experiment", definition, "--out", out, "--list", "--seeds", 1, 2)
    line = read_lines(definition, out)["VSE", 1]
    (row,) = [words for text in seen.stdout.splitlines() if (words := text.split())[:1] == ["VSE"]]
    assert row[-2:] == [f"{line['test']['rsum']:.1f}", "-"]


def test_rows_and_seeds_can_be_chosen_and_bring_their_teachers(tmp_path, whole):
    definition, data, out = whole
    chosen = ("--rows", "VSRN + OffTri", "--seeds", 1, "--jobs", 1)
    results = tmp_path / "lines" / "results.jsonl"
    done = aoq(
        *("experiment", definition, "--data", data, "--out", tmp_path / "out", *chosen),
        *("--results", results),
    )
    assert done.returncode == 0, done.stderr
    found = without_times(results)
    assert set(found) == {("VSRN", 1), ("VSRN + OffTri", 1)}
    assert found.items() <= without_times(out / "results.jsonl").items()
    refused = aoq("experiment", definition, "--data", data, "--rows", "VSRM")
    assert_refused(refused, "has no row 'VSRM'", "'VSRN + OffTri'")


def test_a_finished_teacher_is_there_for_two_experiments_at_once(tmp_path, whole):
    definition, data, out = whole
    shutil.copytree(out, tmp_path / "out")
    arguments = ("experiment", definition, "--data", data, "--out", tmp_path / "out", "--jobs", 1)
    chosen = ("--rows", "VSRN + OffTri", "--seeds", 0)
    lines = (out / "results.jsonl").read_text().splitlines(keepends=True)
    others = [line for line in lines if json.loads(line)["row"] != "VSRN + OffTri"]
    write_text(tmp_path / "out/results.jsonl", "".join(others))
    with locked(tmp_path / "out/small.toml+online/seed-0"):
        done = aoq(*arguments, *chosen)
        assert done.returncode == 0, done.stderr
        assert without_times(tmp_path / "out/results.jsonl").keys() >= {("VSRN + OffTri", 0)}

        write_text(tmp_path / "out/results.jsonl", "".join(others))
        (tmp_path / "out/small.toml+online/seed-0/candidates.safetensors").unlink()
        refused = aoq(*arguments, *chosen)
    assert "is being trained by another process" in " ".join(refused.stderr.split())


def test_a_killed_experiment_continues_to_the_same_results(tmp_path, whole):
    definition, data, out = whole
    arguments = ("experiment", definition, "--data", data, "--out", tmp_path / "out")
    arguments = (*arguments, "--seeds", 0, "--jobs", 2)
    process = start(arguments)
    while not list(tmp_path.glob("out/*/seed-*/round-two/trainer.pt")) and process.poll() is None:
        time.sleep(0.005)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    assert len(read_json_lines(tmp_path / "out" / "results.jsonl")) < len(LABELS)
    done = aoq(*arguments)
    assert done.returncode == 0, done.stderr
    continued, uninterrupted = (
        without_times(folder / "results.jsonl") for folder in (tmp_path / "out", out)
    )
    assert set(continued) == {(label, 0) for label in LABELS}
    assert continued.items() <= uninterrupted.items()


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGINT, 130),
        pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow),
        pytest.param(signal.SIGKILL, -9, marks=pytest.mark.slow),
    ],
)
def test_jobs_end_with_the_command_and_save_if_they_can(tmp_path, whole, number, code):
    """They hold its stderr, which is read to its end; by themselves they would take minutes."""
    _, data, _ = whole
    definition = write_definition(
        tmp_path, epochs=2000, log_every=1, checkpoint_every=10**6, batch_size=2
    )
    process = start(("experiment", definition, "--data", data, "--out", tmp_path, "--jobs", 2))
    cells = ("small.toml+online", "small-VSE")  # the teachers, which need nobody
    runs = [RunDirectory(tmp_path / cell / "seed-0/round-one") for cell in cells]
    while process.poll() is None and not all(_steps(run) for run in runs):
        time.sleep(0.01)
    os.killpg(process.pid, number)
    _, message = process.communicate(timeout=30)
    assert process.returncode == code, message
    for run in runs if number != signal.SIGKILL else ():
        saved = torch.load(run.trainer, weights_only=True)["state"]
        last = _steps(run)[-1]
        assert (saved["epoch"] + 1, saved["step"]) == (last["epoch"], last["step"])


def start(arguments):
    """The command in a process group of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "aoq", *map(str, arguments)],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def _steps(run):
    return [line for line in read_json_lines(run.events) if line["event"] == "steps"]


def test_who_needs_a_failed_run_is_left_out_and_the_others_go_on(tmp_path, whole):
    _, data, _ = whole
    definition = write_definition(tmp_path, epochs=1)
    in_the_way = tmp_path / "out/small.toml+online/seed-0/notes.txt"
    in_the_way.parent.mkdir(parents=True)
    in_the_way.write_text("mine")
    done = aoq(
        *("experiment", definition, "--data", data, "--out", tmp_path / "out"),
        *("--seeds", 0, "--jobs", 2),
    )
    assert done.returncode == 1
    assert "VSRN, seed 0: " in done.stderr
    assert "seed-0 exists and aoq did not write it" in done.stderr
    assert "VSRN + OffTri, seed 0: skipped" in done.stderr
    assert set(without_times(tmp_path / "out/results.jsonl")) == {
        ("VSE", 0),
        ("VSE, own teacher", 0),
    }
    assert in_the_way.read_text() == "mine"


def test_a_result_of_other_settings_is_reported_and_done_again_only_with_force(tmp_path, whole):
    _, data, _ = whole
    write_definition(tmp_path, epochs=1)
    rows = ROWS.split("[[rows]]")
    short = "[[rows]]".join(rows[:3]).replace("[0, 1]", "[0]")
    arguments = ("experiment", tmp_path / "mine.toml", "--data", data, "--out", tmp_path / "out")
    arguments = (*arguments, "--jobs", 1)
    (tmp_path / "mine.toml").write_text(short)
    assert aoq(*arguments).returncode == 0
    first = (tmp_path / "out/results.jsonl").read_text()

    write_definition(tmp_path, short, epochs=1, learning_rate=1e-2)
    told = aoq(*arguments)
    assert told.returncode == 0
    assert "seed 0 has a result with other settings" in told.stderr
    assert "(other settings)" in aoq(*arguments, "--list").stdout
    assert (tmp_path / "out/results.jsonl").read_text() == first

    assert aoq(*arguments, "--force").returncode == 0
    lines = read_json_lines(tmp_path / "out/results.jsonl")
    assert [(line["row"], line["settings"]["round_one.learning_rate"]) for line in lines] == [
        (label, rate) for rate in (1e-3, 1e-2) for label in ("VSRN", "VSRN + OffTri")
    ]
    latest = read_lines(tmp_path / "mine.toml", tmp_path / "out")
    assert latest["VSRN", 0] == lines[2]
    assert aoq(*arguments, "--force").returncode == 0
    assert read_json_lines(tmp_path / "out/results.jsonl") == lines


def test_what_was_done_again_and_interrupted_goes_on(tmp_path, whole):
    _, data, _ = whole
    rows = ROWS.split("[[rows]]")
    both = "[[rows]]".join([rows[0], *rows[4:]]).replace("[0, 1]", "[0]")
    write_definition(tmp_path, both, epochs=1)
    out = tmp_path / "out"
    results, student = out / "results.jsonl", out / "small-VSE-own-teacher/seed-0/round-two"
    arguments = ("experiment", tmp_path / "mine.toml", "--data", data, "--out", out, "--jobs", 1)
    assert aoq(*arguments).returncode == 0
    began = hash_file(RunDirectory(student).model)

    faster = both.removesuffix(" }\n") + ", round_one.learning_rate = 1e-2 }\n"
    (tmp_path / "mine.toml").write_text(faster)
    assert aoq(*arguments, "--force", "--rows", "VSE").returncode == 0  # the teacher alone
    assert hash_file(RunDirectory(student).model) == began
    assert aoq(*arguments, "--force").returncode == 0  # the student from its new lists
    done = hash_file(RunDirectory(student).model)
    assert done != began

    lines = results.read_text().splitlines(keepends=True)
    write_text(results, "".join(lines[:-1]))  # killed before the last line
    trained = RunDirectory(student).trainer.stat().st_mtime_ns
    assert aoq(*arguments, "--force").returncode == 0
    assert RunDirectory(student).trainer.stat().st_mtime_ns == trained
    last = [read_json_lines(results)[-1]["digest"], json.loads(lines[-1])["digest"]]
    assert last[0] == last[1]


def test_an_experiment_is_resumed_with_the_data_it_was_begun_with(whole, tmp_path):
    definition, _, out = whole
    resumed = aoq("experiment", definition, "--resume", "--out", out)
    assert resumed.returncode == 0, resumed.stderr
    assert "0 to run" in resumed.stderr
    refused = aoq("experiment", definition, "--resume", "--out", tmp_path)
    assert_refused(refused, "has no runs to continue")


def test_the_best_of_a_choice_is_trained_with_the_other_seeds(tmp_path, whole):
    _, data, _ = whole
    rows = [
        f'[[rows]]\nlabel = "{rate}"\nrecipe = "small.toml+online"\nseeds = [0]\n'
        f"settings = {{ round_one.learning_rate = {rate} }}\n"
        for rate in (1e-3, 1e-9)
    ]
    choice = '[[choices]]\nlabel = "tuned"\nof = ["0.001", "1e-09"]\nseeds = [0]\n'
    text = 'name = "tune"\nseeds = [0, 1]\n' + "".join(rows) + choice
    definition = write_definition(tmp_path, text)
    arguments = ("experiment", definition, "--data", data, "--out", tmp_path / "my runs")
    done = aoq(*arguments, "--jobs", 1)
    assert done.returncode == 0, done.stderr
    lines = read_lines(definition, tmp_path / "my runs")
    best = max(("0.001", "1e-09"), key=lambda label: lines[label, 0]["dev"]["rsum"])
    assert set(lines) == {("0.001", 0), ("1e-09", 0), (best, 1)}
    assert "tuned is the best on dev" in done.stdout
    assert f"--out '{tmp_path / 'my runs'}' --report" in " ".join(done.stderr.split())


def test_lines_that_are_not_results_are_reported_and_left_out(tmp_path, capsys):
    definition = write_definition(tmp_path)
    path = tmp_path / "results.jsonl"
    path.write_text('{"experiment": "small", "seed": 0}\n{"experiment": "other"}\n')
    assert read_lines(definition, tmp_path) == {}
    assert "without row, dev, test, seconds is skipped" in " ".join(capsys.readouterr().err.split())


def test_experiments_that_share_a_file_share_what_they_have_in_common(tmp_path, whole):
    definition, data, out = whole
    text = ROWS.replace('name = "small"', 'name = "other"').replace('"VSRN"', '"the baseline"')
    other = write_definition(tmp_path, text)
    shared = tmp_path / "results.jsonl"
    shared.write_bytes((out / "results.jsonl").read_bytes())
    own, theirs = (read_lines(path, tmp_path) for path in (definition, other))
    assert theirs["the baseline", 1] == own["VSRN", 1]
    done = aoq("experiment", other, "--data", data, "--out", tmp_path, "--jobs", 1)
    assert "10 results finished, 0 to run" in done.stderr
    assert shared.read_bytes() == (out / "results.jsonl").read_bytes()


def test_data_sets_that_share_a_file_have_their_own_lines_and_ranks(tmp_path, whole):
    definition, data, out = whole
    path = tmp_path / "results.jsonl"
    own = read_json_lines(out / "results.jsonl")
    others = [{**line, "data": "other", "test": None} for line in own]
    path.write_text("".join(json.dumps(line) + "\n" for line in own + others))
    experiment = load_definition(definition)
    for lines in (own, others):
        found = Results.read(path, experiment, lines[0]["data"]).lines
        assert sorted(found.values(), key=str) == sorted(lines, key=str)
    done = aoq(*("experiment", definition, "--data", data, "--out", out, "--results", path))
    assert "10 results finished, 0 to run" in done.stderr

    names = [ranks_key(line, split=split) for line in own + others for split in ("dev", "test")]
    assert len(set(names)) == 4 * len(own)
    archive = RankArchive.beside(out / "results.jsonl")
    assert all(archive.read(*name) is not None for name in names[: 2 * len(own)])
    pairs = [ranks_key(*lines[:2], split="test") for lines in (own, others)]
    assert pairs[0] != pairs[1]


def test_a_teacher_that_is_trained_again_leaves_its_result_as_it_was(tmp_path, whole):
    """Another machine's weights are others; the ranks behind a line stay those of the line."""
    definition, data, out = whole
    archive = RankArchive.beside(tmp_path / "results.jsonl")
    before = RankArchive.beside(out / "results.jsonl")
    all_lines = read_json_lines(out / "results.jsonl")
    keys = [ranks_key(line, split=split) for line in all_lines for split in ("dev", "test")]
    for part, name in keys:
        fold = before.read(part, name)
        none = np.zeros_like(fold.pair_ranks.images)
        archive.keep(part, name, replace(fold, pair_ranks=PairRanks(none, none)))
    lines = [
        line
        for line in (out / "results.jsonl").read_text().splitlines(keepends=True)
        if json.loads(line)["row"] != "VSRN + OffTri"
    ]
    (tmp_path / "results.jsonl").write_text("".join(lines))
    arguments = ("experiment", definition, "--data", data, "--out", tmp_path, "--jobs", 1)
    done = aoq(*arguments, "--rows", "VSRN + OffTri", "--seeds", 0)
    assert done.returncode == 0, done.stderr
    found = read_json_lines(tmp_path / "results.jsonl")
    assert [(line["row"], line["seed"]) for line in found[len(lines) :]] == [("VSRN + OffTri", 0)]
    written = [key for key in keys if archive.read(*key).metrics.rsum < 600]
    assert written == [ranks_key(found[-1], split=split) for split in ("dev", "test")]


def test_a_result_counts_where_another_machine_made_the_features(tmp_path, whole):
    """They differ in their last digits, and nothing else does."""
    definition, data, out = whole
    shutil.copytree(data, tmp_path / "data")
    features = tmp_path / "data/train_ims.npy"
    np.save(features, np.load(features) * np.float32(1 + 1e-6))
    here, there = (open_dataset(folder, "train") for folder in (data, tmp_path / "data"))
    assert here.fingerprint != there.fingerprint
    arguments = ("experiment", definition, "--out", tmp_path, "--results", out / "results.jsonl")
    assert "0 to run" in aoq(*arguments, "--data", tmp_path / "data").stderr

    captions = tmp_path / "data/train_caps.txt"
    captions.write_text(captions.read_text().replace("a", "o", 1))
    told = aoq(*arguments, "--data", tmp_path / "data", "--rows", "VSRN").stderr
    assert "VSRN, seed 0 has a result with other" in " ".join(told.split())


def test_the_command_to_repeat_names_all_that_was_named(tmp_path):
    arguments = ("scenes-table1", "--out", "my runs", "--results", tmp_path / "my.jsonl")
    listed = " ".join(aoq("experiment", *arguments, "--list").stderr.split())
    assert f"--data FOLDER --out 'my runs' --results {tmp_path / 'my.jsonl'}" in listed


def test_unknown_experiments_and_missing_data_are_refused(whole):
    definition, _, out = whole
    assert_refused(
        aoq("experiment", "flickr8k-table1"),
        "flickr8k-table1",
        "python -m reproduction",
    )
    assert_refused(aoq("experiment", "none.toml"), "none.toml")
    assert_refused(aoq("experiment", "scenes-table1"), "add --data FOLDER", "aoq data build scenes")
    refused = aoq("experiment", definition, "--data", out / "nowhere", "--out", out)
    assert_refused(refused, "nowhere")


def test_a_narrow_list_breaks_no_name():
    definition = load_definition("scenes-table1")
    runs = plan_grid(definition, out=Path())
    console = Console(width=40, record=True, file=io.StringIO())
    console.print(grid_table(runs, Results(definition, None, {}), narrow=True), crop=False)
    words = console.export_text().split()
    assert {"AdapOffQuin", "scenes-tiny", "+adap-off-quin"} <= set(words)
    assert not any("…" in word for word in words)
