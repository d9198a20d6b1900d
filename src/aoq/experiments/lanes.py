"""Jobs side by side: as many at a time as there are cores for.

The models of small experiments gain little from a second core; two jobs on two cores take half the
time. Each job is a process of its own, so that what one does, even its death, leaves the others
alone. Jobs are silent: the process that started them shows one bar and a line for each epoch,
which it reads from their logs. They end with it, and when it is asked to end, it lets them save.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import connection
from pathlib import Path
from typing import Any

import torch

from aoq.config import RoundConfig
from aoq.errors import UserError
from aoq.experiments.events import ended_epochs, read_events
from aoq.progress import be_silent, progress_bar, say, say_epoch

_LOOK_EVERY_SECONDS = 0.5
# What every round imports, and takes seconds for.
_PRELOADED = ["aoq.training.two_rounds", "lightning_fabric", "torch.utils.tensorboard"]


@dataclass(frozen=True)
class Part:
    """A round that a job trains, as people are told of it."""

    label: str
    folder: Path
    settings: RoundConfig


@dataclass(frozen=True)
class Job:
    """Something to do, once others are done."""

    name: str
    work: Callable[[], Any]
    "What another process can be given: a function of a module, or a `partial` of one."
    parts: tuple[Part, ...] = ()
    "The rounds that it trains."
    after: tuple[str, ...] = ()
    "Names of the jobs that have to be done before."

    @property
    def epochs(self) -> int:
        return sum(part.settings.epochs for part in self.parts)


@dataclass(frozen=True)
class JobResult:
    """What came of a job: a value, or what went wrong."""

    value: Any = None
    problem: str | None = None


def run_side_by_side(
    jobs: Sequence[Job],
    *,
    title: str,
    lanes: int | None = None,
    when_done: Callable[[Job, Any], None] = lambda job, value: None,
) -> dict[str, str]:
    """All jobs in their order, several at a time; what went wrong, by the name of the job.

    A job that fails is told, those that wait for it are left out, the others go on. Without
    `lanes` there are as many as cores; on a GPU, which one round fills, there is one. `when_done`
    is called here, with what the job's work gave.
    """
    cores = torch.get_num_threads()
    if lanes is None:
        lanes = 1 if torch.cuda.is_available() else cores
    lanes = max(1, min(lanes, len(jobs)))
    queue = _Queue(list(jobs), when_done)
    if lanes == 1:
        while (job := queue.next()) is not None:
            say(job.name)
            queue.end(job, _attempt(job.work))
    else:
        _share_out(queue, lanes=lanes, threads=max(1, cores // lanes), title=title)
    return queue.problems


class _Queue:
    """The jobs that wait, in order, and what came of the others."""

    def __init__(self, jobs: list[Job], when_done: Callable[[Job, Any], None]) -> None:
        self.waiting = jobs
        self.when_done = when_done
        self.finished: list[Job] = []
        self.done: set[str] = set()
        self.problems: dict[str, str] = {}

    def next(self) -> Job | None:
        """The first job that has nothing to wait for, taken out."""
        for job in self.waiting:
            if self.done.issuperset(job.after):
                self.waiting.remove(job)
                return job
        return None

    def end(self, job: Job, result: JobResult) -> None:
        self.finished.append(job)
        if result.problem is None:
            self.done.add(job.name)
            self.when_done(job, result.value)
        else:
            self.problems[job.name] = result.problem
            say(f"{job.name} failed: {result.problem}")
            self._leave_out(job.name)

    def _leave_out(self, name: str) -> None:
        while job := next((job for job in self.waiting if name in job.after), None):
            self.waiting.remove(job)
            self.end(job, JobResult(problem=f"left out, because it needs {name}."))


def _attempt(work: Callable[[], Any]) -> JobResult:
    try:
        return JobResult(work())
    except UserError as error:
        return JobResult(problem=" ".join(error.problems))
    except OSError as error:
        return JobResult(problem=f"{error}.")
    except Exception:  # a defect ends its job only, and is told in full
        return JobResult(problem=traceback.format_exc())


@dataclass(frozen=True)
class _Lane:
    """A job under way."""

    job: Job
    process: multiprocessing.process.BaseProcess
    results: connection.Connection

    @classmethod
    def start(cls, job: Job, *, threads: int) -> _Lane:
        context = _context()
        receiving, sending = context.Pipe(duplex=False)
        process = context.Process(target=_run_in_lane, args=(job.work, sending, threads))
        process.start()
        sending.close()
        return cls(job, process, receiving)

    def send(self, number: int) -> None:
        """Signal the process, also where who forked it was signalled first and is no more."""
        with suppress(ProcessLookupError):
            if self.process.pid is not None:
                os.kill(self.process.pid, number)

    def result(self) -> JobResult | None:
        """What came of the job; none while it is under way."""
        if not self.results.poll():
            return None
        try:
            result = self.results.recv()
        except EOFError:
            self.process.join()
            result = JobResult(problem=f"its process ended with code {self.process.exitcode}.")
        assert isinstance(result, JobResult)
        self.process.join()
        self.results.close()
        return result


def _context() -> Any:
    """Processes that start at once, with what all jobs import; afresh where that cannot be."""
    if sys.platform == "win32" or torch.cuda.is_available():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    return context


def _share_out(queue: _Queue, *, lanes: int, threads: int, title: str) -> None:
    epochs = sum(job.epochs for job in queue.waiting)
    running: list[_Lane] = []
    try:
        with progress_bar(title, total=epochs, unit="epochs") as update:
            watch = _EpochWatch(queue.waiting)
            while True:
                while len(running) < lanes and (job := queue.next()) is not None:
                    running.append(_Lane.start(job, threads=threads))
                if not running:
                    return
                connection.wait([lane.results for lane in running], _LOOK_EVERY_SECONDS)
                results = {lane.job.name: lane.result() for lane in running}
                watch.look([lane.job for lane in running])
                for lane in list(running):
                    if (result := results[lane.job.name]) is not None:
                        running.remove(lane)
                        queue.end(lane.job, result)
                update(advance=watch.news(queue.finished))
    except BaseException:
        _stop(running)
        raise


def _stop(running: Sequence[_Lane]) -> None:
    """Let rounds save the step under way; a second signal does not wait for that."""
    if running:
        say("stopping after the steps under way; a second signal stops at once")
    try:
        for lane in running:
            lane.send(signal.SIGTERM)
        for lane in running:
            lane.results.poll(None)
    finally:
        for lane in running:
            lane.process.kill()


def _run_in_lane(work: Callable[[], Any], results: connection.Connection, threads: int) -> None:
    if hasattr(os, "setpgrp"):
        os.setpgrp()  # Ctrl-C is for the process that started this one, which passes it on once
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    be_silent()
    results.send(_attempt(work))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


class _EpochWatch:
    """How far jobs are, read from the logs of their rounds."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.jobs = tuple(jobs)
        self.counted = 0
        self.seen = {
            part.folder: ended_epochs(read_events(part.folder))
            for job in jobs
            for part in job.parts
        }

    def look(self, jobs: Sequence[Job]) -> None:
        """Say a line for each epoch of some jobs that has ended since the last look."""
        for part in (part for job in jobs for part in job.parts):
            epochs = ended_epochs(read_events(part.folder))
            for epoch in sorted(epochs.keys() - self.seen[part.folder].keys()):
                figures, told = epochs[epoch], f"{epoch}/{part.settings.epochs}"
                note = part.settings.note_on(epoch - 1, is_best=bool(figures.get("best")))
                say_epoch(part.label, told, figures, note=note)
            self.seen[part.folder] = epochs

    def news(self, finished: Sequence[Job]) -> int:
        """Epochs since the last time; a job that has ended counts as a whole."""
        done = 0
        for job in self.jobs:
            seen = sum(len(self.seen[part.folder]) for part in job.parts)
            done += job.epochs if job in finished else seen
        advance, self.counted = done - self.counted, done
        return advance
