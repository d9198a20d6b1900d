"""Tables in the paper's layout: both directions, rsum, groups of one model, the best of each bold.

A cell is the mean over the seeds with the sample's standard deviation. Beside it stands what a row
has more than the first of its group: the mean and deviation of the differences with each seed,
which training again would change, and the mean's 95 % interval, which other queries would change.
Where the paper has the row, its rsum stands last, with what that has more than the first one's.
Files for other programs have every figure unrounded.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from aoq.evaluation.bootstrap import Interval
from aoq.evaluation.metrics import PAPER_FIGURES
from aoq.evaluation.online_share import OnlineShare
from aoq.evaluation.seeds import Spread
from aoq.experiments.report.behaviour import BEHAVIOUR_HEADINGS, shown_behaviours
from aoq.experiments.report.claims import Judged
from aoq.experiments.report.rows import Gain, ResultRow, groups_of
from aoq.experiments.tables import COLUMNS

HEADINGS = tuple(heading for heading, name, *_ in COLUMNS if name in PAPER_FIGURES)
DIRECTIONS = ("sentence retrieval (i2t)", "image retrieval (t2i)")
COMPARED = {"i2t_r1": "i2t R@1", "t2i_r1": "t2i R@1", "rsum": "rsum"}
NOTHING = "-"


@dataclass(frozen=True)
class Shown:
    """A figure as people read it."""

    value: str
    deviation: str = ""
    best: bool = False

    @property
    def plain(self) -> str:
        return f"{self.value} ± {self.deviation}" if self.deviation else self.value


@dataclass(frozen=True)
class ShownRow:
    """A row of the table, ready to be set."""

    label: str
    figures: tuple[Shown, ...]
    seeds: str
    interval: str
    "Of rsum."
    gains: tuple[str, ...]
    "Of what is in `COMPARED`, over the first row of the group; empty for that row."
    paper: str
    "Its rsum there, and what it is above that of the first row of the group."

    @property
    def is_compared(self) -> bool:
        """Whether there is more to say than its figures."""
        return bool(self.interval != NOTHING or self.gains or self.paper)


def shown_groups(rows: Sequence[ResultRow]) -> list[list[ShownRow]]:
    """The rows of each group, in order."""
    return [_shown_group(group) for group in groups_of(rows)]


def _shown_group(group: Sequence[ResultRow]) -> list[ShownRow]:
    best = {
        name: max((f"{row.spreads[name].mean:.1f}" for row in group if row.spreads), key=float)
        for name in PAPER_FIGURES
        if sum(bool(row.spreads) for row in group) > 1
    }
    shown = []
    for row in group:
        gained = row.minus(group[0])
        drawn = row.resampled
        done = len(row.trainings)
        shown.append(
            ShownRow(
                label=row.label,
                figures=tuple(
                    _shown(row.spreads.get(name), best.get(name)) for name in PAPER_FIGURES
                ),
                seeds=f"{done}" if done == len(row.seeds) else f"{done} of {len(row.seeds)}",
                interval=NOTHING if drawn is None else _interval(drawn.intervals()["rsum"]),
                gains=tuple(_gain(gained[name]) for name in COMPARED) if gained else (),
                paper=_in_paper(row, group[0]),
            )
        )
    return shown


def _shown(spread: Spread | None, best: str | None) -> Shown:
    """Equal after rounding is equally good, as in the paper."""
    if spread is None:
        return Shown(NOTHING)
    value = f"{spread.mean:.1f}"
    deviation = "" if spread.deviation is None else f"{spread.deviation:.1f}"
    return Shown(value, deviation, best=value == best)


def _interval(interval: Interval) -> str:
    return f"[{interval.low:.1f}, {interval.high:.1f}]"


def _gain(gain: Gain) -> str:
    deviation, interval = gain.spread.deviation, gain.interval
    parts = [
        f"{gain.spread.mean:+z.1f}",
        "" if deviation is None else f"± {deviation:.1f}",
        "" if interval is None else _interval(interval),
    ]
    return " ".join(filter(None, parts))


def _in_paper(row: ResultRow, first: ResultRow) -> str:
    if row.paper is None:
        return ""
    rsum = row.paper.rsum
    more = "" if row is first or first.paper is None else f" ({rsum - first.paper.rsum:+z.1f})"
    return f"{rsum:.1f}{more}"


def has_paper(rows: Sequence[ResultRow]) -> bool:
    return any(row.paper is not None for row in rows)


def has_seeds(rows: Sequence[ResultRow]) -> bool:
    """Whether any row is trained with several seeds; else there is nothing to say of them."""
    return any(len(row.seeds) > 1 for row in rows)


def notes_of(rows: Sequence[ResultRow]) -> list[str]:
    """What has to be said of rows, below their table."""
    papers = dict.fromkeys(row.paper.of for row in rows if row.paper and row.paper.of)
    return [
        *(row.note for row in rows if row.note),
        *(f"The paper's rsum is that of {of}." for of in papers),
    ]


# For people


def terminal_tables(rows: Sequence[ResultRow], *, title: str) -> list[Table]:
    """The figures, and how far to believe rsum; on narrow terminals deviations go below."""
    deviations = "± over seeds, " if has_seeds(rows) else ""
    figures, believed = (
        Table(title=heading, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        for heading in (title, f"rsum: {deviations}[95 % interval] over queries")
    )
    figures.caption, figures.caption_justify = Text("\n".join(notes_of(rows))), "left"
    figures.add_column("", overflow="fold")
    for heading in HEADINGS:
        figures.add_column(heading, justify="right")
    if has_seeds(rows):
        figures.add_column("seeds", justify="right", no_wrap=True)
    believed.add_column("", overflow="fold")
    in_paper = ["paper's"] if has_paper(rows) else []
    for heading in ("rsum", "more than the first of the group", *in_paper):
        believed.add_column(heading, justify="right", no_wrap=True)
    for group in shown_groups(rows):
        for row in group:
            cells = [
                Text(cell.plain.replace("± ", "±"), style="bold" if cell.best else "")
                for cell in row.figures
            ]
            gain, last = row.gains[-1] if row.gains else "", row is group[-1]
            seeds = [row.seeds] if has_seeds(rows) else []
            figures.add_row(Text(row.label), *cells, *seeds, end_section=last)
            if row.is_compared:
                told = (row.interval, gain, row.paper)[: 2 + len(in_paper)]
                believed.add_row(Text(row.label), *told, end_section=last)
    return [figures, believed] if believed.rows else [figures]


def markdown_table(rows: Sequence[ResultRow]) -> str:
    """Both as one table of Markdown; a group begins where the first column is bold.

    Deviations are over the seeds, brackets 95 % intervals over the queries.
    """
    in_paper = ["paper's rsum"] if has_paper(rows) else []
    in_seeds = ["seeds"] if has_seeds(rows) else []
    headings = (*HEADINGS, *in_seeds, "rsum, interval", "rsum more than the first", *in_paper)
    lines = [
        f"| | {' | '.join(headings)} |",
        f"| --- |{' ---: |' * len(headings)}",
    ]
    for group in shown_groups(rows):
        for row in group:
            cells = [f"**{cell.plain}**" if cell.best else cell.plain for cell in row.figures]
            label = _escaped(row.label)
            shown = f"**{label}**" if row is group[0] else label
            gain = row.gains[-1] if row.gains else ""
            seeds = [row.seeds] if in_seeds else []
            line = (shown, *cells, *seeds, row.interval, gain, row.paper)
            lines.append(f"| {' | '.join(line[: 1 + len(headings)])} |")
    return "\n".join([*lines, *(f"\n{note}" for note in notes_of(rows))]) + "\n"


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|")


CLAIM_HEADINGS = ("claim", "paper", "here", "with each seed", "verdict")


def shown_claim(judged: Judged) -> tuple[str, ...]:
    """A claim in the columns of `CLAIM_HEADINGS`."""
    form = "{:+z.1f}" if judged.claim.than else "{:.1f}"
    found = judged.by_seed.values()
    here = [
        form.format(mean(found)) if found else "",
        _interval(judged.interval) if judged.interval else "",
    ]
    return (
        judged.claim.sentence,
        "" if judged.paper is None else form.format(judged.paper),
        " ".join(filter(None, here)),
        ", ".join(map(form.format, found)),
        judged.verdict,
    )


def claims_markdown(claims: Sequence[Judged]) -> str:
    lines = [f"| {' | '.join(CLAIM_HEADINGS)} |", "| --- | ---: | ---: | ---: | --- |"]
    lines += [f"| {' | '.join(map(_escaped, shown_claim(judged)))} |" for judged in claims]
    return "\n".join(lines) + "\n"


def terminal_claims(claims: Sequence[Judged]) -> Table:
    table = Table(title="What holds", title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    said, paper, here, seeds, verdict = CLAIM_HEADINGS
    table.add_column(said, overflow="fold")
    for heading in (paper, here):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column(seeds.replace(" ", "\n", 1), justify="right")
    table.add_column(verdict)
    for judged in claims:
        *cells, by_seed, found = shown_claim(judged)
        table.add_row(*map(Text, cells), Text(by_seed.replace(", ", "\n")), found)
    return table


def behaviour_markdown(rows: Sequence[ResultRow]) -> str:
    """When rows pass the first of their group, and their pairs that are first both ways."""
    lines = [
        f"| | {' | '.join(BEHAVIOUR_HEADINGS)} |",
        f"| --- |{' ---: |' * len(BEHAVIOUR_HEADINGS)}",
    ]
    lines += [f"| {' | '.join(map(_escaped, cells))} |" for cells in shown_behaviours(rows)]
    return "\n".join(lines) + "\n"


def shares_markdown(shares: Sequence[OnlineShare]) -> str:
    """How hard the negatives of a batch are: measured, and by the paper's formulas."""
    headings = list(shares[0].shown)
    lines = [f"|{' | '.join(headings)} |", f"| --- |{' ---: |' * (len(headings) - 1)}"]
    lines += [f"| {' | '.join(row.shown.values())} |" for row in shares]
    return "\n".join(lines) + "\n"


