"""The log of a run, as everybody reads it who wants to know how far the run is.

A log is read while it is written, and after crashes: a line that is cut short or lacks what it
should tell is passed over. Nearly all of a log sums up steps, which are not even parsed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from aoq.experiments.tables import METRICS
from aoq.storage import RunDirectory

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
    """The lines of a run's log that tell how far it is; others, and damaged ones, are left out.

    Of several lines in a row that sum up steps only the last counts.
    """
    try:
        lines = RunDirectory(run).events.read_bytes().splitlines()
    except FileNotFoundError:
        return []
    events: list[Event] = []
    for line, following in pairwise([*lines, b""]):
        is_summed_up = line.startswith(_STEPS) and following.startswith(_STEPS)
        if is_summed_up and following.endswith(b"}"):
            continue
        try:
            event = json.loads(line)
        except ValueError:
            continue
        numbers = _NUMBERS.get(str(event.get("event"))) if isinstance(event, dict) else None
        if numbers is not None and all(is_number(event.get(name)) for name in ("time", *numbers)):
            events.append(event)
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
