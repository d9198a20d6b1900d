"""`aoq runs` and `aoq runs compare`: list and compare trainings, their progress and results."""

from __future__ import annotations

import re
import string
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from cyclopts import App

from aoq.cli.base import Json, app, console_for, natural_width, print_json
from aoq.errors import raise_problems

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from aoq.runs.summary import Comparison, Result, RunSummary

runs_app = App(name="runs")
app.command(runs_app)

Order = Literal["path", "test", "dev", "time"]
# Columns to hide in a narrow terminal, in this order.
_DISPENSABLE = ("seed", "time", "model", "age")
_ABOVE = "above\nCCA, BOW"
_Cells = dict[str, str]  # of a run, by heading
# How the origin of a run differs: both have one, this run has none, or the first run has none.
_ANOTHER = {
    "data": ("was trained on another data set than",) * 3,
    "dev": ("was validated on another dev set than",) * 3,
    "test": ("was judged on another test set than",) * 3,
    "candidates": (
        "drew from other candidate lists than",
        "drew from no candidate lists, unlike",
        "drew from candidate lists, unlike",
    ),
    "weights": (
        "started from other weights than",
        "started from scratch, unlike",
        "started from trained weights, unlike",
    ),
}


@runs_app.default
def runs(*folders: Path, sort: Order = "path", as_json: Json = False) -> None:
    """List runs with their settings, progress and results.

    Runs that cannot be read are named as errors after the others.

    Parameters
    ----------
    folders
        Folders to search, with all that is in them; default: runs.
    sort
        By path; by rsum on test or dev, best first; or by time spent, longest first.
    as_json
        Print JSON for programs.
    """
    from aoq.progress import say
    from aoq.runs.gate import gates_among
    from aoq.runs.summary import find_runs

    default, problems = Path("runs"), list[str]()
    found = find_runs(folders or ([default] if default.is_dir() else []), problems=problems)
    found.sort(key=lambda run: _sort_key(run, sort))
    above = gates_among(found)
    if as_json:
        print_json([run.as_dict() | {"above": above.get(run.path, {})} for run in found])
    elif found:
        _print_runs(found, above)
    elif not problems:
        places = ", ".join(map(str, folders)) or str(default)
        say(
            f"there are no runs in {places}; `aoq demo` makes some, and so does "
            "`aoq run scenes-small --data FOLDER --out runs/first`."
        )
    raise_problems(problems)


@runs_app.command
def compare(*folders: Path, as_json: Json = False) -> None:
    """Show the settings in which runs differ, and their results side by side.

    Parameters
    ----------
    folders
        Runs; of one with two rounds the last counts. Differences are to the first.
    as_json
        Print JSON for programs.
    """
    from rich.console import Console

    from aoq.runs.summary import compare_runs

    comparison = compare_runs(folders)
    if as_json:
        print_json(comparison.as_dict())
        return
    console = Console(highlight=False)
    for part in _comparison_view(comparison):
        console.print(part)


def _sort_key(run: RunSummary, order: Order) -> tuple[float, Path]:
    """Sort best or longest first, runs without such a figure last, equal ones by path."""
    figures = {
        "path": 0.0,
        "test": -1.0 if run.test is None else run.test["rsum"],
        "dev": -1.0 if run.dev is None else run.dev.metrics["rsum"],
        "time": run.seconds,
    }
    return -figures[order], run.path


def _print_runs(found: list[RunSummary], above: Mapping[Path, Mapping[str, bool]]) -> None:
    """Print as many columns as the terminal is wide for; a pipe or a file gets all of them.

    Paths that do not fit beside the figures are numbered, and written out below the table.
    """
    from aoq.evaluation.tables import numbered_names

    rows = [_cells(run) for run in found]
    if above:  # there is a simple model to compare with
        rows = [
            row | {_ABOVE: _shown_gates(above.get(run.path, {}))}
            for row, run in zip(rows, found, strict=True)
        ]
    console = console_for(_runs_view(rows))
    shown, hidden = _fitting(rows, console.width)
    numbered = natural_width(_runs_view(shown)) > console.width
    if numbered:
        numbers = (row | {"run": str(number)} for number, row in enumerate(rows, start=1))
        shown, hidden = _fitting(list(numbers), console.width)
    view = _runs_view(shown)
    if hidden:
        view.caption = f"hidden (terminal too narrow): {', '.join(hidden)}"
    console.print(view)
    if numbered:
        console.print(numbered_names([row["run"] for row in rows]))


def _shown_gates(above: Mapping[str, bool]) -> str:
    """Say whether a run is above the simple models, and which of them it is not above.

    >>> _shown_gates({"cca": True, "bow": True}), _shown_gates({"cca": False, "bow": True})
    ('yes', 'no: cca')
    """
    lost = [name for name, is_above in above.items() if not is_above]
    return f"no: {', '.join(sorted(lost))}" if lost else "yes" if above else ""


def _fitting(rows: list[_Cells], width: int) -> tuple[list[_Cells], list[str]]:
    """Hide columns until the table has a width, or none can be hidden; return which are."""
    hidden: list[str] = []
    for name in _DISPENSABLE:
        if natural_width(_runs_view(rows)) <= width:
            break
        rows = [{key: cell for key, cell in row.items() if key != name} for row in rows]
        hidden.append(name)
    return rows, hidden


