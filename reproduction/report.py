"""The report of one of the paper's experiments, with the paper's figures and claims."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from aoq.distributed import ALONE
from aoq.evaluation.online_share import BATCH_SIZES, OnlineShare, online_shares
from aoq.experiments.comparisons import Comparisons
from aoq.experiments.csv_files import csv_text
from aoq.experiments.examples import retrievals
from aoq.experiments.figures import Drawing
from aoq.experiments.negatives import hardest_negatives
from aoq.experiments.page import ExperimentReport, Section, draw_groups
from aoq.experiments.rows import ResultRow
from aoq.experiments.tables import TextTable
from aoq.progress import say
from aoq.runs.encodings import open_splits
from aoq.scoring.inner_product import InnerProduct
from reproduction.behaviour import behaviour_section
from reproduction.claims import PaperTable
from reproduction.figures import cross_retrieval, score_distributions
from reproduction.pair_scores import TeacherBatches, scores_by_class
from reproduction.photographs import (
    image_retrievals,
    negatives_side_by_side,
    sentence_retrievals,
)
from reproduction.verdicts import Verdict, claims_section, judge_claims

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DIRECTIONS = ("i2t", "t2i")


@dataclass(frozen=True)
class PaperReport:
    """A report, and the paper's figures and claims for its rows."""

    report: ExperimentReport
    paper: PaperTable
    comparisons: Comparisons | None = None
    "With the deviation of more trainings than the report's."

    def complete(self) -> ExperimentReport:
        """Add the paper's figures and claims.

        Scores and online shares need runs; without runs, those of an earlier report stay unchanged.
        """
        report, sections = self.report, list(self._tables_and_ranks())
        if self.batches is not None:
            sections += [_scores(report, self.batches), _shares(self.batches, report.data)]
        return replace(report, reference=self.paper.reference, sections=sections)

    def photographs(self) -> list[Drawing]:
        """Draw examples with their pictures, as far as the runs exist."""
        figures: dict[str, Figure | None] = {}
        report = self.report
        for number, group in enumerate(report.groups, start=1):
            if report.dataset is not None:
                found = retrievals(group, report.dataset, data=report.data)
                i2t, t2i = ([e for e in found if e.direction == way] for way in DIRECTIONS)
                figures[f"sentences-{number}"] = sentence_retrievals(i2t)
                figures[f"images-{number}"] = image_retrievals(t2i)
        negatives = [] if report.mined is None else hardest_negatives(report.mined)
        for name, way in zip(("sentences", "images"), DIRECTIONS, strict=True):
            chosen = [example for example in negatives if example.direction == way]
            figures[f"negative-{name}"] = negatives_side_by_side(chosen)
        return [Drawing(name, name, figure) for name, figure in figures.items() if figure]

    @cached_property
    def verdicts(self) -> list[Verdict]:
        claims, rsum = self.paper.claims, self.paper.rsum
        return judge_claims(claims, self.report.rows, rsum, comparisons=self.comparisons)

    @cached_property
    def batches(self) -> TeacherBatches | None:
        mined = self.report.mined
        return None if mined is None else TeacherBatches.of(mined)

    def _tables_and_ranks(self) -> Iterator[Section]:
        report = self.report
        yield claims_section(self.verdicts)
        yield draw_groups(
            report.groups,
            cross_retrieval,
            name="cross-retrieval",
            title="Cross-retrieval",
            text="The cross-retrieval rank of a positive pair is the worse of two ranks, of its "
            "image for the text and of its text for the image, weighted by their numbers. It is 1 "
            "if no wrong candidate is closer to either. Lines span the seeds.",
        )
        yield behaviour_section(report.shown)


def _scores(report: ExperimentReport, drawn: TeacherBatches) -> Section:
    """Draw the scores of each row's first training; ensembles are not trained."""
    measured = cache(lambda run: scores_by_class(run, drawn))

    def draw(rows: Sequence[ResultRow]) -> Figure | None:
        runs = {row.label: [t.runs[0] for t in row.trainings if len(t.runs) == 1] for row in rows}
        return score_distributions(
            {label: measured(found[0]) for label, found in runs.items() if found}
        )

    return draw_groups(
        report.groups,
        draw,
        name="scores",
        title="Scores of the pair classes",
        text=f"{sum(map(len, drawn.batches)):,} training pairs in batches of "
        f"{len(drawn.batches[0])}, with the same offline negatives for every model; thin lines are "
        "medians. An online hard negative is the hardest of the batch, an offline one is drawn "
        "from the teacher's list, a derived pair is made of two offline negatives.",
    )


def _shares(drawn: TeacherBatches, data: Path | None) -> Section:
    """Rank the negatives of batches, unless the teacher would take hours for it."""
    shares: list[OnlineShare] = []
    sizes = {*BATCH_SIZES, drawn.settings.batch_size}
    sizes = {size for size in sizes if 4 * size <= len(drawn.dataset.positives.pairs)}
    (part,) = open_splits([drawn.teacher], split="train", data=data, on_disk=ALONE)
    if isinstance(part.scorer, InnerProduct) and sizes:
        say("ranking the negatives of random batches in the whole training set")
        shares = online_shares(
            part.scorer, part.encoded, part.dataset.positives, batch_sizes=sorted(sizes)
        )
    return shares_section(shares)


def shares_section(shares: Sequence[OnlineShare]) -> Section:
    """Make a table of how hard the negatives of a batch are, with the paper's formulas."""
    rows = [share.shown for share in shares]
    return Section(
        name="online-share",
        title="How hard the negatives of a batch are",
        text="The rank of the hardest negative of a random batch among all negatives of its anchor "
        "in the training set, by the teacher's scores, with 95 % intervals over batches (i2t: "
        "sentences for an image, t2i: images for a sentence); beside it the values expected by "
        "chance, 1 − (1 − 100/N)^(B−1) and N/B.",
        table=TextTable(list(rows[0]), [list(row.values()) for row in rows]) if rows else None,
        csv=csv_text([share.as_dict() for share in shares]),
    )
