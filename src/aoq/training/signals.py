"""Signals that end the program wait for the step under way, so that nothing is lost."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from aoq.progress import say

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Stop:
    """Whether the program was asked to end, and whether that has to wait."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self.must_wait = True

    @property
    def is_asked(self) -> bool:
        return self.signal is not None

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Let signals take effect at once inside: all is saved."""
        self.must_wait = False
        yield
        self.must_wait = True


@contextmanager
def waiting_signals() -> Iterator[Stop]:
    """Note SIGTERM and Ctrl-C inside; raise them again afterwards.

    A second Ctrl-C does not wait; a second SIGTERM does, so that saving can end.
    """
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():  # Python allows it there only
        yield stop
        return
    before = {
        number: signal.getsignal(number)
        for number in _SIGNALS
        if signal.getsignal(number) not in (signal.SIG_IGN, None)  # none: not Python's to restore
    }

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def note(number: int, frame: FrameType | None) -> None:
        if not stop.must_wait or (stop.is_asked and number == signal.SIGINT):
            restore()
            signal.raise_signal(number)
        elif not stop.is_asked:
            say("stopping after this step; a second Ctrl-C stops at once")
        stop.signal = number

    for number in before:
        signal.signal(number, note)
    try:
        yield stop
    finally:
        restore()
    if stop.signal is not None:
        signal.raise_signal(stop.signal)
