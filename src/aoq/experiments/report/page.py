"""The report of an experiment: one page that needs nothing else, and its parts as files.

The page holds tables, figures and pictures inside, so it can be mailed and opened offline. Beside
it, for papers and other programs: tables/*.md and *.csv, figures/*.png and *.svg, and the figures
that show pictures in photographs/, apart from the others, because pictures may not be published.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aoq.data.dataset import PairDataset
from aoq.errors import UserError
from aoq.evaluation.online_share import OnlineShare
from aoq.experiments.pages import thumbnail, write_page
from aoq.experiments.report.behaviour import BEHAVIOUR_HEADINGS, shown_behaviours
from aoq.experiments.report.claims import Judged
from aoq.experiments.report.examples import Negatives, Retrieval, mined_negatives, retrievals
from aoq.experiments.report.figures import (
    Drawing,
    cross_retrieval,
    in_parts,
    score_distributions,
    training_curves,
)
from aoq.experiments.report.photographs import (
    image_retrievals,
    negatives_side_by_side,
    sentence_retrievals,
)
from aoq.experiments.report.rows import ResultRow, groups_of
from aoq.experiments.report.scores import TeacherBatches, scores_by_class
from aoq.experiments.report.tables import (
    CLAIM_HEADINGS,
    COMPARED,
    DIRECTIONS,
    HEADINGS,
    behaviour_markdown,
    cells_csv,
    claims_markdown,
    csv_text,
    has_paper,
    has_seeds,
    markdown_table,
    notes_of,
    rows_csv,
    shares_markdown,
    shown_claim,
    shown_groups,
)
from aoq.folders import is_own_file, require_kind
from aoq.manifest import create_manifest
from aoq.storage import is_vacant, write_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Settings = Mapping[str, Any]
PAGE = "index.html"
_PARTS = {
    "tables": r"(results|behaviour|claims|online-share)\.md|(rows|trainings|online-share)\.csv",
    "figures": r"(curves|cross-retrieval|scores)-\d+\.(png|svg)",
    "photographs": r"((sentences|images)-\d+|negative-(sentences|images))\.(png|svg)",
}


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a page tells of."""

    title: str
    description: str
    rows: Sequence[ResultRow]
    split: str = "test"
    "What all rows were judged on."
    dataset: PairDataset | None = None
    "That split, in the folder `data`."
    data: Path | None = None
    mined: TeacherBatches | None = None
    claims: Sequence[Judged] = ()
    shares: Sequence[OnlineShare] = ()
    settings: Mapping[str, Settings] = field(default_factory=dict)
    "By row, what differs from the paper's defaults."
    facts: Mapping[str, str] = field(default_factory=dict)
    commands: Mapping[str, str] = field(default_factory=dict)
    "What repeats each row."

    @property
    def shown(self) -> list[ResultRow]:
        """The rows of tables and figures: of those to choose from, only what was chosen."""
        return [row for row in self.rows if not row.is_candidate]

    @property
    def groups(self) -> list[list[ResultRow]]:
        return groups_of(self.shown)

    def write_page(self, path: Path) -> None:
        """The page alone."""
        _write_page(path, self, _Parts.of(self))

    def write(self, folder: Path) -> Path:
        """The page, and its parts as files, in the place of an earlier report's; its path."""
        _prepare(folder)
        parts, tables = _Parts.of(self), folder / "tables"
        for file in report_files(folder):
            file.unlink()
        write_text(tables / "results.md", markdown_table(self.shown))
        write_text(tables / "rows.csv", rows_csv(self.rows))
        write_text(tables / "trainings.csv", cells_csv(self.rows))
        write_text(tables / "behaviour.md", behaviour_markdown(self.shown))
        if self.claims:
            write_text(tables / "claims.md", claims_markdown(self.claims))
        if self.shares:
            write_text(tables / "online-share.md", shares_markdown(self.shares))
            write_text(tables / "online-share.csv", csv_text([s.as_dict() for s in self.shares]))
        for drawing in parts.drawings:
            drawing.save(folder / "figures")
        for drawing in parts.photographs():
            drawing.save(folder / "photographs")
        page = folder / PAGE
        _write_page(page, self, parts)
        return page


def _prepare(folder: Path) -> None:
    """Make a folder for reports, or refuse one with files of somebody else in their places."""
    if is_vacant(folder):
        folder.mkdir(parents=True, exist_ok=True)
        create_manifest(folder, "report")
    require_kind(folder, what="report")
    places = [file for file in (folder / PAGE, *report_files(folder)) if file.exists()]
    foreign = next((file for file in places if not is_own_file(file)), None)
    if foreign is not None:
        raise UserError(
            f"{foreign} is not as aoq wrote it, so it is not replaced; move it away, or name "
            "another folder."
        )


