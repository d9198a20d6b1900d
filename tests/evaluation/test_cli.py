"""`aoq evaluate` with its flags, as people use it."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from functools import partial

import pytest

from aoq.evaluation.protocols import average, judge_folds
from aoq.recipes import load_recipe, save_recipe
from aoq.runs.best_round import best_round
from aoq.runs.encodings import ScoredSplit, open_splits
from aoq.training.inputs import open_training_data
from aoq.training.two_rounds import train_round
from tests.commands import aoq_process
from tests.conftest import write_precomp
from tests.training.cases import small_recipe

aoq = partial(aoq_process, env={"COLUMNS": "120"})


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two trainings on the same data, with different seeds."""
    folder = tmp_path_factory.mktemp("runs")
    data = write_precomp(folder / "precomp", images=24)
    for seed in (0, 1):
        recipe = small_recipe(data, seed=seed)
        train_round(folder / f"run-{seed}", recipe, open_training_data(recipe), which="one")
    return folder / "run-0", folder / "run-1"


def judged(parts, *, folds):
    return {
        part.runs[0] if len(part.runs) == 1 else "ensemble": average(
            judge_folds(part.scorer, part.encoded, part.dataset.positives, folds=folds)
        ).as_dict()
        for part in parts
    }


def test_folds_judge_each_run_and_the_ensemble_side_by_side(runs):
    done = aoq("evaluate", *runs, "--folds", 3, "--json")
    assert done.returncode == 0, done.stderr
    parts = open_splits(runs, split="test")
    expected = judged([*parts, ScoredSplit.ensemble(parts)], folds=3)
    found = json.loads(done.stdout)
    assert list(found) == [*map(str, runs), "ensemble"]
    for name, figures in expected.items():
        assert found[str(name)] == {**figures, "folds": 3}
    whole = json.loads(aoq("evaluate", runs[0], "--json").stdout)
    assert whole["t2i_mean_rank"] > found[str(runs[0])]["t2i_mean_rank"]


def test_a_folder_of_rounds_stands_for_one_of_them(runs, tmp_path):
    for name, run in zip(("round-one", "round-two"), runs, strict=True):
        shutil.copytree(run, tmp_path / "my run" / name)
    found = aoq("evaluate", tmp_path / "my run", "--round", "two", "--json")
    last = aoq("evaluate", runs[1], "--json")
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout) == json.loads(last.stdout)
    mined = aoq(
        "mine", tmp_path / "my run", "--round", "two", "--depth-texts", 5, "--depth-images", 3
    )
    lists = tmp_path / "my run/round-two/candidates.safetensors"
    assert mined.returncode == 0, mined.stderr
    assert lists.is_file()
    assert f"aoq mine inspect '{lists}'" in " ".join(mined.stderr.split())
    same = aoq("evaluate", tmp_path / "my run", best_round(tmp_path / "my run").path, "--paired")
    assert "is given twice" in same.stderr


def test_an_ensemble_is_of_different_runs_and_does_not_take_the_place_of_one(runs, tmp_path):
    twice = aoq("evaluate", runs[0], runs[1], runs[0])
    assert (twice.returncode, "is given twice" in twice.stderr) == (2, True)
    shutil.copytree(runs[0], tmp_path / "ensemble")
    hidden = aoq("evaluate", "ensemble", runs[1], cwd=tmp_path)
    assert (hidden.returncode, "name it ./ensemble/" in hidden.stderr) == (2, True)
    alone = aoq("evaluate", "ensemble", "--json", cwd=tmp_path)
    assert alone.stdout == aoq("evaluate", runs[0], "--json").stdout


def test_a_round_under_way_is_judged_with_a_word_about_it(runs, tmp_path):
    shutil.copytree(runs[0], tmp_path / "run" / "round-one")
    recipe = load_recipe(runs[0] / "config.toml")
    recipe = replace(recipe, round_one=replace(recipe.round_one, epochs=50))
    save_recipe(recipe, tmp_path / "run" / "round-one" / "config.toml")
    done = aoq("evaluate", tmp_path / "run")
    told = " ".join(done.stderr.split())
    assert "has no round-two yet" in told
    assert "has trained 3 of 50 epochs" in told
    finished = aoq("evaluate", runs[0])
    assert "taken" not in finished.stderr


def test_only_figures_of_the_whole_split_are_noted_in_the_run(runs):
    results = runs[1] / "results.jsonl"
    before = results.read_text() if results.exists() else ""
    aoq("evaluate", runs[1], "--folds", 2)
    assert (results.read_text() if results.exists() else "") == before
    aoq("evaluate", runs[1])
    assert len(results.read_text()) > len(before)


def test_intervals_and_cross_retrieval_ranks_come_with_the_figures(runs):
    done = aoq("evaluate", runs[0], "--bootstrap", 200, "--cross", "--json")
    found = json.loads(done.stdout)
    low, high = found["intervals"]["rsum"]
    assert low <= found["rsum"] <= high
    assert sum(found["cross_retrieval"]["histogram"].values()) == 60
    assert done.stdout == aoq("evaluate", runs[0], "--bootstrap", 200, "--cross", "--json").stdout
    shown = aoq("evaluate", runs[0], "--bootstrap", 200, "--cross").stdout
    for words in ("95 % intervals", "cross-retrieval rank", "101-200", "i2t median rank", "rsum"):
        assert words in shown


def test_paired_compares_the_second_run_with_the_first(runs):
    found = json.loads(aoq("evaluate", *runs, "--paired", "--json").stdout)
    one, two = map(str, runs)
    assert list(found) == [one, two]
    paired = found[two]["paired"]
    assert paired["minus"] == one
    assert paired["rsum"]["value"] == pytest.approx(
        found[two]["rsum"] - found[one]["rsum"], abs=0.01
    )
    assert paired["rsum"]["low"] <= paired["rsum"]["value"] <= paired["rsum"]["high"]
    assert 0 <= paired["rsum"]["below_zero"] <= 1
    assert "below zero" in aoq("evaluate", *runs, "--paired").stdout


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--paired"], "give two"),
        (["--folds", 13], "13 folds of 12 images are not possible"),
        (["--folds", 0], "--folds"),
        (["--bootstrap", 0], "--bootstrap"),
        (["--bootstrap", 10, "--seed", -1], "--seed"),
    ],
)
def test_mistakes_end_with_one_sentence(runs, flags, sentence):
    done = aoq("evaluate", runs[0], *flags)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


def test_extended_refuses_data_that_is_not_cocos(runs):
    pytest.importorskip("eccv_caption")
    done = aoq("evaluate", runs[0], "--extended")
    assert done.returncode == 2
    assert "the image id 'test:0' is not one of COCO's" in done.stderr


def test_intervals_are_kept_with_the_result_of_the_run(runs):
    found = json.loads(aoq("evaluate", runs[0], "--bootstrap", 50, "--json").stdout)
    kept = json.loads((runs[0] / "results.jsonl").read_text().splitlines()[-1])
    assert kept["split"] == "test"
    assert kept["rsum"] == found["rsum"]
    assert kept["intervals"] == found["intervals"]
