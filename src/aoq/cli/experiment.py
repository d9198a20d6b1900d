"""`aoq experiment`: the rows of a table, each with several seeds."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from aoq.cli.base import (
    Count,
    Flag,
    app,
    command,
    console_for,
    natural_width,
    next_steps,
    print_table,
)
from aoq.errors import UserError, require_packages

if TYPE_CHECKING:
    from rich.table import Table

    from aoq.experiments.page import ExperimentReport
    from aoq.experiments.results import Experiment

SEVERAL = Parameter(consume_multiple=True, negative=())


@app.command
def experiment(
    name: str | None = None,
    /,
    *,
    data: Path | None = None,
    out: Path | None = None,
    seeds: Annotated[tuple[int, ...], SEVERAL] = (),
    rows: Annotated[tuple[str, ...], SEVERAL] = (),
    jobs: Count | None = None,
    results: Path | None = None,
    list_: Annotated[bool, Parameter(name="--list", negative=())] = False,
    plan: Flag = False,
    report: Path | None = None,
    resume: Flag = False,
    force: Flag = False,
) -> None:
    """Run the rows of an experiment, each with several seeds, side by side.

    Without a name, list the shipped experiments. If interrupted, the same command continues;
    finished runs are not repeated.

    Parameters
    ----------
    name
        A shipped experiment, or the path of a TOML file.
    data
        Folder of the data set.
    out
        Folder of the runs, each in RECIPE/seed-N; default: runs/NAME. Experiments that share it
        train the runs that they share once.
    seeds
        Seeds to use instead of the experiment's, or a subset of them.
    rows
        Only the rows with these labels, and the teachers they need.
    jobs
        Parallel runs, which share the cores; default: one per core, one on a GPU.
    results
        File to which each result is added as a line of JSON; default: OUT/results.jsonl.
    list_
        Only list the rows, with rsum if they are finished.
    plan
        Only print how small a difference the seeds can find, and how many seeds more would need.
    report
        Only write tables, figures and a page about the finished runs to this folder.
    resume
        Continue the runs in `out` with their own data set.
    force
        Repeat runs that were done with other settings or data.
    """
    from aoq.experiments.definition import load_definition, shipped_definitions

    if name is None:
        print_table(list(shipped_definitions().items()))
        next_steps("aoq experiment scenes-table1 --list")
        return
    definition = load_definition(name)
    out = out or Path("runs") / definition.name
    if resume and data is None:
        from aoq.experiments.plan import data_of_runs

        data = data_of_runs(out)
        if data is None:
            raise UserError(f"{out} has no runs to continue; start with --data FOLDER.")
    from aoq.experiments.results import Experiment

    selected = Experiment(
        definition=definition, out=out, data=data, file=results, seeds=seeds, rows=rows
    )
    found = ExperimentCommand(selected, words=command("experiment", name))
    if list_:
        found.show()
    elif plan:
        found.show_forecast()
    elif report is not None:
        require_packages("jinja2", "matplotlib", "PIL", extra="web")
        found.write(found.read(), report)
    else:
        found.run(jobs=jobs, force=force)


@dataclass(frozen=True)
class ExperimentCommand:
    """What the command does with an experiment."""

    experiment: Experiment
    words: str
    "The command with its options so far."

    @property
    def command(self) -> str:
        """Return the command for all rows and seeds."""
        found = self.experiment
        elsewhere = () if found.file is None else ("--results", f"{found.file}")
        options = ["--data", f"{found.data or 'FOLDER'}", "--out", f"{found.out}", *elsewhere]
        return f"{self.words} {shlex.join(options)}"

    def show(self) -> None:
        """List the rows, with rsum if they are finished."""
        self._print_grid()
        next_steps(self.command)

    def show_forecast(self) -> None:
        """Print a table of what the rows and seeds will be able to decide."""
        from aoq.experiments.forecast import forecast_table, forecasts

        found = forecasts(self.experiment)
        if not found:
            raise UserError(
                f"{self.experiment.definition.name} has nothing to compare; it takes two rows of "
                "one model and two seeds."
            )
        table = forecast_table(found)
        console_for(table).print(table, crop=False)
        next_steps(self.command)

    def run(self, *, jobs: int | None, force: bool) -> None:
        """Run what has no result; exit with code 1 if any run fails."""
        from aoq.experiments.grid import run_grid

        problems = run_grid(self.experiment, at_once=jobs, force=force)
        self._print_grid()
        for job, problem in problems.items():
            sys.stderr.write(f"error: {job}: {problem}\n")
        report = shlex.join(["--report", f"{self.experiment.out}/report"])
        next_steps(command("runs", self.experiment.out), f"{self.command} {report}")
        if problems:
            sys.exit(1)

    def read(self) -> ExperimentReport:
        """Read the finished results."""
        from aoq.experiments.report import read_experiment

        return read_experiment(self.experiment, command=self.command)

    def write(
        self, report: ExperimentReport, folder: Path, *, tables: Iterable[Table] = ()
    ) -> None:
        """Write a report, and print its tables and `tables`."""
        from rich.console import Console

        from aoq.experiments.tables import terminal_tables
        from aoq.progress import say

        page = report.write(folder)
        title, reference = report.description, report.reference
        shown = terminal_tables(report.shown, title=title, reference=reference)
        Console(highlight=False).print(*shown, *tables, crop=False)
        say(f"the report: {page}")

    def _print_grid(self) -> None:
        from aoq.experiments.tables import grid_table

        results = self.experiment.read()
        runs = self.experiment.plan(results)
        table = grid_table(runs, results)
        console = console_for(table)
        if natural_width(table) > console.width:
            table = grid_table(runs, results, narrow=True)
        console.print(table, crop=False)
