"""Commands and the library use the better round of a run, say so, and take the other if asked."""

from __future__ import annotations

import json
import shutil

import pytest

import aoq as library
from aoq.errors import UserError
from aoq.retrieval.build import build_index
from aoq.retrieval.matcher import Matcher
from aoq.runs.checkpoint import hash_model, load_run
from aoq.runs.directory import RunDirectory
from aoq.storage import read_json_lines, write_text
from aoq.training.two_rounds import run_recipe
from tests.commands import aoq
from tests.training.cases import small_recipe

ONE_IS_USED = "round one is used (dev rsum 268.1; round two 194.3); --round two takes the other"


def let_dev_be(run, **figures):
    """Rewrite the validations of each round's log."""
    for name, rsum in figures.items():
        log = RunDirectory(run / f"round-{name}").events
        lines = [
            line | {"rsum": rsum} if line["event"] == "validation" else line
            for line in read_json_lines(log)
        ]
        write_text(log, "".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture(scope="module")
def trained(world, tmp_path_factory):
    run = tmp_path_factory.mktemp("rounds") / "run"
    run_recipe(run, small_recipe(world.data))
    let_dev_be(run, one=268.1, two=194.3)
    build_index(run)
    return run


@pytest.fixture
def run(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "run")


def test_the_better_round_is_indexed_and_searched(run):
    assert (run / "round-one" / "index" / "index.json").is_file()
    assert not (run / "round-two" / "index").exists()
    done = aoq("search", run, "red", "--top", 1)
    assert done.returncode == 0, done.stderr
    assert ONE_IS_USED in " ".join(done.stderr.split())


def test_each_command_prints_the_choice_and_takes_the_other_round_if_asked(run, world, tmp_path):
    photo = world.photos / "test-0.png"
    (tmp_path / "lines.txt").write_text("red\n", encoding="utf-8")
    commands = [
        ("evaluate", run, "--json"),
        ("index", run, "--out", tmp_path / "index", "--force"),
        ("score", run, photo, "red"),
        ("encode", run, "--texts", tmp_path / "lines.txt", "--out", tmp_path / "x.npy", "--force"),
        ("mine", run, "--out", tmp_path / "lists.safetensors", "--force"),
        ("mine", "share", run, "--batch-sizes", 4, "--json"),
    ]
    for command in commands:
        best, asked = aoq(*command), aoq(*command, "--round", "two")
        assert (best.returncode, asked.returncode) == (0, 0), best.stderr + asked.stderr
        assert ONE_IS_USED in " ".join(best.stderr.split()), command
        told = " ".join(asked.stderr.split())
        assert "(dev rsum 194.3; round one 268.1)" in told, command


def test_a_figure_is_that_of_the_round_that_is_said_to_be_used(run):
    whole, named = aoq("evaluate", run, "--json"), aoq("evaluate", run / "round-one", "--json")
    assert whole.stdout == named.stdout
    asked = aoq("evaluate", run, "--round", "two", "--json")
    assert asked.stdout == aoq("evaluate", run / "round-two", "--json").stdout


def test_an_index_of_the_other_round_is_named_with_what_to_do(run):
    let_dev_be(run, two=300.0)
    done = aoq("search", run, "red")
    told = " ".join(done.stderr.split())
    assert done.returncode == 2
    assert "round two is the better one on dev" in told
    assert "--round one" in told
    assert aoq("search", run, "red", "--round", "one").returncode == 0
    elsewhere = aoq("search", run, "red", "--index", run / "round-one" / "index")
    assert "was made with round one" in elsewhere.stderr


def test_the_library_takes_the_better_round_too(run):
    assert Matcher.load(run).run == run / "round-one"
    assert load_run(run).model_hash == hash_model(run / "round-one")
    assert load_run(run, round="two").model_hash == hash_model(run / "round-two")
    with pytest.raises(UserError, match="round one, and round two was asked for"):
        Matcher.load(run, round="two")
    build_index(run, round="two")
    assert Matcher.load(run, round="two").run == run / "round-two"
    assert library.evaluate_run(run) == library.evaluate_run(run / "round-one")
    assert library.evaluate_run(run, round="two") == library.evaluate_run(run / "round-two")


def test_a_page_is_served_of_the_better_round(run, monkeypatch):
    served = []

    def stop(matchers, **options):
        served.extend(matcher.run for matcher in matchers)
        raise UserError("enough")

    monkeypatch.setattr("aoq.web.app.make_app", stop)
    done = aoq("serve", run, "--port", 0)
    assert "enough" in done.stderr
    assert ONE_IS_USED in " ".join(done.stderr.split())
    assert served == [run / "round-one"]


def test_the_list_of_runs_marks_the_better_round(run):
    rows = json.loads(aoq("runs", run, "--json").stdout)
    assert [(row["round"], row["best"]) for row in rows] == [("one", True), ("two", False)]
    assert "finished, best" in aoq("runs", run).stdout


def test_a_run_says_at_its_end_that_round_two_is_worse_and_what_to_try(run):
    done = aoq("run", run / "config.toml", "--out", run)
    told = " ".join(done.stderr.split())
    assert done.returncode == 0, done.stderr
    assert ONE_IS_USED in told
    assert "--round-two.start-from round_one" in told
    let_dev_be(run, two=300.0)
    better = aoq("run", run / "config.toml", "--out", run)
    assert "worse than round one" not in better.stderr
    assert "round two is used" in better.stderr
