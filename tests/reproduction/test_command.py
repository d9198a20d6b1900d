"""`python -m reproduction`: what it lists is there, and reports have what the paper says."""

from __future__ import annotations

import subprocess
import sys

from reproduction import EXPERIMENTS, ROOT
from reproduction.__main__ import experiment, power


def test_every_experiment_is_listed(capsys):
    experiment()
    listed = capsys.readouterr().out
    assert all(name in listed for name in EXPERIMENTS)


def test_results_of_the_repository_count_as_done(capsys):
    experiment("table4", list_=True)
    printed = capsys.readouterr()
    assert "VSRN (batch 96)" in printed.out
    assert "-  " not in printed.out
    assert "next: python -m reproduction table4" in printed.err


def test_a_report_without_runs_has_tables_and_claims(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("aoq.experiments.rows._RESAMPLES", 100)  # of intervals; claims need none
    experiment("table4", out=tmp_path / "runs", report=tmp_path / "report")
    assert "What holds" in capsys.readouterr().out
    claims = (tmp_path / "report/tables/claims.md").read_text()
    assert "a larger batch gains nothing" in claims
    assert "not decided" in claims  # the ranks beside the results are enough
    results = ROOT / "results/flickr8k-table4/tables"
    assert claims == (results / "claims.md").read_text()


def test_the_power_of_every_claim_is_told_before_anything_is_trained(capsys):
    power("table4", seeds=3)
    three = capsys.readouterr().out
    assert "a larger batch gains nothing" in three
    assert "| equal, within 5 | 3 |" in three
    assert "| +3 | 3 |" in three
    power("table4", seeds=40)
    assert "| +3 | 40 | 100 %" in capsys.readouterr().out


def test_what_the_seeds_can_find_is_told_for_an_experiment(capsys):
    experiment("table4", plan=True)
    printed = capsys.readouterr().out
    assert "12 seeds" in printed or "13 seeds" in printed or "14 seeds" in printed
    assert "measured" in printed


def test_an_unknown_experiment_is_a_mistake_of_one_sentence():
    command = [sys.executable, "-m", "reproduction", "table9"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "table1" in done.stderr
    assert "Traceback" not in done.stderr
