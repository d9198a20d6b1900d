"""`aoq experiment`: a table's rows, each with several seeds."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from aoq.cli.base import Count, Flag, app, command, next_steps, print_table
from aoq.errors import UserError, require_packages

_SEVERAL = Parameter(consume_multiple=True, negative=())


@app.command
def experiment(
    name: str | None = None,
    /,
    *,
    data: Path | None = None,
    out: Path | None = None,
    seeds: Annotated[tuple[int, ...], _SEVERAL] = (),
    rows: Annotated[tuple[str, ...], _SEVERAL] = (),
    lanes: Count | None = None,
    results: Path | None = None,
    list_: Annotated[bool, Parameter(name="--list", negative=())] = False,
    report: Path | None = None,
    resume: Flag = False,
    force: Flag = False,
) -> None:
    """Run the rows of an experiment, each with several seeds, side by side.

    Without a name it lists the experiments that there are. Interrupted, the same command
    continues; what is finished is not done again.

    Parameters
    ----------
    name
        An experiment that comes with aoq, or a TOML file of your own.
    data
        Folder of the data set.
    out
        Folder of the runs, each in RECIPE/seed-N; default: runs/NAME. Experiments that share it
        train what they have in common once.
    seeds
        Other seeds than the experiment's, or some of them.
    rows
        Only the rows with these labels, and the teachers that they need.
    lanes
        Runs at a time, which share the cores; default: as many as cores, one on a GPU.
    results
        File to which each result is added as a line of JSON; default: OUT/results.jsonl.
    list_
        Only show the rows, and rsum where they are done.
    report
        Only write tables, figures and a page about what is done to this folder.
    resume
        Go on with what is in `out`, with the data set that it was begun with.
    force
        Do again what was done with other settings or data.
    """
    from rich.console import Console

    from aoq.experiments.definitions import load_definition, shipped_definitions

    if name is None:
        print_table(list(shipped_definitions().items()))
        next_steps("aoq experiment scenes-table1 --list")
        return
    definition = load_definition(name)

    from aoq.experiments.cells import begun_with, plan_grid
    from aoq.experiments.grid import run_grid
    from aoq.experiments.results import chosen_rows, grid_table, read_results, results_file

    out = out or Path("runs") / definition.name
    results = results or results_file(out)
    if resume and data is None:
        data = begun_with(out)
    elsewhere = () if results == results_file(out) else ("--results", results)
    again = command("experiment", name, "--data", data or "FOLDER", "--out", out, *elsewhere)

    def show() -> None:
        lines = read_results(results, definition)
        chosen = chosen_rows(definition, lines)
        cells = plan_grid(definition, out=out, data=data, seeds=seeds, rows=rows, chosen=chosen)
        Console(highlight=False).print(grid_table(definition, cells, lines))

    if list_:
        show()
        next_steps(again)
        return
    if report is not None:
        require_packages("jinja2", "matplotlib", "PIL", extra="web")
        from aoq.experiments.report.experiment import read_experiment
        from aoq.experiments.report.tables import terminal_claims, terminal_tables
        from aoq.progress import say

        read = read_experiment(
            definition, out=out, results=results, data=data, seeds=seeds, rows=rows, command=again
        )
        page = read.write(report)
        tables = terminal_tables(read.shown, title=definition.description)
        if read.claims:
            tables.append(terminal_claims(read.claims))
        Console(highlight=False).print(*tables)
        say(f"the report: {page}")
        return
    if data is None:
        hint = f" It is meant for: {definition.data}" if definition.data else ""
        raise UserError(f"no data set is named; add --data FOLDER.{hint}")
    problems = run_grid(
        definition,
        data=data,
        out=out,
        seeds=seeds,
        rows=rows,
        lanes=lanes,
        results=results,
        force=force,
    )
    show()
    for job, problem in problems.items():
        sys.stderr.write(f"error: {job}: {problem}\n")
    next_steps(command("runs", out), f"{again} {shlex.join(['--report', f'{out}/report'])}")
    if problems:
        sys.exit(1)
