"""What all requests share: the runs by name, the worker pool, the uploads and the limits."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aoq.retrieval.matcher import Matcher
from aoq.web.index_watch import WatchedRun
from aoq.web.limits import Limits
from aoq.web.run_api import RunApi, prepare_uploads
from aoq.web.schemas import RunAnswer
from aoq.web.thumbnails import caching_maker
from aoq.web.uploads import Uploads
from aoq.web.worker_pool import WorkerPool


@dataclass(frozen=True)
class Service:
    """What a server serves, and with what."""

    watched: Mapping[str, WatchedRun]
    limits: Limits
    workers: WorkerPool
    uploads: Uploads

    @classmethod
    def of(
        cls, matchers: Sequence[Matcher], limits: Limits, *, names: Sequence[str] | None = None
    ) -> Service:
        make_thumbnail = caching_maker(limits.kept_picture_bytes)
        names = address_names(names or [matcher.name for matcher in matchers])
        runs = [
            RunApi(
                name,
                matcher,
                make_thumbnail=make_thumbnail,
                uploads_reason=prepare_uploads(matcher, threads=limits.working),
            )
            for name, matcher in zip(names, matchers, strict=True)
        ]
        watched = {run.name: WatchedRun(run) for run in runs}
        return cls(watched, limits, WorkerPool(limits), Uploads(limits))

    @property
    def runs(self) -> list[RunApi]:
        """The runs, each with the last version of its index that was opened."""
        return [run.current() for run in self.watched.values()]

    def start(self) -> None:
        if any(run.uploads_reason is None for run in self.runs):
            self.uploads.decoders.start()

    def close(self) -> None:
        self.workers.close()
        self.uploads.decoders.close()

    def describe(self) -> list[RunAnswer]:
        """Describe all runs; the name of a run is added to a label that several share."""
        runs = [run.describe() for run in self.runs]
        times = Counter(run.label for run in runs)
        return [
            run.model_copy(update={"label": f"{run.label} ({run.name})"})
            if times[run.label] > 1
            else run
            for run in runs
        ]


def address_names(names: Sequence[str]) -> list[str]:
    """Return distinct names that fit into addresses.

    >>> address_names(["vsrn/round-two", "off-tri", "off-tri", "ein Modell"])
    ['vsrn-round-two', 'off-tri', 'off-tri-2', 'ein-Modell']
    """
    made: list[str] = []
    for name in names:
        plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "run"
        unique, count = plain, 1
        while unique in made:
            count += 1
            unique = f"{plain}-{count}"
        made.append(unique)
    return made
