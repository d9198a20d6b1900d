"""Jobs side by side: failures stay alone, and epochs are read from logs."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Event
from types import SimpleNamespace

from aoq.config import RoundConfig
from aoq.evaluation.tables import METRICS
from aoq.experiments import jobs
from aoq.experiments.jobs import Job, JobRound, _EpochWatch, run_jobs
from aoq.progress import EventLog
from aoq.runs.directory import RunDirectory


def test_a_job_whose_process_dies_fails_alone():
    values = {}
    problems = run_jobs(
        [
            Job("dies", partial(os._exit, 3)),
            Job("waits", partial(abs, -2), after=("dies",)),
            Job("a defect", partial(int, "three")),
            Job("goes on", partial(abs, -1)),
        ],
        title="jobs",
        at_once=2,
        when_done=lambda job, value: values.update({job.name: value}),
    )
    assert values == {"goes on": 1}
    assert problems["dies"] == "its process ended with code 3."
    assert problems["waits"] == "skipped, because it needs dies."
    assert "ValueError: invalid literal" in problems["a defect"]


def test_an_empty_line_of_a_log_stops_no_job(tmp_path):
    RunDirectory(tmp_path).events.write_text('{"epoch": 1}\n{"event": "validation"}\n')
    rounds = (JobRound("round one", tmp_path, RoundConfig(epochs=1)),)
    jobs = [Job(name, partial(abs, -1), rounds) for name in ("one", "two")]
    assert run_jobs(jobs, title="jobs", at_once=2) == {}


def test_the_epochs_of_a_warm_up_are_labelled(tmp_path, capsys):
    """Their weights give way to those of the first epoch after them, however good they are."""
    figures = dict.fromkeys(METRICS, 1.0)
    round_ = JobRound("round one", tmp_path, RoundConfig(epochs=2, warmup_epochs=1))
    watch = _EpochWatch([Job("job", print, (round_,))])
    log = EventLog(RunDirectory(tmp_path).events)
    for epoch in (1, 2):
        log.write("epoch", epoch=epoch, seconds=1.0, steps=1)
        log.write("validation", epoch=epoch, best=True, **figures)
    watch.look(watch.jobs)
    first, second = capsys.readouterr().err.splitlines()
    assert first.endswith("1.0 t2i  (warm-up)")
    assert second.endswith("1.0 t2i  (best)")


def test_a_process_that_starts_while_others_stop_is_stopped_too(monkeypatch):
    stopping, stopped, processes = Event(), Event(), []
    monkeypatch.setattr(jobs, "say", lambda sentence: stopping.set())

    def start_late():
        stopping.wait()
        time.sleep(0.2)
        processes.append(SimpleNamespace(terminate=stopped.set, kill=lambda: None))
        return stopped.wait(timeout=5)

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(start_late)
        jobs._stop(processes, [running])
    assert running.result()
