"""Reads the log of a run for its progress.

A log is read while it is written, and after crashes: a last line that is cut short, and lines that
lack a number, are skipped. A damaged line is an error that names it. Nearly all lines sum up
steps, which are not even parsed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from aoq.evaluation.tables import METRICS
from aoq.manifest import check_content, versions_of
from aoq.runs.directory import RunDirectory
from aoq.storage import parse_line

Event = Mapping[str, Any]
# Events that show how far a run is, and the numbers that a line needs to count.
_NUMBERS: Mapping[str, tuple[str, ...]] = {
    "start": ("epoch",),
    "steps": ("epoch",),
    "epoch": ("epoch", "seconds", "steps"),
    "validation": ("epoch", *METRICS),
    "collapsed": ("epoch",),
    "not_finite": ("epoch",),
    "stopped_early": ("epoch",),
    "mined": ("seconds",),
    "evaluated": ("seconds",),
    "imported": (),
    "interpolated": ("share",),
}
_STEPS = b'{"event": "steps"'


def read_events(run: Path) -> list[Event]:
    """Read the lines of a run's log that show how far it is.

    Of several lines in a row that sum up steps only the last counts.
    """
    path = RunDirectory(run).events
    if not path.exists():
        return []
    listed = versions_of(path)  # another process may append while this one reads
    content = path.read_bytes()
    *lines, _ = content.split(b"\n")
    events: list[Event] = []
    for number, (line, following) in enumerate(pairwise([*lines, b""]), start=1):
        is_summed_up = line.startswith(_STEPS) and following.startswith(_STEPS)
        if not line or (is_summed_up and following.endswith(b"}")):
            continue
        event = parse_line(path, number, line)
        numbers = _NUMBERS.get(str(event.get("event")))
        if numbers is not None and all(is_number(event.get(name)) for name in ("time", *numbers)):
            events.append(event)
    check_content(path, content, listed)
    return events


def is_number(value: object) -> bool:
    """Return whether a value is a finite number."""
    return isinstance(value, int | float) and math.isfinite(value)


def ended_epochs(events: Iterable[Event]) -> dict[int, Event]:
    """Map each ended epoch to the validation that followed its last step."""
    found: dict[int, Event] = {}
    trained = 0
    for event in events:
        match event["event"]:
            case "start":
                trained = 0
            case "epoch":
                trained = event["epoch"]
            case "validation" if event["epoch"] == trained:
                found[trained] = event
    return found


@dataclass(frozen=True)
class RoundPace:
    """The progress of a round: its figures on dev after each epoch, and the time of its steps."""

    curve: list[dict[str, float]]
    seconds: float
    "Of an interrupted epoch, only the time after the last start counts."
    steps: int


def read_pace(run: Path) -> RoundPace:
    """Read the progress of a round from its log."""
    seconds, steps = 0.0, 0
    curve: dict[int, dict[str, float]] = {}
    for event in read_events(run):
        if event["event"] == "epoch":
            seconds, steps = seconds + event["seconds"], steps + event["steps"]
        elif event["event"] == "validation":
            curve[event["epoch"]] = {name: event[name] for name in ("rsum", "i2t_r1", "t2i_r1")}
    return RoundPace([{"epoch": epoch, **curve[epoch]} for epoch in sorted(curve)], seconds, steps)
