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

    from aoq.experiments.definition import Definition
    from aoq.experiments.forecast import Forecast
    from aoq.experiments.page import ExperimentReport

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
    found = Experiment(
        definition=definition,
        words=command("experiment", name),
        data=data,
        out=out,
        results=results,
        seeds=seeds,
        rows=rows,
    )
    if list_:
        found.show()
    elif plan:
        found.show_forecast()
    elif report is not None:
        require_packages("jinja2", "matplotlib", "PIL", extra="web")
        found.write(found.read(), report)
    else:
        found.run(jobs=jobs, force=force)


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A definition with the folders and the rows that a command selects."""

    definition: Definition
    words: str
    "The command with its options so far."
    data: Path | None
    out: Path
    results: Path | None
    seeds: tuple[int, ...]
    rows: tuple[str, ...]

    @property
    def results_file(self) -> Path:
        from aoq.experiments.results import results_file

        return self.results or results_file(self.out)

    @property
    def command(self) -> str:
        """Return the command for all rows and seeds."""
        elsewhere = () if self.results is None else ("--results", f"{self.results}")
        options = ["--data", f"{self.data or 'FOLDER'}", "--out", f"{self.out}", *elsewhere]
        return f"{self.words} {shlex.join(options)}"

    def show(self) -> None:
        """List the rows, with rsum if they are finished."""
        self._print_grid()
        next_steps(self.command)

    def forecasts(self) -> list[Forecast]:
        """Look ahead at what the rows and seeds will be able to decide."""
        from aoq.experiments.comparisons import Comparisons
        from aoq.experiments.forecast import forecasts
        from aoq.experiments.plan import plan_grid
        from aoq.experiments.report import recorded_rows

        runs = plan_grid(self.definition, out=self.out, seeds=self.seeds, rows=self.rows)
        done = Comparisons(recorded_rows(self.definition, self.results_file))
        return forecasts(self.definition, runs, done)

    def show_forecast(self) -> None:
        """Print a table of what the rows and seeds will be able to decide."""
        from aoq.experiments.forecast import forecast_table

        found = self.forecasts()
        if not found:
            raise UserError(
                f"{self.definition.name} has nothing to compare; it takes two rows of one model "
                "and two seeds."
            )
        table = forecast_table(found)
        console_for(table).print(table, crop=False)
        next_steps(self.command)

    def run(self, *, jobs: int | None, force: bool) -> None:
        """Run what has no result; exit with code 1 if any run fails."""
        from aoq.experiments.grid import run_grid
        from aoq.progress import say

        if self.data is None:
            hint = f" It is meant for: {self.definition.data}" if self.definition.data else ""
            raise UserError(f"the data set is missing; add --data FOLDER.{hint}")
        for forecast in self.forecasts():
            say(forecast.sentence)
        problems = run_grid(
            self.definition,
            data=self.data,
            out=self.out,
            seeds=self.seeds,
            rows=self.rows,
            at_once=jobs,
            results=self.results_file,
            force=force,
        )
        self._print_grid()
        for job, problem in problems.items():
            sys.stderr.write(f"error: {job}: {problem}\n")
        report = shlex.join(["--report", f"{self.out}/report"])
        next_steps(command("runs", self.out), f"{self.command} {report}")
        if problems:
            sys.exit(1)

    def read(self) -> ExperimentReport:
        """Read the finished results."""
        from aoq.experiments.report import read_experiment

        return read_experiment(
            self.definition,
            out=self.out,
            results=self.results_file,
            data=self.data,
            seeds=self.seeds,
            rows=self.rows,
            command=self.command,
        )

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
        from aoq.experiments.plan import plan_grid
        from aoq.experiments.results import chosen_rows, grid_table, read_results

        definition, lines = self.definition, read_results(self.results_file, self.definition)
        runs = plan_grid(
            definition,
            out=self.out,
            data=self.data,
            seeds=self.seeds,
            rows=self.rows,
            chosen=chosen_rows(definition, lines),
        )
        table = grid_table(definition, runs, lines)
        console = console_for(table)
        narrow = natural_width(table) > console.width
        if narrow:
            table = grid_table(definition, runs, lines, narrow=True)
        console.print(table, crop=False)
