"""Curves and results are those of the run and of its own weights and data."""

from __future__ import annotations

import json
import shutil

from aoq.runs.checkpoint import hash_model
from aoq.runs.directory import RunDirectory
from aoq.runs.summary import RunSummary
from aoq.storage import append_json_line, read_json_lines
from aoq.web import history
from tests.web.cases import BFAN, VSRN, asked


def test_curves_are_those_of_both_rounds(client, served_runs):
    vsrn = asked(client, f"{VSRN}/curves")["rounds"]
    assert [shown["name"] for shown in vsrn] == ["round-one", "round-two"]
    dev = RunSummary.read(served_runs.vsrn).dev
    best = vsrn[1]["epochs"][dev.epoch - 1]
    assert (best["epoch"], best["rsum"]) == (dev.epoch, dev.metrics["rsum"])
    assert all(point["loss"] > 0 for shown in vsrn for point in shown["epochs"])
    assert [shown["name"] for shown in asked(client, f"{BFAN}/curves")["rounds"]] == ["round-two"]


def test_results_come_with_the_settings_that_are_not_the_papers(client, served_runs):
    answer = asked(client, f"{BFAN}/results")
    assert answer["settings"]["model.name"] == "bfan"
    assert answer["settings"]["round_two.epochs"] == 2
    assert "round_two.loss.alpha" not in answer["settings"]
    assert not {"data", "candidates"} & answer["settings"].keys(), "places on this machine"
    (result,) = answer["results"]
    expected = RunSummary.read(served_runs.bfan).test
    assert result == {"split": "test", "intervals": None, **expected}


def test_results_are_those_of_the_runs_own_weights_and_data(served_runs, tmp_path):
    path = shutil.copytree(RunSummary.read(served_runs.bfan).path, tmp_path / "run")
    run = RunDirectory(path)
    (test,) = read_json_lines(run.results)
    dev = {**test, "split": "dev", "data": json.loads(run.origin.read_text())["dev"], "rsum": 7.0}
    for line in (
        {**dev, "data": "other", "rsum": 1.0},
        dev,
        {**dev, "data": "other", "rsum": 2.0},
        {**test, "model": f"{test['model']}+{test['model']}", "rsum": 3.0},
        {**test, "data": "other", "rsum": 4.0},
        {**test, "model": "replaced", "rsum": 5.0},
    ):
        append_json_line(run.results, line)
    found = {result.split: result.model_dump() for result in history.results(path).results}
    assert found.keys() == {"test", "dev"}
    assert (found["test"]["rsum"], found["dev"]["rsum"]) == (test["rsum"], 7.0)
    run.model.write_bytes(b"trained further")
    assert history.results(path).results == []


def test_weights_are_not_read_again_for_every_visitor(served_runs, tmp_path, monkeypatch):
    path = shutil.copytree(RunSummary.read(served_runs.bfan).path, tmp_path / "run")
    hashed = []
    monkeypatch.setattr(history, "hash_model", lambda run: hashed.append(run) or hash_model(run))
    first = history.results(path)
    assert history.results(path) == first
    assert first.results
    assert hashed == [path]
