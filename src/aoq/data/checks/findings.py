"""The data doctor's findings: one for each kind of thing that is wrong or unusual.

A finding has a title, its places, and advice. The same findings become a report on a terminal,
JSON for a pipe, and the sentences with which training stops or warns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import Any

from aoq.data.dataset import PairDataset
from aoq.errors import raise_problems
from aoq.progress import count_of, warn


@dataclass(frozen=True)
class Finding:
    """One kind of thing that is wrong or unusual.

    Without advice, the places are sentences that state the remedy themselves.
    """

    title: str
    places: tuple[str, ...]
    advice: str = ""
    is_error: bool = False

    @property
    def count(self) -> int:
        return len(self.places)

    @property
    def sentences(self) -> tuple[str, ...]:
        if not self.advice:
            return self.places
        total = f" ({self.count:,} in all)" if self.count > 1 else ""
        return (f"{self.title}: {self.places[0]}{total}; {self.advice}.",)

    def as_dict(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "count": self.count,
            "places": list(self.places),
            "advice": self.advice,
        }


@dataclass(frozen=True)
class SplitFacts:
    """The size of a split, and how uneven it is."""

    split: str
    images: int
    captions: int
    fewest: int  # captions per image
    most: int
    words: float  # per caption, on average

    @classmethod
    def of(cls, dataset: PairDataset) -> SplitFacts:
        per_image = dataset.positives.texts_per_image()
        words = sum(len(caption.split()) for caption in dataset.captions)
        return cls(
            split=dataset.split,
            images=len(dataset),
            captions=dataset.n_texts,
            fewest=int(per_image.min()),
            most=int(per_image.max()),
            words=round(words / dataset.n_texts, 1),
        )


@dataclass(frozen=True)
class Report:
    """The findings about a folder: errors to fix, warnings to judge, and sizes."""

    folder: Path
    splits: tuple[SplitFacts, ...]
    findings: tuple[Finding, ...]
    datasets: Mapping[str, PairDataset] = field(default_factory=dict, repr=False)
    "The splits that can be opened, as they were read."

    @property
    def errors(self) -> tuple[str, ...]:
        return _sentences(self.findings, is_error=True)

    @property
    def warnings(self) -> tuple[str, ...]:
        return _sentences(self.findings, is_error=False)

    def raise_for_errors(self) -> None:
        raise_problems(self.errors)

    def warn_in_one_line(self) -> None:
        """Warn in one line that there are warnings; `aoq data check` prints them in full."""
        count = len(self.warnings)
        if count:
            see = f"`aoq data check {quote(str(self.folder))}`"
            warn(f"{count_of(count, 'warning')} about the data; see {see}.")

    def as_dict(self) -> dict[str, Any]:
        """Return the report as JSON-compatible data."""
        return {
            "folder": str(self.folder),
            "splits": [vars(facts) for facts in self.splits],
            "errors": [found.as_dict() for found in self.findings if found.is_error],
            "warnings": [found.as_dict() for found in self.findings if not found.is_error],
        }


def error(title: str, places: Sequence[str], advice: str = "") -> list[Finding]:
    """Return a list with one finding that must be fixed; empty if `places` is empty."""
    return _finding(title, places, advice, is_error=True)


def warning(title: str, places: Sequence[str], advice: str = "") -> list[Finding]:
    """Return a list with one finding for users to judge; empty if `places` is empty."""
    return _finding(title, places, advice, is_error=False)


def _finding(title: str, places: Sequence[str], advice: str, *, is_error: bool) -> list[Finding]:
    return [Finding(title, tuple(places), advice, is_error=is_error)] if places else []


def _sentences(findings: Sequence[Finding], *, is_error: bool) -> tuple[str, ...]:
    return tuple(
        sentence
        for finding in findings
        if finding.is_error == is_error
        for sentence in finding.sentences
    )
