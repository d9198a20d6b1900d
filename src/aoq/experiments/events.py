"""The log of a run, as everybody reads it who wants to know how far the run is.

A log is read while it is written, and after crashes: a last line that is cut short, and lines that
lack what they should tell, are passed over. A damaged line is an error that names it. Nearly all of
a log sums up steps, which are not even parsed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from aoq.experiments.tables import METRICS
from aoq.manifest import check_content
from aoq.storage import RunDirectory, parse_line

Event = Mapping[str, Any]
# Events that tell how far a run is, and the numbers without which a line of the log is no use.
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
}
_STEPS = b'{"event": "steps"'


def read_events(run: Path) -> list[Event]:
    """Read the lines of a run's log that tell how far it is.

    Of several lines in a row that sum up steps only the last counts.
    """
    path = RunDirectory(run).events
    if not path.exists():
        return []
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
    check_content(path, content)
    return events


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def ended_epochs(events: Iterable[Event]) -> dict[int, Event]:
    """By epoch, the validation that followed its last step; before that, an epoch is under way."""
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
