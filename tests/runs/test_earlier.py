"""Data sets, runs and indexes that earlier versions wrote still open, with the same results."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from aoq.data.checks.dataset import check_dataset
from aoq.mining.candidates import CandidateLists
from aoq.retrieval.matcher import Matcher
from aoq.runs.best_round import best_round
from aoq.runs.checkpoint import load_run
from aoq.runs.directory import RunDirectory
from aoq.storage import read_json_lines
from tests.commands import aoq

WRITTEN = sorted((Path(__file__).parent / "earlier").glob("*.tar.xz"))
"By the version before manifests, and by the one before modules were moved."


@pytest.fixture(params=WRITTEN, ids=lambda path: path.name.split(".")[0])
def folder(request, tmp_path):
    with tarfile.open(request.param) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


def test_a_data_set_opens_without_a_fault(folder):
    assert check_dataset(folder / "data").errors == ()


def test_a_run_is_judged_as_it_was(folder):
    run = folder / "run"
    judged = aoq("evaluate", run, "--round", "two", "--data", folder / "data", "--json")
    assert judged.returncode == 0, judged.stderr
    before, after = read_json_lines(RunDirectory(run / "round-two").results)
    assert before == after
    assert best_round(run).used == "two"
    assert load_run(run).model_hash == before["model"]
    assert aoq("runs", run).returncode == 0


def test_lists_fit_the_data_set(folder):
    lists = RunDirectory(folder / "run").candidates
    CandidateLists.load(lists)
    shown = aoq("mine", "inspect", lists, "--data", folder / "data")
    assert shown.returncode == 0, shown.stderr


def test_an_index_is_searched(folder):
    answer = Matcher.load(folder / "run").search("red ball", top=3)
    assert len(answer.hits) == 3


def test_a_finished_run_is_found_finished(folder):
    run = folder / "run"
    model = RunDirectory(run / "round-two").model.read_bytes()
    done = aoq("run", run / "config.toml", "--out", run, "--data", folder / "data")
    assert done.returncode == 0, done.stderr
    assert "finished before" in done.stderr
    assert RunDirectory(run / "round-two").model.read_bytes() == model
