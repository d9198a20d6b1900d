"""The mining report on the terminal: what was kept and dropped, its scores, and examples."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import shorten

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from aoq.mining.report import PERCENTILES, MiningReport, ScoreSummary

_WORDS_SHOWN = 64  # characters of a caption


def report_view(report: MiningReport) -> Group:
    """Show the scores, notes on them, and one example of each rule and direction."""
    parts: list[Table | Text] = [_scores_table(report), *_notes(report)]
    if any(dropped.examples for dropped in (*report.i2t.dropped, *report.t2i.dropped)):
        parts.append(_examples_table(report))
    return Group(*parts)


def _scores_table(report: MiningReport) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=0)
    table.add_column("scores of", no_wrap=True)
    for heading in ("number", "sampled", *(f"{percent}%" for percent in PERCENTILES)):
        table.add_column(heading, justify="right", min_width=6)

    def add(name: str, scores: ScoreSummary) -> None:
        values = (f"{value:.3f}" for value in scores.percentiles.values())
        table.add_row(name, f"{scores.n:,}", f"{scores.n_sampled:,}", *values)

    add("positive pairs", report.positives)
    for lists, direction in (("i2t", report.i2t), ("t2i", report.t2i)):
        add(f"{lists} kept", direction.kept)
        if direction.dropped:
            table.add_row(f"{lists} dropped by")
        for dropped in direction.dropped:
            add(f"  {dropped.rule}", dropped.scores)
    return table


def _notes(report: MiningReport) -> Iterator[Text]:
    i2t, t2i = report.i2t, report.t2i
    ranked = f"the lists of {i2t.n_ranked} images and {t2i.n_ranked} texts"
    if i2t.dropped and i2t.n_ranked:
        yield Text(f"What was dropped is sampled from {ranked}.", style="dim")
    yield Text(f"{report.product.sentence[0].upper()}{report.product.sentence[1:]}.", style="dim")
    if i2t.n_excused or t2i.n_excused:
        yield Text(
            f"{i2t.n_excused:,} images and {t2i.n_excused:,} texts keep what the rules would drop: "
            "too few candidates would be left."
        )
    for name, lists in (("i2t", i2t), ("t2i", t2i)):
        if lists.matches is not None:
            shares = (f"{p:.0%} at rank {rank}" for rank, p in lists.matches.by_rank.items())
            yield Text(
                f"{name}: {lists.matches.share:.1%} of the candidates are right, by estimate: "
                f"{', '.join(shares)}."
            )
    if i2t.recall is not None and t2i.recall is not None:
        yield Text(
            f"{report.precision} finds {i2t.recall:.2%} (i2t) and {t2i.recall:.2%} (t2i) of the "
            f"candidates that float32 finds, by {ranked}."
        )


def _examples_table(report: MiningReport) -> Table:
    """Show the hardest candidate of each rule, with its anchor first."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("dropped by", no_wrap=True)
    table.add_column("score", justify="right")
    table.add_column("positive", justify="right")
    table.add_column("anchor")
    table.add_column("candidate")
    for lists, direction in (("i2t", report.i2t), ("t2i", report.t2i)):
        for dropped in direction.dropped:
            for example in dropped.examples[:1]:
                image = Text(f"{example.image}: ", style="dim").append(
                    shorten(example.caption, _WORDS_SHOWN), style="not dim"
                )
                text = Text(shorten(example.words, _WORDS_SHOWN))
                table.add_row(
                    dropped.rule,
                    f"{example.score:.3f}",
                    f"{example.best_positive:.3f}",
                    *((image, text) if lists == "i2t" else (text, image)),
                )
    return table
