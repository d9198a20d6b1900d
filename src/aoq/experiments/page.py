"""The report of an experiment: one page that needs nothing else, and its parts as files.

The page has its tables, figures and pictures inside, so it can be mailed and opened offline. Beside
it, for papers and other programs: tables/*.md and *.csv, and figures/*.png and *.svg. Sections can
be added to both.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aoq.data.dataset import PairDataset
from aoq.errors import UserError
from aoq.experiments.csv_files import rows_csv, trainings_csv
from aoq.experiments.examples import retrievals
from aoq.experiments.figures import Drawing, split_group, training_curves
from aoq.experiments.negatives import MinedLists, hardest_negatives
from aoq.experiments.rows import ResultRow, groups_of
from aoq.experiments.tables import (
    COMPARED,
    HEADINGS,
    NO_REFERENCE,
    Reference,
    TextTable,
    has_seeds,
    markdown_table,
    notes_of,
    shown_groups,
)
from aoq.folders import is_own_file, require_kind
from aoq.html import thumbnail, write_page
from aoq.manifest import create_manifest
from aoq.storage import is_vacant, write_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAGE = "index.html"
_TABLES = ("results", "rows", "trainings")


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of a report: a heading, a paragraph, then a table or drawings."""

    name: str
    "The beginning of the names of its files."
    title: str
    text: str
    table: TextTable | None = None
    csv: str = ""
    "The table for programs."
    drawings: Sequence[Drawing] = ()

    def write(self, folder: Path) -> None:
        if self.table is not None:
            write_text(folder / "tables" / f"{self.name}.md", self.table.markdown())
        if self.csv:
            write_text(folder / "tables" / f"{self.name}.csv", self.csv)
        for drawing in self.drawings:
            drawing.save(folder / "figures")


def draw_groups(
    groups: Iterable[Sequence[ResultRow]],
    draw: Callable[[Sequence[ResultRow]], Figure | None],
    *,
    name: str,
    title: str,
    text: str,
) -> Section:
    """Make a section with a figure for each group; large groups take several."""
    parts = [part for group in groups for part in split_group(group)]
    drawings = [
        Drawing(f"{name}-{number}", f"{title}: {', '.join(row.label for row in part)}", figure)
        for number, part in enumerate(parts, start=1)
        if (figure := draw(part)) is not None
    ]
    return Section(name=name, title=title, text=text, drawings=drawings)


@dataclass(frozen=True, kw_only=True)
class ExperimentReport:
    """Everything that the page and the files are made of."""

    title: str
    description: str
    rows: Sequence[ResultRow]
    split: str = "test"
    "The split on which all rows are judged."
    dataset: PairDataset | None = None
    "That split, in the folder `data`."
    data: Path | None = None
    mined: MinedLists | None = None
    reference: Reference = NO_REFERENCE
    sections: Sequence[Section] = ()
    "Sections besides tables, curves and examples; empty ones remove files of earlier reports."
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    "By row, the settings that differ from the paper's defaults."
    facts: Mapping[str, str] = field(default_factory=dict)
    commands: Mapping[str, str] = field(default_factory=dict)
    "The command that repeats each row."

    @property
    def shown(self) -> list[ResultRow]:
        """The rows of tables and figures: chosen rows without their candidates."""
        return [row for row in self.rows if not row.is_candidate]

    @property
    def groups(self) -> list[list[ResultRow]]:
        return groups_of(self.shown)

    def write(self, folder: Path) -> Path:
        """Write the page and the files in place of an earlier report's; return the page."""
        _prepare(folder, self._all_sections)
        self.write_files(folder)
        self.write_page(folder / PAGE)
        return folder / PAGE

    def write_files(self, folder: Path) -> None:
        """Write the tables and figures alone, in a folder for nothing else."""
        tables = folder / "tables"
        for file in report_files(folder, self._all_sections):
            file.unlink()
        write_text(tables / "results.md", markdown_table(self.shown, self.reference))
        write_text(tables / "rows.csv", rows_csv(self.rows, self.reference))
        write_text(tables / "trainings.csv", trainings_csv(self.rows))
        for section in self._all_sections:
            section.write(folder)

    @cached_property
    def _all_sections(self) -> list[Section]:
        curves = draw_groups(
            self.groups,
            training_curves,
            name="curves",
            title="Training curves",
            text="Figures on the dev split after each epoch of the last round; of several seeds "
            "the mean, with a band from the lowest to the highest.",
        )
        return [curves, *self.sections]

    def write_page(self, path: Path) -> None:
        """Write the page alone."""
        groups, rows = shown_groups(self.shown, self.reference), self.shown
        common = _common(*self.settings.values() or ({},))
        examples = {
            group[0].label: found
            for group in self.groups
            if self.dataset is not None
            and (found := retrievals(group, self.dataset, data=self.data))
        }
        write_page(
            path,
            "report.html.j2",
            report=self,
            groups=groups,
            is_compared=any(row.is_compared for group in groups for row in group),
            has_reference=self.reference.covers(rows),
            has_seeds=has_seeds(rows),
            headings=[heading.split()[-1] for heading in HEADINGS],
            compared=COMPARED.values(),
            notes=notes_of(rows, self.reference),
            sections=self._all_sections,
            examples=examples,
            negatives=[] if self.mined is None else hardest_negatives(self.mined),
            common=common,
            own={
                label: {name: value for name, value in table.items() if name not in common}
                for label, table in self.settings.items()
            },
            picture=cache(thumbnail),
        )


def _prepare(folder: Path, sections: Iterable[Section]) -> None:
    """Prepare a folder for reports; reject it if other files have the names of a report's."""
    if is_vacant(folder):
        folder.mkdir(parents=True, exist_ok=True)
        create_manifest(folder, "report")
    require_kind(folder, what="report")
    places = [file for file in (folder / PAGE, *report_files(folder, sections)) if file.exists()]
    foreign = next((file for file in places if not is_own_file(file)), None)
    if foreign is not None:
        raise UserError(
            f"{foreign} was not written by aoq or was changed since, so it is not replaced; move "
            "it or choose another folder."
        )


def report_files(folder: Path, sections: Iterable[Section]) -> list[Path]:
    """Find the files that a report with these sections writes, beside the page."""
    names = "|".join([*_TABLES, *(re.escape(section.name) for section in sections)])
    return [
        file
        for part in ("tables", "figures")
        for file in sorted((folder / part).glob("*"))
        if re.fullmatch(rf"({names})(-\d+)?\.(md|csv|png|svg)", file.name)
    ]


def _common(first: Mapping[str, Any], *others: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that all rows share."""
    return {n: v for n, v in first.items() if all(other.get(n) == v for other in others)}
