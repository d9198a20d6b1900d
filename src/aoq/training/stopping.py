"""A signal that ends the program waits for the step under way, so that nothing is lost."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from aoq.progress import say

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Stop:
    """Whether the program has been asked to end."""

    def __init__(self) -> None:
        self.signal: int | None = None

    @property
    def is_asked(self) -> bool:
        return self.signal is not None


@contextmanager
def waiting_signals() -> Iterator[Stop]:
    """Inside, SIGTERM and Ctrl-C are noted; afterwards they do what they would have done at once.

    A second one does not wait.
    """
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():  # Python allows it there only
        yield stop
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def note(number: int, frame: FrameType | None) -> None:
        if stop.is_asked:
            restore()
            signal.raise_signal(number)
        stop.signal = number
        say("stopping after this step; a second signal stops at once")

    for number in _SIGNALS:
        signal.signal(number, note)
    try:
        yield stop
    finally:
        restore()
    if stop.signal is not None:
        signal.raise_signal(stop.signal)
