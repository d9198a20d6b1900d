"""Follows the folders of photos of an index while it is served.

Folders are looked at again and again, because notifications of the system miss network disks and
differ between systems; what has not changed costs one look at its size and time. Changes are
written to the index, and whoever serves it opens it again (`aoq.web.index_watch`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread

from aoq.progress import say, warn
from aoq.retrieval.matcher import Matcher
from aoq.retrieval.sync import sync_photos
from aoq.retrieval.target import described

SECONDS = 10.0
_LAST = 5.0  # seconds for an update that is under way, when the server stops


@contextmanager
def watching(matcher: Matcher, *, seconds: float = SECONDS) -> Iterator[None]:
    """Bring the index of a matcher up to date every few seconds, in a thread.

    In the end, a long update is left where it is: the next one continues from what it saved.
    """
    stopped = Event()

    def watch() -> None:
        problem = ""
        while not stopped.wait(seconds):
            try:
                synced = sync_photos(
                    matcher.run,
                    index=matcher.index.folder,
                    make_model=matcher.make_model,
                    encoder=matcher.encoder,
                )
                if synced:
                    say(f"{matcher.index.folder}: {described(synced)}")
                problem = ""
            except Exception as error:  # also of libraries; the next time, it may work
                if str(error) != problem:  # said once
                    warn(f"{matcher.index.folder} is not brought up to date: {error}")
                problem = str(error)

    thread = Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join(_LAST)
