"""What is said of a model beside CCA and bags of words on the same data."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from aoq.config import ModelConfig, Recipe, RoundConfig
from aoq.data.splits import open_dataset
from aoq.runs.gate import Gate, gates_among, gates_beside
from aoq.runs.judge import result_on
from aoq.runs.summary import find_runs
from aoq.training.two_rounds import run_recipe
from tests.commands import aoq, assert_refused
from tests.conftest import write_precomp


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A CCA, a bag of words and a VSE on the same data, all judged on test."""
    folder = tmp_path_factory.mktemp("gate")
    data = write_precomp(folder / "precomp", images=24)
    recipe = Recipe(
        data=str(data),
        rounds="one",
        min_word_count=1,
        model=ModelConfig(joint_width=4, word_width=4, head_width=4),
        round_one=RoundConfig(epochs=1, batch_size=16),
    )
    for name in ("cca", "bow", "vse"):
        run_recipe(folder / "runs" / name, replace(recipe, model=replace(recipe.model, name=name)))
    return folder


def rsum(folder: Path, name: str, split: str = "test") -> float:
    path = folder / "runs" / name / "round-one"
    result = result_on(path, open_dataset(folder / "precomp", split))
    assert result is not None
    return result["rsum"]


def test_the_gates_of_a_run_are_the_simple_models_beside_it(trained):
    dataset = open_dataset(trained / "precomp", "test")
    runs = trained / "runs"
    expected = {
        name: Gate(runs / name / "round-one", name, rsum(trained, name)) for name in ("cca", "bow")
    }
    for run in (runs / "vse", runs / "vse" / "round-one"):
        assert {gate.model: gate for gate in gates_beside([run], dataset)} == expected
    assert gates_beside([runs / "vse"], open_dataset(trained / "precomp", "dev")) == []


def test_evaluate_says_whether_a_run_is_above_them(trained):
    run = trained / "runs" / "vse"
    done = aoq("evaluate", run)
    for name in ("CCA", "BOW"):
        simple = rsum(trained, name.lower())
        answer = "yes" if rsum(trained, "vse") > simple else "no"
        assert f"above {name}: {answer}, rsum {rsum(trained, 'vse'):.1f} against" in done.stderr
    found = json.loads(aoq("evaluate", run, "--json").stdout)["above"]
    assert set(found) == {"cca", "bow"}
    assert found["bow"]["above"] is (rsum(trained, "vse") > rsum(trained, "bow"))
    assert "above" not in json.loads(aoq("evaluate", run, "--split", "dev", "--json").stdout)


def test_a_run_is_no_gate_of_its_own(trained):
    found = json.loads(aoq("evaluate", trained / "runs" / "cca", "--json").stdout)
    assert set(found["above"]) == {"bow"}


def test_a_named_gate_is_judged_where_it_has_to_be(trained, tmp_path):
    shutil.copytree(trained / "runs" / "vse", tmp_path / "vse")
    shutil.copytree(trained / "runs" / "cca", tmp_path / "elsewhere" / "cca")
    gate = tmp_path / "elsewhere" / "cca"
    done = aoq("evaluate", tmp_path / "vse", "--split", "dev", "--gate", gate, "--json")
    found = json.loads(done.stdout)
    assert found["above"]["cca"]["above"] is (found["rsum"] > found["above"]["cca"]["rsum"])
    assert result_on(gate / "round-one", open_dataset(trained / "precomp", "dev")) is not None
    assert_refused(aoq("evaluate", gate, "--gate", tmp_path / "nothing"), "no folder")


def test_a_neighbour_that_cannot_be_read_is_left_out(trained, tmp_path):
    shutil.copytree(trained / "runs", tmp_path / "runs")
    (tmp_path / "runs" / "cca" / "round-one" / "config.toml").write_text("model = 3\n")
    found = json.loads(aoq("evaluate", tmp_path / "runs" / "vse", "--json").stdout)
    assert set(found["above"]) == {"bow"}


def test_the_list_of_runs_has_a_column_for_it(trained):
    found = find_runs([trained / "runs"])
    above = {path.parent.name: each for path, each in gates_among(found).items()}
    assert set(above) == {"cca", "bow", "vse"}
    assert set(above["vse"]) == {"cca", "bow"}
    assert above["cca"] == {"bow": rsum(trained, "cca") > rsum(trained, "bow")}
    listed = aoq("runs", trained / "runs")
    assert "CCA, BOW" in listed.stdout
    alone = aoq("runs", trained / "runs" / "vse")
    assert "CCA, BOW" not in alone.stdout
    lines = json.loads(aoq("runs", trained / "runs", "--json").stdout)
    assert {line["model"]: line["above"] for line in lines} == above
