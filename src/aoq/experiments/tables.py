"""Tables in the paper's layout: both directions, rsum, groups of one model, the best of each bold.

A cell is the mean over the seeds with the sample's standard deviation. Beside it stands the gain
over the first row of the group: the mean and deviation of the differences with each seed, which
training again would change, and the mean's 95 % interval, which other queries would change.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from aoq.evaluation.bootstrap import Interval
from aoq.evaluation.metrics import PAPER_FIGURES
from aoq.evaluation.seeds import Spread
from aoq.evaluation.tables import COLUMNS, longest_word
from aoq.experiments.plan import GridRun
from aoq.experiments.results import Results, judged_split
from aoq.experiments.rows import Gain, ResultRow, groups_of

HEADINGS = tuple(heading for heading, name, *_ in COLUMNS if name in PAPER_FIGURES)
COMPARED = {"i2t_r1": "i2t R@1", "t2i_r1": "t2i R@1", "rsum": "rsum"}
_MISSING = "-"


@dataclass(frozen=True)
class TextTable:
    """Headings and rows of text; the first column is aligned left, the others right."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    last_is_text: bool = False

    def markdown(self) -> str:
        """Write the table as Markdown.

        >>> print(TextTable(("", "R@1"), [("a", "1.0")]).markdown(), end="")
        | | R@1 |
        | --- | ---: |
        | a | 1.0 |
        """
        rules = ["---", *["---:"] * (len(self.headings) - 1)]
        if self.last_is_text:
            rules[-1] = "---"
        cells = [[cell.replace("|", "\\|") for cell in row] for row in self.rows]
        lines = [f"| {' | '.join(row)} |" for row in (rules, *cells)]
        return "\n".join([f"| {' | '.join(self.headings).lstrip()} |", *lines]) + "\n"


@dataclass(frozen=True)
class Reference:
    """The rsum that somebody else reports for the same rows, to stand beside."""

    name: str
    "Whose figures they are, as in `paper`."
    rsum: Mapping[str, float]
    "By label."
    of: str = ""
    "The data and the models that they are about."

    def covers(self, rows: Sequence[ResultRow]) -> bool:
        return any(row.label in self.rsum for row in rows)

    def shown(self, row: ResultRow, first: ResultRow) -> str:
        """Show a row's rsum, and its difference from that of the first row of the group."""
        if row.label not in self.rsum:
            return ""
        rsum, base = self.rsum[row.label], self.rsum.get(first.label)
        return f"{rsum:.1f}" + ("" if row is first or base is None else f" ({rsum - base:+z.1f})")


NO_REFERENCE = Reference("", {})


@dataclass(frozen=True)
class ShownFigure:
    """A figure as text."""

    value: str
    deviation: str = ""
    best: bool = False

    @property
    def plain(self) -> str:
        return f"{self.value} ± {self.deviation}" if self.deviation else self.value


@dataclass(frozen=True)
class ShownRow:
    """A row of the table as text."""

    label: str
    figures: tuple[ShownFigure, ...]
    seeds: str
    interval: str
    "Of rsum."
    gains: tuple[str, ...]
    "Of the figures in `COMPARED`, over the first row of the group; empty for that row."
    reference: str

    @property
    def gain(self) -> str:
        """The gain in rsum."""
        return self.gains[-1] if self.gains else ""

    @property
    def is_compared(self) -> bool:
        """Whether the row has anything but its figures."""
        return bool(self.interval != _MISSING or self.gains or self.reference)


def shown_groups(
    rows: Sequence[ResultRow], reference: Reference = NO_REFERENCE
) -> list[list[ShownRow]]:
    """Show the rows of each group, in order."""
    return [_shown_group(group, reference) for group in groups_of(rows)]


def _shown_group(group: Sequence[ResultRow], reference: Reference) -> list[ShownRow]:
    best = {
        name: max((f"{row.spreads[name].mean:.1f}" for row in group if row.spreads), key=float)
        for name in PAPER_FIGURES
        if sum(bool(row.spreads) for row in group) > 1
    }
    shown = []
    for row in group:
        gains, drawn, done = row.minus(group[0]), row.resampled, len(row.trainings)
        figures = [_figure(row.spreads.get(name), best.get(name)) for name in PAPER_FIGURES]
        shown.append(
            ShownRow(
                label=row.label,
                figures=tuple(figures),
                seeds=f"{done}" if done == len(row.seeds) else f"{done} of {len(row.seeds)}",
                interval=_MISSING if drawn is None else shown_interval(drawn.intervals()["rsum"]),
                gains=tuple(_gain(gains[name]) for name in COMPARED) if gains else (),
                reference=reference.shown(row, group[0]),
            )
        )
    return shown


def _figure(spread: Spread | None, best: str | None) -> ShownFigure:
    """Equal after rounding is equally good, as in the paper."""
    if spread is None:
        return ShownFigure(_MISSING)
    value = f"{spread.mean:.1f}"
    deviation = "" if spread.deviation is None else f"{spread.deviation:.1f}"
    return ShownFigure(value, deviation, best=value == best)


def shown_interval(interval: Interval) -> str:
    return f"[{interval.low:.1f}, {interval.high:.1f}]"


def _gain(gain: Gain) -> str:
    deviation, interval = gain.spread.deviation, gain.interval
    parts = [
        f"{gain.spread.mean:+z.1f}",
        "" if deviation is None else f"± {deviation:.1f}",
        "" if interval is None else shown_interval(interval),
    ]
    return " ".join(filter(None, parts))