def report_files(folder: Path) -> list[Path]:
    """What a report wrote beside its page; other files are somebody's own."""
    return [
        file
        for part, names in _PARTS.items()
        for file in sorted((folder / part).glob("*"))
        if re.fullmatch(names, file.name)
    ]


@dataclass(frozen=True)
class _Parts:
    """What takes time to make."""

    curves: list[Drawing]
    crosses: list[Drawing]
    scores: list[Drawing]
    retrievals: Mapping[str, list[Retrieval]]
    "By the first label of a group."
    negatives: list[Negatives]

    @classmethod
    def of(cls, report: Report) -> _Parts:
        dataset, mined = report.dataset, report.mined
        found: dict[str, list[Retrieval]] = {}
        for group in report.groups:
            if dataset is not None and (shown := retrievals(group, dataset, data=report.data)):
                found[group[0].label] = shown
        return cls(
            curves=list(_drawn("curves", "Training curves", training_curves, report)),
            crosses=list(_drawn("cross-retrieval", "Cross-retrieval", cross_retrieval, report)),
            scores=[] if mined is None else list(_drawn_scores(report, mined)),
            retrievals=found,
            negatives=[] if mined is None else mined_negatives(mined),
        )

    @property
    def drawings(self) -> list[Drawing]:
        return [*self.curves, *self.crosses, *self.scores]

    def photographs(self) -> Iterator[Drawing]:
        for number, (label, examples) in enumerate(self.retrievals.items(), start=1):
            for name, draw in (("sentences", sentence_retrievals), ("images", image_retrievals)):
                side = "i2t" if name == "sentences" else "t2i"
                figure = draw([example for example in examples if example.direction == side])
                if figure is not None:
                    yield Drawing(f"{name}-{number}", f"{name} found, {label}", figure)
        for name, side in (("sentences", "i2t"), ("images", "t2i")):
            figure = negatives_side_by_side([e for e in self.negatives if e.direction == side])
            if figure is not None:
                yield Drawing(f"negative-{name}", f"hardest {name}", figure)


def _parts_of_groups(report: Report) -> Iterator[tuple[str, list[ResultRow]]]:
    """What a figure can show, each with a number for its file."""
    parts = [part for group in report.groups for part in in_parts(group)]
    for number, rows in enumerate(parts, start=1):
        yield f"{number}", rows


def _drawn(
    name: str,
    title: str,
    draw: Callable[[Sequence[ResultRow]], Figure | None],
    report: Report,
) -> Iterator[Drawing]:
    for number, rows in _parts_of_groups(report):
        figure = draw(rows)
        if figure is not None:
            labels = ", ".join(row.label for row in rows)
            yield Drawing(f"{name}-{number}", f"{title}: {labels}", figure)


def _drawn_scores(report: Report, mined: TeacherBatches) -> Iterator[Drawing]:
    """Of each row the first training whose run is there; ensembles are not trained."""
    measured = cache(lambda run: scores_by_class(run, mined))
    for number, rows in _parts_of_groups(report):
        runs = {row.label: [t.runs[0] for t in row.trainings if len(t.runs) == 1] for row in rows}
        figure = score_distributions(
            {label: measured(found[0]) for label, found in runs.items() if found}
        )
        if figure is not None:
            title = f"Scores of the pair classes: {', '.join(runs)}"
            yield Drawing(f"scores-{number}", title, figure)


def _common(settings: Mapping[str, Settings]) -> Settings:
    """What all rows have alike."""
    tables = list(settings.values())
    return {
        name: value
        for name, value in (tables[0] if tables else {}).items()
        if all(table.get(name) == value for table in tables)
    }


def _write_page(path: Path, report: Report, parts: _Parts) -> None:
    common, groups = _common(report.settings), shown_groups(report.shown)
    write_page(
        path,
        "report.html.j2",
        report=report,
        parts=parts,
        groups=groups,
        believed=any(row.is_compared for group in groups for row in group),
        has_paper=has_paper(report.shown),
        has_seeds=has_seeds(report.shown),
        behaviour_headings=BEHAVIOUR_HEADINGS,
        behaviours=shown_behaviours(report.shown),
        claim_headings=CLAIM_HEADINGS,
        claims=[shown_claim(judged) for judged in report.claims],
        sampled=0 if report.mined is None else sum(map(len, report.mined.batches)),
        headings=[heading.split()[-1] for heading in HEADINGS],
        directions=DIRECTIONS,
        compared=COMPARED.values(),
        notes=notes_of(report.shown),
        done=sum(len(row.trainings) for row in report.shown),
        wanted=sum(len(row.seeds) for row in report.shown),
        common=common,
        own={
            label: {name: value for name, value in table.items() if name not in common}
            for label, table in report.settings.items()
        },
        picture=cache(thumbnail),
    )
