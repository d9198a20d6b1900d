"""All that requests share: the runs by name, the workers, the uploads and their limits."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from aoq.retrieval.matcher import Matcher
from aoq.web.answers import RunAnswer
from aoq.web.growth import GrowingRun
from aoq.web.kept import Kept
from aoq.web.limits import Limits
from aoq.web.served import ServedRun
from aoq.web.uploads import Uploads
from aoq.web.work import Workers


@dataclass(frozen=True)
class Service:
    """What a server serves, and with what."""

    growing: Mapping[str, GrowingRun]
    limits: Limits
    workers: Workers
    uploads: Uploads

    @classmethod
    def of(cls, matchers: Sequence[Matcher], limits: Limits) -> Service:
        pictures = Kept[tuple[Path, int], bytes](most=limits.kept_picture_bytes, size=len)
        names = address_names([matcher.name for matcher in matchers])

        def serve(matcher: Matcher, before: ServedRun) -> ServedRun:
            return ServedRun(
                before.name, matcher, pictures=pictures, threads=limits.working, before=before
            )

        growing = {
            name: GrowingRun(
                ServedRun(name, matcher, pictures=pictures, threads=limits.working), serve
            )
            for name, matcher in zip(names, matchers, strict=True)
        }
        return cls(growing, limits, Workers(limits), Uploads(limits))

    @property
    def runs(self) -> Mapping[str, ServedRun]:
        """The runs as their indexes are, or were a moment ago."""
        return {name: run.current() for name, run in self.growing.items()}

    def start(self) -> None:
        if any(run.reads_pictures for run in self.runs.values()):
            self.uploads.decoders.start()

    def close(self) -> None:
        self.workers.close()
        self.uploads.decoders.close()

    def describe(self) -> list[RunAnswer]:
        """All runs; labels that several have are told apart by name, which comes first."""
        runs = [run.describe() for run in self.runs.values()]
        times = Counter(run.label for run in runs)
        return [
            run.model_copy(update={"label": f"{run.name}: {run.label}"})
            if times[run.label] > 1
            else run
            for run in runs
        ]


def address_names(names: Sequence[str]) -> list[str]:
    """Names that fit into addresses, each another.

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