def has_seeds(rows: Sequence[ResultRow]) -> bool:
    """Return whether any row is trained with several seeds."""
    return any(len(row.seeds) > 1 for row in rows)


def notes_of(rows: Sequence[ResultRow], reference: Reference = NO_REFERENCE) -> list[str]:
    """Return the sentences below the table."""
    is_cited = reference.of and reference.covers(rows)
    cited = [f"The {reference.name}'s rsum is that of {reference.of}."] if is_cited else []
    return [*(row.note for row in rows if row.note), *cited, *_gate_notes(rows)]


def _gate_notes(rows: Sequence[ResultRow]) -> Iterator[str]:
    """Say of each simple model which other rows are above it, and which are not."""
    means = {row: row.spreads["rsum"].mean for row in rows if row.trainings}
    for simple, least in means.items():
        others = [row for row in means if not row.simple]
        if simple.simple and others:
            above = ", ".join(row.label for row in others if means[row] > least) or "none"
            below = ", ".join(row.label for row in others if means[row] <= least) or "none"
            yield f"Above {simple.label} (rsum {least:.1f}): {above}. Not above: {below}."


def markdown_table(rows: Sequence[ResultRow], reference: Reference = NO_REFERENCE) -> str:
    """Write one table; the first row of a group has a bold label.

    Deviations are over the seeds, brackets 95 % intervals over the queries.
    """
    seeds = ["seeds"] if has_seeds(rows) else []
    last = [f"{reference.name}'s rsum"] if reference.covers(rows) else []
    headings = ("", *HEADINGS, *seeds, "rsum, interval", "rsum more than the first", *last)
    lines = []
    for group in shown_groups(rows, reference):
        for row in group:
            label = f"**{row.label}**" if row is group[0] else row.label
            figures = [f"**{cell.plain}**" if cell.best else cell.plain for cell in row.figures]
            rest = (*([row.seeds] if seeds else []), row.interval, row.gain, row.reference)
            lines.append((label, *figures, *rest)[: len(headings)])
    notes = "".join(f"\n{note}\n" for note in notes_of(rows, reference))
    return TextTable(headings, lines).markdown() + notes


def terminal_tables(
    rows: Sequence[ResultRow], *, title: str, reference: Reference = NO_REFERENCE
) -> list[Table]:
    """Make a table of the figures, and one of the intervals of rsum if there are any."""
    seeds = ["seeds"] if has_seeds(rows) else []
    last = [f"{reference.name}'s"] if reference.covers(rows) else []
    deviations = "± over seeds, " if seeds else ""
    labels = [row.label for row in rows]
    figures = _table(title, labels, notes=notes_of(rows, reference))
    for heading in (*HEADINGS, *seeds):
        figures.add_column(heading, justify="right")
    compared = _table(f"rsum: {deviations}[95 % interval] over queries", labels)
    for heading in ("rsum", "more than the first of the group", *last):
        compared.add_column(heading, justify="right", no_wrap=True)
    for group in shown_groups(rows, reference):
        for row in group:
            label, ends = Text(row.label), row is group[-1]
            cells = [
                Text(cell.plain.replace("± ", "±"), style="bold" if cell.best else "")
                for cell in row.figures
            ]
            figures.add_row(label, *cells, *([row.seeds] if seeds else []), end_section=ends)
            if row.is_compared:
                shown = (row.interval, row.gain, row.reference)[: 2 + len(last)]
                compared.add_row(label, *shown, end_section=ends)
    return [figures, compared] if compared.rows else [figures]


def grid_table(runs: Sequence[GridRun], results: Results, *, narrow: bool = False) -> Table:
    """List rows, their recipes and rsum by seed: on test, or on dev if no row has test.

    A narrow table has each change of a recipe on a line of its own, so that no name is broken.
    """
    listed = {run.key: run for run in runs if run.is_row}
    sources = {run.label: run.source for run in listed.values()}
    seeds = list(dict.fromkeys(seed for _, seed in listed))
    split = judged_split(results.lines[key] for key in listed if key in results.lines)
    chosen = [c.sentence(results.choices[c.label]) for c in results.definition.choices]
    title = f"{results.definition.description} rsum on {split}.".lstrip()
    table = _table(title, sources, notes=chosen)
    table.add_column("recipe", no_wrap=True)
    for seed in seeds:
        table.add_column(f"seed {seed}", justify="right", no_wrap=True)
    for label, recipe in sources.items():
        values = [_listed(listed.get((label, seed)), results, split) for seed in seeds]
        table.add_row(Text(label), Text(recipe.replace("+", "\n+") if narrow else recipe), *values)
    return table


def _listed(run: GridRun | None, results: Results, split: str) -> str:
    if run is None:
        return ""
    line = results.lines.get(run.key)
    if line is None:
        return "-"
    figure = f"{line[split]['rsum']:.1f}" if line[split] else f"(no {split})"
    return f"{figure} (other settings)" if line.get("digest") != run.digest else figure


def _table(title: str, labels: Iterable[str], *, notes: Sequence[str] = ()) -> Table:
    table = Table(
        title=title,
        title_justify="left",
        caption=Text("\n".join(notes)),
        caption_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    table.add_column("", min_width=longest_word(labels))
    return table