def _cells(run: RunSummary) -> _Cells:
    """Return the cells of a run by heading."""
    dev, test = run.dev, run.test or {}
    return {
        "run": str(run.path),
        "model": run.pretrained or run.recipe.model.name,
        "loss": "" if run.pretrained else run.settings.loss.name,
        "seed": str(run.recipe.seed),
        "state": _state(run),
        "dev rsum\n@ epoch": "" if dev is None else f"{dev.metrics['rsum']:.1f} @{dev.epoch:<2}",
        "test\nrsum": f"{test['rsum']:.1f}" if test else "",
        "R@1\ni2t": f"{test['i2t_r1']:.1f}" if test else "",
        "R@1\nt2i": f"{test['t2i_r1']:.1f}" if test else "",
        "time": _lasting(run.seconds),
        "age": _lasting(max(time.time() - run.updated, 0), parts=1),
    }


def _runs_view(rows: list[_Cells]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    view = Table(box=SIMPLE_HEAD, show_edge=False, padding=0, caption_justify="left")
    for heading in rows[0]:
        is_word = heading in ("run", "model", "loss", "state")
        view.add_column(heading, justify="left" if is_word else "right", no_wrap=True)
    for row in rows:
        view.add_row(*(Text(cell) for cell in row.values()))
    return view


def _state(run: RunSummary) -> str:
    """Describe the state in a few words, with the epoch of an unfinished run."""
    return f"{_stage(run)}, best" if run.best else _stage(run)


def _stage(run: RunSummary) -> str:
    epoch = f"{min(run.epochs_done + 1, run.settings.epochs)}/{run.settings.epochs}"
    if run.collapsed and run.stage in ("training", "finished"):
        return f"collapsed {epoch}"
    if run.under_way is False and run.stage in ("training", "mining"):
        return f"stopped {epoch}" if run.stage == "training" else "stopped mining"
    return {"training": f"epoch {epoch}", "not finite": f"not finite {epoch}"}.get(
        run.stage, run.stage
    )


def _lasting(seconds: float, *, parts: int = 2) -> str:
    """Format a duration in its one or two largest units.

    >>> _lasting(42.3), _lasting(11_520), _lasting(11_520, parts=1)
    ('42s', '3h 12m', '3h')
    """
    rest, shown = int(seconds), list[str]()
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        count, rest = divmod(rest, size)
        if count or shown or unit == "s":
            shown.append(f"{count}{unit}")
    return " ".join(shown[:parts])


def _comparison_view(comparison: Comparison) -> Iterator[RenderableType]:
    """Yield the labels, the settings that differ, the results and other differences."""
    from rich.text import Text

    letters = string.ascii_uppercase
    labels = [letters[at % 26] * (at // 26 + 1) for at in range(len(comparison.runs))]
    for label, run in zip(labels, comparison.runs, strict=True):
        yield Text(f"{label}  {run.path}")
    yield ""
    settings = comparison.settings
    if settings:
        view = _side_by_side("settings that differ", labels)
        for name, values in settings.items():
            shown = ("none" if value in (None, "") else str(value) for value in values)
            view.add_row(name, *map(Text, shown))
        yield view
    else:
        yield "no setting differs"
    yield ""
    yield _results_view(comparison, labels)
    yield ""
    yield from _origin_sentences(comparison, labels)


def _origin_sentences(comparison: Comparison, labels: list[str]) -> Iterator[str]:
    first = comparison.runs[0].origins
    for name, others in comparison.origins.items():
        another, has_none, first_has_none = _ANOTHER[name]
        for at in others:
            has_one = comparison.runs[at].origins[name] is not None
            said = has_none if not has_one else first_has_none if first[name] is None else another
            yield f"{labels[at]} {said} {labels[0]}."


def _results_view(comparison: Comparison, labels: list[str]) -> Table:
    """Tabulate figures, each with its difference to that of the first run."""
    runs = comparison.runs
    view = _side_by_side("results", labels)
    view.add_row("round", *(run.round for run in runs))
    view.add_row("loss", *(run.settings.loss.name for run in runs))
    view.add_row("state", *map(_state, runs))
    view.add_row("time", *(_lasting(run.seconds) for run in runs))
    view.add_row("best epoch", *("-" if run.dev is None else str(run.dev.epoch) for run in runs))
    for result in comparison.results:
        if any(value is not None for value in result.values):
            view.add_row(_title(result.name), *_figures(result))
    return view


def _side_by_side(title: str, labels: list[str]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    view = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 2, 0, 0))
    view.add_column(title, no_wrap=True)
    for label in labels:
        view.add_column(label, overflow="fold")
    return view


def _title(name: str) -> str:
    """Return the title of a figure.

    >>> _title("test.i2t_r1"), _title("test.t2i_median_rank"), _title("dev.rsum")
    ('test i2t R@1', 'test t2i median rank', 'dev rsum')
    """
    return re.sub(r"\br(?=\d)", "R@", re.sub(r"[._]", " ", name))


def _figures(result: Result) -> list[str]:
    """Format figures at equal widths, so that they align."""
    cells = []
    for value, difference in zip(result.values, result.differences, strict=True):
        figure = f"{'-':>5}" if value is None else f"{value:5.1f}"
        cells.append(figure if difference is None else f"{figure} {difference:+z6.1f}")
    return cells
