"""Follows the folders of photos of an index while it is served.

Folders are looked at again and again, because notifications of the system miss network disks and
differ between systems; what has not changed costs one look at its size and time. Changes are
written to the index, and whoever serves it opens it again (`aoq.web.index_watch`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread

from aoq.errors import UserError
from aoq.progress import say, warn
from aoq.retrieval.matcher import Matcher
from aoq.retrieval.sync import sync_photos
from aoq.retrieval.target import described

SECONDS = 10.0


@contextmanager
def watching(matcher: Matcher, *, seconds: float = SECONDS) -> Iterator[None]:
    """Bring the index of a matcher up to date every few seconds, in a thread."""
    stopped = Event()

    def watch() -> None:
        problem = ""
        while not stopped.wait(seconds):
            try:
                synced = sync_photos(
                    matcher.run, index=matcher.index.folder, encoder=matcher.encoder
                )
                if synced:
                    say(f"{matcher.index.folder}: {described(synced)}")
                problem = ""
            except (UserError, OSError) as error:
                if str(error) != problem:  # said once
                    warn(f"{matcher.index.folder} is not brought up to date: {error}")
                problem = str(error)

    thread = Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()