# For programs


def rows_csv(rows: Sequence[ResultRow]) -> str:
    """A line a row: every figure's mean, deviation, interval and difference, unrounded."""
    lines = []
    for group in groups_of(rows):
        for row in group:
            line: dict[str, Any] = {
                "row": row.label,
                "seeds": " ".join(str(t.seed) for t in row.trainings),
                "seeds_wanted": " ".join(map(str, row.seeds)),
                "compared_with": group[0].label if row is not group[0] else "",
            }
            drawn, gained = row.resampled, row.minus(group[0])
            intervals = {} if drawn is None else drawn.intervals()
            for name in PAPER_FIGURES:
                gain = gained.get(name)
                more, drawn_more = (gain.spread, gain.interval) if gain else (None, None)
                line |= _columns(name, row.spreads.get(name), intervals.get(name))
                line |= _columns(f"{name}_more", more, drawn_more)
                line[f"{name}_more_below_zero"] = getattr(drawn_more, "below_zero", None)
            line["paper_rsum"] = None if row.paper is None else row.paper.rsum
            lines.append(line)
    return csv_text(lines)


def _columns(name: str, spread: Spread | None, interval: Interval | None) -> dict[str, Any]:
    return {
        name: getattr(spread, "mean", None),
        f"{name}_deviation": getattr(spread, "deviation", None),
        f"{name}_low": getattr(interval, "low", None),
        f"{name}_high": getattr(interval, "high", None),
    }


def cells_csv(rows: Sequence[ResultRow]) -> str:
    """A line a training: its figures, unrounded where its ranks are there, and what is more.

    That is by how much each is above the first row of the group with the same seed.
    """
    lines = []
    for group in groups_of(rows):
        for row in group:
            differences = row.differences(group[0])
            lines += [
                {
                    "row": row.label,
                    "recipe": training.line.get("recipe"),
                    "seed": training.seed,
                    **training.figures,
                    "dev_rsum": training.line.get("dev", {}).get("rsum"),
                    "best_epoch": training.line.get("best_epoch"),
                    "seconds": training.line.get("seconds"),
                    **{
                        f"{name}_more": differences.get(training.seed, {}).get(name)
                        for name in PAPER_FIGURES
                    },
                }
                for training in row.trainings
            ]
    return csv_text(lines)


def csv_text(lines: Sequence[dict[str, Any]]) -> str:
    """Lines with the columns of the longest of them; what is not known is empty."""
    if not lines:
        return ""
    file = io.StringIO()
    writer = csv.DictWriter(file, max(lines, key=len).keys(), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return file.getvalue()
