"""What users see while they wait, and the log that programs read.

On a terminal: rich progress bars with rate and remaining time. Elsewhere (a pipe, CI, a cron job):
only the lines worth keeping. In both cases every stage appends to `events.jsonl`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column
from rich.text import Text

from aoq.storage import append_json_line, read_json_lines

T = TypeVar("T")
console = Console(stderr=True, highlight=False)
_silent = False


def be_silent() -> None:
    """Print nothing from this process; another one prints for it."""
    global _silent
    _silent = True


def is_silent() -> bool:
    return _silent


class _RateColumn(ProgressColumn):
    """Shows finished units per second."""

    def render(self, task: Task) -> Text:
        if not task.speed:
            return Text("")
        digits = 0 if task.speed >= 10 else 1
        return Text(f"{task.speed:,.{digits}f} {task.fields['unit']}/s", style="dim")


class _NoteColumn(ProgressColumn):
    """Shows further notes; cut short if the terminal is narrow."""

    def render(self, task: Task) -> Text:
        return Text(task.fields["note"], style="dim", no_wrap=True, overflow="ellipsis")


@contextmanager
def progress_bar(description: str, *, total: int, unit: str) -> Iterator[Callable[..., None]]:
    """Show a bar for a stage; yields a function to call with `advance=`, `note=` and `title=`.

    The bar is drawn on terminals only and disappears when the stage ends. A nested stage has its
    bar below the outer one.
    """
    if _silent or not sys.stderr.isatty():
        yield lambda **_: None
        return
    bar = Progress(
        TextColumn("{task.description}", table_column=Column(no_wrap=True)),
        BarColumn(bar_width=24),
        MofNCompleteColumn(table_column=Column(no_wrap=True)),
        _RateColumn(table_column=Column(no_wrap=True)),
        TimeRemainingColumn(compact=True, table_column=Column(no_wrap=True)),
        _NoteColumn(),
        console=console,
        transient=True,
    )
    with bar:
        task = bar.add_task(description, total=total, unit=unit, note="")

        def update(*, advance: int = 1, note: str | None = None, title: str | None = None) -> None:
            fields: dict[str, Any] = {} if note is None else {"note": note}
            bar.update(task, advance=advance, description=title, **fields)

        yield update


def track(items: Iterable[T], description: str, *, total: int, unit: str) -> Iterator[T]:
    """Pass `items` on, advancing a progress bar by one for each."""
    with progress_bar(description, total=total, unit=unit) as update:
        for item in items:
            yield item
            update()


def count_of(number: int, noun: str, plural: str | None = None) -> str:
    """Format a number of things, with the noun in the right form.

    >>> count_of(1, "photo"), count_of(1200, "photo"), count_of(2, "entry", "entries")
    ('1 photo', '1,200 photos', '2 entries')
    """
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def say(message: str) -> None:
    """Print one line worth keeping, on the terminal or in a log."""
    if not _silent:
        console.print(message, soft_wrap=True, markup=False)


def warn(message: str) -> None:
    """Print a warning about something that does not stop the work."""
    if not _silent:
        console.print(f"[yellow]warning:[/yellow] {escape(message)}", soft_wrap=True)


def say_epoch(label: str, epoch: str, figures: Mapping[str, Any], *, note: str) -> None:
    """Print the results of an epoch on dev."""
    say(
        f"{label}: epoch {epoch}  dev rsum {figures['rsum']:.1f}  "
        f"R@1 {figures['i2t_r1']:.1f} i2t, {figures['t2i_r1']:.1f} t2i"
        f"{f'  ({note})' if note else ''}"
    )


class EventLog:
    """Appends events to a JSON-lines file, each line with its time."""

    def __init__(self, path: Path | None) -> None:
        self.path = path

    def write(self, event: str, **fields: Any) -> None:
        if self.path is not None:
            line = {"event": event, "time": round(time.time(), 3), **fields}
            append_json_line(self.path, line)

    def read(self) -> list[dict[str, Any]]:
        return [] if self.path is None else read_json_lines(self.path)
