"""Jobs side by side: as many at a time as there are cores.

The models of small experiments gain little from a second core; two jobs on two cores take half the
time. Each job is a process of its own, so a failure, even a crash, leaves the others alone. Jobs
are silent: the process that started them shows one bar and a line for each epoch, which it reads
from their logs. They end with that process, and save the step under way when it is terminated.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from aoq.config import RoundConfig
from aoq.errors import UserError
from aoq.progress import be_silent, progress_bar, say, say_epoch
from aoq.runs.events import Event, ended_epochs, read_events
from aoq.threads import exit_with_parent

_POLL_SECONDS = 0.5
# What every round imports, which takes seconds.
_PRELOADED = ["aoq.training.two_rounds", "lightning_fabric", "torch.utils.tensorboard"]


@dataclass(frozen=True)
class JobRound:
    """A round that a job trains, with the label that people see."""

    label: str
    folder: Path
    settings: RoundConfig


@dataclass(frozen=True)
class Job:
    """Work to do after other jobs."""

    name: str
    work: Callable[[], Any]
    "A function of a module or a `partial` of one, so that it can be sent to another process."
    rounds: tuple[JobRound, ...] = ()
    after: tuple[str, ...] = ()
    "Names of the jobs that have to finish first."

    @property
    def epochs(self) -> int:
        return sum(round_.settings.epochs for round_ in self.rounds)


@dataclass(frozen=True)
class JobResult:
    """The value that a job returned, or the problem that ended it."""

    value: Any = None
    problem: str | None = None


def run_jobs(
    jobs: Sequence[Job],
    *,
    title: str,
    at_once: int | None = None,
    when_done: Callable[[Job, Any], None] = lambda job, value: None,
) -> dict[str, str]:
    """Run jobs in their order, several at a time; return what went wrong, by job.

    A failed job is reported and the jobs that wait for it are skipped; the others continue.
    `at_once` defaults to the number of cores, and to one on a GPU, which one round fills.
    `when_done` is called in this process with what a job returned.
    """
    cores = torch.get_num_threads()
    usual = 1 if torch.cuda.is_available() else cores
    at_once = max(1, min(at_once or usual, len(jobs)))
    queue = _Queue(list(jobs), when_done)
    if at_once == 1:
        while (job := queue.next()) is not None:
            say(job.name)
            queue.end(job, _attempt(job.work))
    else:
        _run_processes(queue, at_once=at_once, threads=max(1, cores // at_once), title=title)
    return queue.problems


class _Queue:
    """The waiting jobs in order, and the results of the others."""

    def __init__(self, jobs: list[Job], when_done: Callable[[Job, Any], None]) -> None:
        self.waiting = jobs
        self.when_done = when_done
        self.finished: list[Job] = []
        self.done: set[str] = set()
        self.problems: dict[str, str] = {}

    def next(self) -> Job | None:
        """Take out the first job that has nothing to wait for."""
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
            return
        self.problems[job.name] = result.problem
        say(f"{job.name} failed: {result.problem}")
        while needy := next((other for other in self.waiting if job.name in other.after), None):
            self.waiting.remove(needy)
            self.end(needy, JobResult(problem=f"skipped, because it needs {job.name}."))


def _attempt(work: Callable[[], Any]) -> JobResult:
    try:
        return JobResult(work())
    except UserError as error:
        return JobResult(problem=" ".join(error.problems))
    except OSError as error:
        return JobResult(problem=f"{error}.")
    except Exception:  # a defect ends its job only, with its traceback
        return JobResult(problem=traceback.format_exc())


def _context() -> Any:
    """Fork processes from a server with the imports done; spawn them where that is unsafe."""
    if sys.platform == "win32" or torch.cuda.is_available():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    return context


def _run_processes(queue: _Queue, *, at_once: int, threads: int, title: str) -> None:
    """Run each job in a process of its own, which a thread waits for."""
    epochs = sum(job.epochs for job in queue.waiting)
    running: dict[Future[JobResult], Job] = {}
    processes: list[BaseProcess] = []
    with (
        progress_bar(title, total=epochs, unit="epochs") as update,
        ThreadPoolExecutor(at_once) as pool,
    ):
        watch = _EpochWatch(queue.waiting)
        try:
            while True:
                while len(running) < at_once and (job := queue.next()) is not None:
                    running[pool.submit(_await_process, job.work, threads, processes)] = job
                if not running:
                    return
                ended, _ = wait(running, _POLL_SECONDS, FIRST_COMPLETED)
                watch.look([*running.values()])
                for future in ended:
                    queue.end(running.pop(future), future.result())
                update(advance=watch.advance(queue.finished))
        except BaseException:
            _stop(processes, running)
            raise


def _await_process(
    work: Callable[[], Any], threads: int, processes: list[BaseProcess]
) -> JobResult:
    """Do work in a process, which is added to `processes`; return what it sends."""
    context = _context()
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=_run_in_process, args=(work, sending, threads))
    process.start()
    processes.append(process)
    sending.close()
    try:
        result = receiving.recv()
    except EOFError:
        process.join()
        result = JobResult(problem=f"its process ended with code {process.exitcode}.")
    process.join()
    assert isinstance(result, JobResult)
    return result


def _stop(processes: Sequence[BaseProcess], running: Iterable[Future[JobResult]]) -> None:
    """Let rounds save the step under way; a second signal does not wait for that.

    Threads may add processes that they were starting.
    """
    say("stopping after the steps under way; a second signal stops at once")
    told = 0
    try:
        while (started := processes[told:]) or wait(running, _POLL_SECONDS).not_done:
            for process in started:
                process.terminate()
            told += len(started)
    finally:
        for process in processes:
            process.kill()


def _run_in_process(work: Callable[[], Any], results: Connection, threads: int) -> None:
    if hasattr(os, "setpgrp"):
        os.setpgrp()  # Ctrl-C reaches the process that started this one, which passes it on once
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    exit_with_parent()
    torch.set_num_threads(threads)
    be_silent()
    results.send(_attempt(work))


class _EpochWatch:
    """Follows the epochs of jobs in the logs of their rounds."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.jobs = tuple(jobs)
        self.counted = 0
        self.seen = {each.folder: _epochs_of(each) for job in jobs for each in job.rounds}

    def look(self, jobs: Sequence[Job]) -> None:
        """Print a line for each epoch of these jobs that ended since the last look."""
        for round_ in (round_ for job in jobs for round_ in job.rounds):
            epochs, settings = _epochs_of(round_), round_.settings
            for epoch in sorted(epochs.keys() - self.seen[round_.folder].keys()):
                figures = epochs[epoch]
                note = settings.note_on(epoch - 1, is_best=bool(figures.get("best")))
                say_epoch(round_.label, f"{epoch}/{settings.epochs}", figures, note=note)
            self.seen[round_.folder] = epochs

    def advance(self, finished: Sequence[Job]) -> int:
        """Count epochs since the last call; a job that has ended counts as a whole."""
        before, self.counted = self.counted, sum(job.epochs for job in finished)
        rounds = (each for job in self.jobs if job not in finished for each in job.rounds)
        self.counted += sum(len(self.seen[each.folder]) for each in rounds)
        return self.counted - before


def _epochs_of(round_: JobRound) -> dict[int, Event]:
    return ended_epochs(read_events(round_.folder))
