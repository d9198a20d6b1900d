"""Indexes that change while they are served: `aoq index --add` makes one grow.

Each request looks at the file that names the parts of an index, which costs one call of the system.
Where it has changed, a thread of its own opens the index and then puts it in the place of the one
before; until then, requests are answered from that one. An index that cannot be opened is said in
the log once, and what was served before stays.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Lock, Thread

from aoq.errors import UserError
from aoq.progress import count_of, say, warn
from aoq.retrieval.index import INDEX, Manifest
from aoq.retrieval.matcher import Matcher
from aoq.web.served import ServedRun

Version = tuple[int, int, int]


class GrowingRun:
    """A run whose index may change on disk."""

    def __init__(self, run: ServedRun, serve: Callable[[Matcher, ServedRun], ServedRun]) -> None:
        self._run = run
        self._serve = serve
        self._seen: Version | None = None
        self._lock = Lock()
        self._opening: Thread | None = None

    def current(self) -> ServedRun:
        """What to answer from; a changed index is opened in the background."""
        version = _version(self._run.matcher.index.folder / INDEX)
        if version is not None and version != self._seen:
            with self._lock:
                is_opening = self._opening is not None and self._opening.is_alive()
                if version != self._seen and not is_opening:
                    self._seen = version
                    self._opening = Thread(target=self._open, daemon=True)
                    self._opening.start()
        return self._run

    def wait(self) -> None:
        """Until an index that is being opened is there."""
        if self._opening is not None:
            self._opening.join()

    def _open(self) -> None:
        before = self._run
        index = before.matcher.index
        try:
            if Manifest.load(index.folder) == index.manifest:
                return
            after = self._serve(before.matcher.reopened(), before)
        except (UserError, OSError) as error:
            warn(f"{index.folder} has changed and cannot be opened; start again: {error}")
            return
        self._run = after
        images, texts = len(after.matcher.index.images), len(after.matcher.index.texts)
        counts = f"{count_of(images, 'image')} and {count_of(texts, 'text')}"
        say(f"{index.folder} has changed: it holds {counts} now")


def _version(file: Path) -> Version | None:
    """Says "the same file, not written since"; none where there is none."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
