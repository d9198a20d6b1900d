"""The main job, from drawn pictures to the report, and after a kill."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from aoq.experiments.demo import SETTINGS, folder_of, run_demo
from aoq.mining.candidates import CandidateLists
from aoq.recipes import load_recipe
from aoq.runs.directory import RunDirectory
from aoq.runs.judge import evaluate_run, stored_result
from aoq.training.two_rounds import run_recipe
from tests.training.cases import small_recipe

README = Path(__file__).resolve().parents[2] / "README.md"


@pytest.fixture
def two_threads():
    """Two jobs at a time, as on two cores."""
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


@pytest.mark.usefixtures("two_threads")
def test_the_demo_goes_from_pictures_to_a_report_and_can_be_continued(tmp_path):
    out = tmp_path / "demo"
    run_demo(out, size="tiny")
    recipe = load_recipe(RunDirectory(out).config)
    results = {
        title: stored_result(folder_of(out, recipe, loss), split="test")
        for title, loss in SETTINGS.items()
    }
    assert all(0 < result["rsum"] <= 600 for result in results.values())
    CandidateLists.load(RunDirectory(out).candidates)

    page = RunDirectory(out).report.read_text()
    for title, result in results.items():
        assert title in page
        assert f"{result['rsum']:.1f}" in page
    assert page.count('src="data:image/jpeg;base64,') >= 12
    assert 'src="data:image/svg+xml;base64,' in page
    assert not re.search(r'(?:src|href)="(?!data:|#)', page), "something from outside"

    (out / "report.html").unlink()
    models = {path: path.stat().st_mtime_ns for path in out.rglob("model.safetensors")}
    again = run_demo(out, size="tiny")
    assert RunDirectory(out).report.is_file()
    assert {row.label: row.trainings[0].figures for row in again.rows} == results
    assert models == {path: path.stat().st_mtime_ns for path in out.rglob("model.safetensors")}


def test_the_library_use_of_the_readme_works(tmp_path):
    code = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)[0]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    judged = evaluate_run(tmp_path / "runs/first", data=tmp_path / "data/scenes")
    assert float(done.stdout) == pytest.approx(judged.rsum, abs=1e-3)


def test_events_are_json_lines_with_time_and_kind(tmp_path, precomp):
    run_recipe(tmp_path / "run", small_recipe(precomp))
    for log in (tmp_path / "run").rglob("events.jsonl"):
        for line in log.read_text().splitlines():
            event = json.loads(line)
            assert event["time"] > 0
            assert event["event"] in {"start", "steps", "epoch", "validation", "mined", "evaluated"}
