"""Follows indexes that change while they are served: `aoq index --add` makes one grow.

Each request checks the file that names the parts of an index, at the cost of one system call. If it
has changed, a thread opens the new index and then replaces the old one, which answers until then. A
new index that cannot be opened is logged once, and the old one stays.
"""

from __future__ import annotations

from pathlib import Path
from threading import Lock, Thread

from aoq.errors import UserError
from aoq.progress import count_of, say, warn
from aoq.retrieval.index import INDEX, IndexManifest
from aoq.web.run_api import RunApi

FileVersion = tuple[int, int, int]


class WatchedRun:
    """A run whose index may change on disk."""

    def __init__(self, run: RunApi) -> None:
        self._run = run
        self._seen: FileVersion | None = None
        self._lock = Lock()
        self._opening: Thread | None = None

    def current(self) -> RunApi:
        """Return the run to answer from; start to open its index if that has changed."""
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
        """Wait for an index that is being opened."""
        if self._opening is not None:
            self._opening.join()

    def _open(self) -> None:
        index = self._run.matcher.index
        try:
            if IndexManifest.load(index.folder) == index.manifest:
                return
            self._run = self._run.reopened()
        except (UserError, OSError) as error:
            warn(f"{index.folder} has changed and cannot be opened; restart the server: {error}")
            return
        entries = self._run.entries
        images, texts = count_of(len(entries.images), "image"), count_of(len(entries.texts), "text")
        say(f"{index.folder} has changed: it holds {images} and {texts} now")


def _version(file: Path) -> FileVersion | None:
    """Identify a file and its last write; None if there is no file."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
