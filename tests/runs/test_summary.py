"""`aoq runs`: what the files of runs tell, and how runs differ."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from aoq.config import LossConfig, ModelConfig, Recipe, RoundConfig
from aoq.errors import UserError
from aoq.evaluation.tables import METRICS
from aoq.recipes import save_recipe
from aoq.runs.directory import RunDirectory
from aoq.runs.events import read_events, read_pace
from aoq.runs.summary import RunSummary, compare_runs, find_runs
from aoq.storage import locked, write_json
from aoq.training.two_rounds import run_recipe
from aoq.web import history
from tests.commands import aoq, assert_refused
from tests.training.cases import small_recipe

RECIPE = Recipe(
    data="somewhere",
    model=ModelConfig(name="scan"),
    round_one=RoundConfig(epochs=3),
    round_two=RoundConfig(epochs=2, loss=LossConfig(name="off_tri")),
)


def metrics(rsum):
    return dict.fromkeys(METRICS, 10.0) | {"rsum": rsum}


def epoch(number, rsum, *, best=True):
    """The lines of an epoch: its steps, its end, its validation."""
    return [
        {"event": "steps", "epoch": number, "step": 5, "loss": {"i2t_online": 3.5}},
        {"event": "steps", "epoch": number, "step": 10, "loss": {"i2t_online": 3.2}},
        {"event": "epoch", "epoch": number, "seconds": 7.0, "steps": 10, "loss": {"a": 3.4}},
        {"event": "validation", "epoch": number, "step": 10, "best": best, **metrics(rsum)},
    ]


def start(finished=0):
    return {"event": "start", "epoch": finished, "step": 0}


def timed(events, *, first=1000.0, every=10.0):
    """One line every ten seconds, unless it says when."""
    return [
        {"event": line["event"], "time": first + every * at, **line}
        for at, line in enumerate(events)
    ]


FINISHED = [start(), *epoch(1, 300.0), *epoch(2, 320.0), *epoch(3, 310.0, best=False)]


def result(rsum, *, split="test", model="abc", data="test set"):
    return {"split": split, "model": model, "data": data, **metrics(rsum)}


def write_lines(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def write_run(path, events=FINISHED, *, recipe=RECIPE, which="one", results=(), **origin):
    """A folder as a round leaves it, without its weights."""
    run = RunDirectory(path)
    save_recipe(recipe, run.config)
    hashes = {"round": which, "data": "train set", "dev": "dev set", "candidates": None}
    write_json(run.origin, hashes | origin)
    write_lines(run.events, timed(events))
    write_lines(run.results, results)
    return path


def write_whole(path, *, recipe=RECIPE, rounds=("one", "two"), **changes):
    """A run of a whole recipe, as far as it has come."""
    save_recipe(recipe, RunDirectory(path).config)
    for which in rounds:
        write_run(path / f"round-{which}", recipe=recipe, which=which, **changes)
    return path


@pytest.mark.parametrize(
    ("events", "stage", "done"),
    [
        ([], "not started", 0),
        ([start()], "training", 0),
        ([start(), *epoch(1, 1.0)[:1]], "training", 0),
        ([start(), *epoch(1, 1.0)[:3]], "training", 0),
        ([start(), *epoch(1, 1.0)], "training", 1),
        ([start(), *epoch(1, 1.0), *epoch(2, 1.0)[:3], start(1)], "training", 1),
        ([start(), {**epoch(1, 1.0)[3], "step": 4}], "training", 0),
        ([start(), *epoch(1, 1.0)[:3], start(), {**epoch(1, 1.0)[3], "step": 4}], "training", 0),
        ([start(), *epoch(1, 1.0), {"event": "not_finite", "epoch": 2}], "not finite", 1),
        (
            [start(), {"event": "not_finite", "epoch": 1}, start(), *epoch(1, 1.0)],
            "training",
            1,
        ),
        ([start(), *epoch(1, 1.0), {"event": "stopped_early", "epoch": 1}], "stopped early", 1),
        (
            [start(), *epoch(1, 1.0), {"event": "stopped_early", "epoch": 1}, start(1)],
            "stopped early",
            1,
        ),
        (FINISHED, "finished", 3),
        ([*FINISHED, start(3)], "finished", 3),
        ([*FINISHED, {"event": "mined", "seconds": 1.0}], "finished", 3),
    ],
)
def test_a_log_shows_how_far_a_run_is(tmp_path, events, stage, done):
    summary = RunSummary.read(write_run(tmp_path / "run", events))
    assert (summary.stage, summary.epochs_done) == (stage, done)
    assert summary.settings.epochs == 3


def test_round_one_of_a_whole_recipe_mines_until_its_lists_are_there(tmp_path):
    whole = write_whole(tmp_path / "run", rounds=("one",))
    one = whole / "round-one"
    assert RunSummary.read(one).stage == "mining"
    write_run(one, [*FINISHED, {"event": "mined", "seconds": 1.0}])
    assert RunSummary.read(one).stage == "finished"
    write_run(one)
    RunDirectory(whole).candidates.touch()
    assert RunSummary.read(one).stage == "finished"


@pytest.mark.parametrize(
    "recipe",
    [
        replace(RECIPE, rounds="one"),
        replace(RECIPE, candidates="lists of a teacher"),
        RECIPE.with_loss("online"),
    ],
)
def test_round_one_of_a_recipe_that_needs_no_own_lists_is_just_finished(tmp_path, recipe):
    whole = write_whole(tmp_path / "run", rounds=("one",), recipe=recipe)
    assert RunSummary.read(whole / "round-one").stage == "finished"


def test_a_run_is_the_same_seen_from_its_own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(write_run(tmp_path / "run"))
    assert RunSummary.read(Path()).stage == "finished"
    assert [run.path for run in find_runs([Path()])] == [Path()]


def test_the_validation_that_chose_the_weights_counts(tmp_path):
    summary = RunSummary.read(write_run(tmp_path / "run"))
    assert summary.dev is not None
    assert summary.dev.epoch == 2
    assert summary.dev.metrics == metrics(320.0)


@pytest.mark.parametrize("read", [RunSummary.read, read_pace, history.curves])
def test_lines_of_a_log_that_lack_something_are_passed_over(tmp_path, read):
    path = write_run(tmp_path / "run")
    whole = read(path)
    events = RunDirectory(path).events
    lines = events.read_bytes().splitlines(keepends=True)
    lacking = [
        b"",
        b'{"epoch": 9, "time": 1900.0}',
        b'{"event": "epoch", "epoch": 9, "time": 1900.0}',
        b'{"event": "validation", "epoch": 9, "best": true, "time": 1900.0}',
        b'{"event": "start", "epoch": "nine", "time": 1900.0}',
        b'{"event": "start", "epoch": 9}',
        b'{"event": "start", "epoch": NaN, "time": 1900.0}',
        b'{"event": ["start"], "time": 1900.0}',
        b'{"event": "of a later version", "time": 1900.0}',
    ]
    for at, bad in enumerate(lacking):
        lines.insert(2 * at + 1, bad + b"\n")
    events.write_bytes(b"".join(lines))
    assert read(path) == whole


@pytest.mark.parametrize(
    "bad", [b'{"event": "validation", "time": 10', b"\xff\xfe\x00", b"17", b"[]"]
)
def test_a_damaged_line_of_a_log_is_named_by_its_number(tmp_path, bad):
    path = write_run(tmp_path / "run")
    events = RunDirectory(path).events
    lines = events.read_bytes().splitlines(keepends=True)
    events.write_bytes(b"".join([*lines[:3], bad + b"\n", *lines[3:]]))
    with pytest.raises(UserError, match=r"events\.jsonl, line 4: it is damaged"):
        RunSummary.read(path)


def test_lines_that_sum_up_steps_are_not_parsed(tmp_path, monkeypatch):
    steps, *end = epoch(1, 300.0)[1:]
    path = write_run(tmp_path / "run", [start(), *[steps] * 1000, *end])
    parsed, loads = [], json.loads
    monkeypatch.setattr(json, "loads", lambda line: parsed.append(line) or loads(line))
    kinds = [event["event"] for event in read_events(path)]
    assert kinds == ["start", "steps", "epoch", "validation"]
    assert len(parsed) == 4


def test_a_collapse_counts_until_a_better_validation(tmp_path):
    collapse = {"event": "collapsed", "epoch": 1, "step": 3}
    begun = [start(), collapse]
    assert RunSummary.read(write_run(tmp_path / "a", begun)).collapsed
    stuck = [*begun, *epoch(1, 10.0, best=False)]
    assert RunSummary.read(write_run(tmp_path / "b", stuck)).collapsed
    recovered = [*begun, *epoch(1, 300.0)]
    assert not RunSummary.read(write_run(tmp_path / "c", recovered)).collapsed


def test_breaks_do_not_count_as_time_spent(tmp_path):
    events = [
        {**start(), "time": 100.0},
        {**epoch(1, 1.0)[0], "time": 130.0},
        {**start(), "time": 5000.0},  # killed, and continued the next day
        {**epoch(1, 1.0)[0], "time": 5040.0},
        {"event": "mined", "seconds": 7.5, "time": 9000.0},
        {"event": "evaluated", "split": "test", "seconds": 0.5, "time": 9999.0},
    ]
    summary = RunSummary.read(write_run(tmp_path / "run", events))
    assert summary.seconds == 30 + 40 + 7.5 + 0.5
    assert summary.updated == 9999.0


def test_the_newest_test_result_of_the_own_model_on_the_first_test_set_counts(tmp_path):
    results = [
        result(50.0, split="dev"),
        result(300.0),
        result(310.0),
        result(400.0, model="abc+def"),
        result(500.0, data="another"),
    ]
    path = write_run(tmp_path / "run", results=results)
    with RunDirectory(path).results.open("a") as file:
        file.write('{"split": "test", "rsum": 1}\n{"split": "te')
    summary = RunSummary.read(path)
    assert summary.test == metrics(310.0)
    assert summary.origins["test"] == "test set"


def test_a_test_result_of_weights_that_were_replaced_since_is_not_shown(tmp_path):
    judged = {"event": "evaluated", "split": "test", "seconds": 1.0}
    events = [start(), *epoch(1, 300.0), judged, *epoch(2, 290.0, best=False)]
    path = write_run(tmp_path / "run", events, results=[result(310.0)])
    assert RunSummary.read(path).test == metrics(310.0)
    write_run(path, [*events, *epoch(3, 320.0)], results=[result(310.0)])
    assert RunSummary.read(path).test is None
    write_run(path, [*events, *epoch(3, 320.0), judged], results=[result(310.0), result(330.0)])
    assert RunSummary.read(path).test == metrics(330.0)


def test_a_test_result_is_of_the_weights_that_were_judged_last(tmp_path):
    replaced, own = result(300.0, model="old"), result(310.0, model="new")
    elsewhere = result(500.0, model="new", data="another")
    ensemble = result(400.0, model="new+old")
    path = write_run(tmp_path / "run", results=[replaced, own, elsewhere, ensemble])
    assert RunSummary.read(path).test == metrics(310.0)
    write_run(path, results=[replaced, elsewhere, ensemble])
    assert RunSummary.read(path).test is None


def test_an_imported_model_is_a_run_too(tmp_path):
    path = write_run(tmp_path / "run", [{"event": "imported", "epoch": None}])
    write_json(RunDirectory(path).origin, {"imported": {}, "data": None, "epoch": 7})
    summary = RunSummary.read(path)
    assert (summary.stage, summary.round, summary.dev) == ("imported", "one", None)


def test_runs_are_found_below_folders_each_round_once(tmp_path):
    write_whole(tmp_path / "runs" / "b")
    write_whole(tmp_path / "runs" / "deep" / "down" / "a", rounds=())
    write_run(tmp_path / "runs" / "c")
    write_run(tmp_path / "runs" / ".hidden")
    write_run(tmp_path / "runs" / "c" / "encodings")
    (tmp_path / "runs" / "data").mkdir()
    found = find_runs([tmp_path / "runs", tmp_path / "runs" / "c"])
    places = [str(run.path.relative_to(tmp_path / "runs")) for run in found]
    assert places == ["b/round-one", "b/round-two", "c", "deep/down/a"]
    assert [run.settings.loss.name for run in found] == ["online", "off_tri", "online", "off_tri"]
    assert found[-1].stage == "not started"


def test_what_cannot_be_read_is_left_out_and_named(tmp_path, capsys):
    write_run(tmp_path / "good")
    write_run(tmp_path / "broken")
    (tmp_path / "broken" / "config.toml").write_text("seed = [")
    write_run(tmp_path / "foreign")
    (tmp_path / "foreign" / "config.toml").write_text('theme = "dark"\n')
    write_run(tmp_path / "binary")
    (tmp_path / "binary" / "config.toml").write_bytes(b"\xff\xfe")
    write_run(tmp_path / "cut")
    (tmp_path / "cut" / "origin.json").write_text('{"round": ')
    write_run(tmp_path / "list")
    (tmp_path / "list" / "origin.json").write_text("[]")
    assert [run.path.name for run in find_runs([tmp_path])] == ["good"]
    warnings = capsys.readouterr().err.strip().splitlines()
    assert len(warnings) == 5
    for name in ("broken", "foreign", "binary", "cut", "list"):
        assert any(f"warning: {tmp_path / name} is left out" in line for line in warnings)


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(UserError, match="is not a folder"):
        find_runs([tmp_path / "nowhere"])
    with pytest.raises(UserError, match=r"it has no config\.toml"):
        RunSummary.read(tmp_path)


def two_runs(tmp_path):
    write_whole(tmp_path / "a", results=[result(300.0)])
    other = replace(RECIPE.with_loss("off_quin"), seed=1)
    other = replace(other, mining=replace(other.mining, memory="2GiB"))
    write_whole(tmp_path / "b", recipe=other, results=[result(312.5)], candidates="other lists")
    return tmp_path / "a", tmp_path / "b"


def test_a_comparison_names_the_settings_and_results_that_differ(tmp_path):
    comparison = compare_runs(two_runs(tmp_path))
    assert [run.path.name for run in comparison.runs] == ["round-two", "round-two"]
    assert comparison.settings == {
        "seed": (0, 1),
        "mining.memory": (None, "2GiB"),
        "round_two.loss.name": ("off_tri", "off_quin"),
    }
    results = {row.name: row for row in comparison.results}
    assert results["test.rsum"].values == (300.0, 312.5)
    assert results["test.rsum"].differences == (None, 12.5)
    assert results["dev.rsum"].differences == (None, 0.0)
    assert comparison.origins == {"candidates": (1,)}


def test_a_comparison_distinguishes_other_data_from_data_that_are_not_known(tmp_path):
    first = write_run(tmp_path / "a", results=[result(1.0)])
    other = write_run(tmp_path / "b", results=[result(2.0, data="x")], data="x", dev="x")
    unknown = write_run(tmp_path / "c", data=None, dev=None, candidates="lists")
    comparison = compare_runs([first, other, unknown])
    assert comparison.origins == {"data": (1,), "dev": (1,), "test": (1,), "candidates": (2,)}
    assert comparison.settings == {}
    (test,) = (row for row in comparison.results if row.name == "test.rsum")
    assert test.values == (1.0, 2.0, None)
    assert test.differences == (None, 1.0, None)


def test_a_whole_run_is_compared_by_the_round_that_it_ends_with(tmp_path):
    baseline = write_whole(
        tmp_path / "online", recipe=replace(RECIPE, rounds="one"), rounds=("one",)
    )
    begun = write_whole(tmp_path / "begun", rounds=("one",))
    assert RunSummary.read(baseline).path == baseline / "round-one"
    with pytest.raises(UserError, match=r"has no round-two to look at"):
        compare_runs([baseline, begun])
    with pytest.raises(UserError, match="two runs or more"):
        compare_runs([baseline])


def test_a_real_run_is_listed_with_its_own_results(tmp_path, precomp):
    before = time.time()
    outcome = run_recipe(tmp_path / "run", small_recipe(precomp))
    one, two = find_runs([tmp_path / "run"])
    assert [run.stage for run in (one, two)] == ["finished", "finished"]
    assert [run.epochs_done for run in (one, two)] == [3, 3]
    assert [run.settings.loss.name for run in (one, two)] == ["online", "adap_off_quin"]
    assert one.test is None
    assert two.test == {name: outcome[name] for name in METRICS}
    assert one.origins["data"] == two.origins["data"] is not None
    assert one.origins["candidates"] is None
    assert two.origins["candidates"] is not None
    assert 0 < one.seconds + two.seconds < two.updated - before + 1
    again = run_recipe(tmp_path / "run", small_recipe(precomp))
    assert again == outcome
    assert [run.stage for run in find_runs([tmp_path / "run"])] == ["finished", "finished"]


def test_runs_are_listed_without_torch():
    code = "import sys, aoq.cli.runs, aoq.runs.summary; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.fixture
def folder(tmp_path):
    """Runs in `runs`: two whole ones, and one that has just begun and has a long name."""
    two_runs(tmp_path / "runs")
    long = tmp_path / "runs" / "a-long-name-for-a-run-of-a-whole-recipe" / "with-a-folder-inside"
    write_run(long, [start(), *epoch(1, 200.0)])
    return tmp_path


def test_the_list_for_programs_is_json_in_the_order_asked_for(folder):
    def listed(*flags):
        return json.loads(aoq("runs", "--json", *flags, cwd=folder).stdout)

    rows = {row["path"]: row for row in listed()}
    assert [*rows] == [str(path) for path in sorted(map(Path, rows))]
    assert rows["runs/b/round-two"]["test"]["rsum"] == 312.5
    assert rows["runs/b/round-two"]["seed"] == 1
    assert rows["runs/a/round-one"]["dev"]["epoch"] == 2
    by_test = [row["test"]["rsum"] for row in listed("--sort", "test") if row["test"]]
    assert by_test == [312.5, 312.5, 300.0, 300.0]
    assert listed("--sort", "test")[-1]["test"] is None
    assert listed("--sort", "dev")[-1]["dev"]["rsum"] == 200.0
    seconds = [row["seconds"] for row in listed("--sort", "time")]
    assert seconds == sorted(seconds, reverse=True)


def test_a_pipe_gets_every_run_on_one_line_with_everything(folder, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    lines = aoq("runs", cwd=folder).stdout.splitlines()
    (line,) = (line for line in lines if "runs/b/round-two" in line)
    assert line.split()[:5] == ["runs/b/round-two", "scan", "off_quin", "1", "finished"]
    assert "320.0 @2" in line
    assert "312.5 10.0 10.0" in line
    (line,) = (line for line in lines if "with-a-folder-inside" in line)
    assert "stopped 2/3" in line
    assert not any("left out" in line for line in lines)


@pytest.mark.parametrize("columns", [80, 100])
def test_a_terminal_is_never_too_narrow_for_the_results(folder, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    said = aoq("runs", cwd=folder).stdout
    assert max(map(len, said.splitlines())) <= columns
    assert "312.5 10.0 10.0" in said
    assert "stopped 2/3" in said
    assert "off_quin" in said
    assert "a-long-name-for-a-run-of-a-whole-recipe/with-a-folder-inside" in said


@pytest.mark.parametrize(
    ("events", "state"),
    [
        ([start(), *epoch(1, 9.0)], "stopped 2/3"),
        ([start(), *epoch(1, 9.0), {"event": "collapsed", "epoch": 2}], "collapsed 2/3"),
        ([start(), *epoch(1, 9.0), {"event": "not_finite", "epoch": 2}], "not finite 2/3"),
        ([start(), *epoch(1, 9.0), {"event": "stopped_early", "epoch": 1}], "stopped early"),
        (FINISHED, "finished"),
    ],
)
def test_the_list_says_what_became_of_a_run(tmp_path, events, state):
    write_run(tmp_path / "runs" / "[odd] name", events)
    said = aoq("runs", cwd=tmp_path).stdout
    assert f" {state} " in said
    assert "runs/[odd] name" in said


@pytest.mark.parametrize("locks", ["runs/whole/round-one", "runs/whole"])
def test_a_run_that_a_process_is_at_differs_from_one_that_was_stopped(tmp_path, locks):
    run = tmp_path / "runs" / "whole" / "round-one"
    write_run(run, [start(), *epoch(1, 9.0)])
    with locked(tmp_path / locks):
        assert " epoch 2/3 " in aoq("runs", cwd=tmp_path).stdout
        assert RunSummary.read(run).under_way
    assert " stopped 2/3 " in aoq("runs", cwd=tmp_path).stdout
    assert RunSummary.read(run).under_way is False


def test_where_there_are_no_runs_a_sentence_says_how_to_make_one(tmp_path):
    done = aoq("runs", cwd=tmp_path)
    assert done.returncode == 0
    assert "there are no runs in runs" in done.stderr
    assert json.loads(aoq("runs", "--json", cwd=tmp_path).stdout) == []
    assert_refused(aoq("runs", "nowhere", cwd=tmp_path), "nowhere is not a folder")


def test_a_comparison_is_printed_side_by_side(folder, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    done = aoq("runs", "compare", "runs/a", "runs/b", cwd=folder)
    assert done.returncode == 0
    rows = [line.split() for line in done.stdout.splitlines()]
    assert ["A", "runs/a/round-two"] in rows
    assert ["round_two.loss.name", "off_tri", "off_quin"] in rows
    assert ["mining.memory", "none", "2GiB"] in rows
    assert ["test", "rsum", "300.0", "312.5", "+12.5"] in rows
    assert "B drew from candidate lists, unlike A." in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    read = json.loads(aoq("runs", "compare", "runs/a", "runs/b", "--json", cwd=folder).stdout)
    assert read["settings"]["seed"] == [0, 1]
    assert read["results"]["test.rsum"] == {
        "values": [300.0, 312.5],
        "differences": [None, 12.5],
    }
    assert read["other_origins"] == {"candidates": [1]}


def test_a_comparison_of_equals_says_that_no_setting_differs(folder):
    done = aoq("runs", "compare", "runs/a", "runs/a/round-two", cwd=folder)
    assert "no setting differs" in done.stdout
    assert "unlike" not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "needs two runs or more"),
        (["runs/a"], "needs two runs or more"),
        (["runs/a", "nowhere"], "nowhere is not a run"),
        (["runs", "runs/a"], "runs is not a run"),
    ],
)
def test_what_cannot_be_compared_is_refused(folder, arguments, sentence):
    assert_refused(aoq("runs", "compare", *arguments, cwd=folder), sentence)
