"""The data doctor's report on a terminal: sizes, then each finding with its first places."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from aoq.data.checks.findings import Finding, Report, SplitFacts
from aoq.progress import count_of

ERRORS_SHOWN, WARNINGS_SHOWN = 10, 3  # places shown of each finding


def show_report(report: Report) -> None:
    """Print a report; paths are relative to the data set's folder."""
    blocks: list[RenderableType] = [Text(f"{report.folder}\n", style="bold")]
    if report.splits:
        blocks.append(Padding(_sizes(report.splits), (0, 0, 1, 0)))
    findings = Table.grid(padding=(0, 2, 0, 0))
    for finding in report.findings:
        label = ("error", "bold red") if finding.is_error else ("warning", "yellow")
        findings.add_row(Text(*label), _body(finding, report.folder))
    blocks += [findings, Text(summary(report))]
    Console(highlight=False).print(Group(*blocks))


def summary(report: Report) -> str:
    """Return the last line: the number of kinds of errors and warnings."""
    errors = sum(finding.is_error for finding in report.findings)
    warnings = len(report.findings) - errors
    if not report.findings:
        return "nothing unusual found"
    counts = ((errors, "error"), (warnings, "warning"))
    return ", ".join(count_of(number, what) for number, what in counts if number)


def _sizes(splits: Sequence[SplitFacts]) -> Table:
    table = Table(box=None, padding=(0, 3, 0, 0), header_style="dim")
    table.add_column("")
    for heading in ("images", "captions", "an image", "words a caption"):
        table.add_column(heading, justify="right")
    for facts in splits:
        span = str(facts.fewest) if facts.fewest == facts.most else f"{facts.fewest}-{facts.most}"
        sizes = f"{facts.images:,}", f"{facts.captions:,}"
        table.add_row(facts.split, *sizes, span, f"{facts.words:.1f}")
    return table


def _body(finding: Finding, folder: Path) -> Group:
    return Group(
        Text.assemble((finding.title, "bold"), f": {finding.count:,}"), *_lines(finding, folder)
    )


def _lines(finding: Finding, folder: Path) -> Iterator[RenderableType]:
    shown = finding.places[: ERRORS_SHOWN if finding.is_error else WARNINGS_SHOWN]
    for place in shown:
        yield _hanging("-", Text(re.sub(rf"(?<!\S){re.escape(str(folder))}/", "", place)))
    more = finding.count - len(shown)
    if more:
        yield Text(f"  and {more:,} more", style="dim")
    if finding.advice:
        yield Text(f"{finding.advice[0].upper()}{finding.advice[1:]}.", style="dim")
    yield Text("")


def _hanging(mark: str, text: Text) -> Table:
    """Lay out text of several lines beside its mark."""
    row = Table.grid(padding=(0, 1, 0, 0))
    row.add_row(mark, text)
    return row
