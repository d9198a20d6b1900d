"""The paper's figures: cross-retrieval ranks, and the scores of the pair classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import TYPE_CHECKING

import numpy as np

from aoq.evaluation.cross_retrieval import CrossRetrieval
from aoq.experiments.figures import (
    COLOURS,
    DASHES,
    HATCHES,
    add_legend,
    even_columns,
    legend_height,
    styled_figure,
)
from aoq.experiments.rows import ResultRow
from aoq.types import Floats

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def cross_retrieval(rows: Sequence[ResultRow]) -> Figure | None:
    """Draw a histogram of the cross-retrieval ranks of the positive pairs, in percent.

    Several seeds are shown as their mean, with a line from the lowest to the highest.
    """
    ranked = {
        place: (row.label, shares) for place, row in enumerate(rows) if (shares := _shares(row))
    }
    if not ranked:
        return None
    names = [part.name for part in CrossRetrieval(np.ones(1)).histogram()]
    width = 0.84 / len(ranked)
    with styled_figure(2.4 + legend_height([label for label, _ in ranked.values()])) as figure:
        axis = figure.subplots()
        for number, (place, (label, of_seeds)) in enumerate(ranked.items()):
            drawn = np.array(of_seeds)  # (seeds, bins)
            middle = drawn.mean(axis=0)
            spread = np.stack([middle - drawn.min(axis=0), drawn.max(axis=0) - middle])
            axis.bar(
                np.arange(len(names)) + (number - (len(ranked) - 1) / 2) * width,
                middle,
                width,
                label=label,
                color=COLOURS[place] if place else "white",
                edgecolor="black",
                linewidth=0.6,
                hatch=HATCHES[place],
                yerr=spread if len(drawn) > 1 else None,
                error_kw={"linewidth": 0.8, "ecolor": "black"},
            )
        axis.set_xticks(range(len(names)), names)
        axis.set_xlabel("cross-retrieval rank")
        axis.set_ylabel("% of the positive pairs")
        axis.grid(axis="y", linewidth=0.4, alpha=0.6)
        add_legend(figure, axis)
    return figure


def _shares(row: ResultRow) -> list[list[float]]:
    """Return the share of the pairs in each bin, for every seed."""
    return [
        [part.share for part in CrossRetrieval.of([training.ranks]).histogram()]
        for training in row.trainings
        if training.ranks is not None
    ]


def score_distributions(scores: Mapping[str, Mapping[str, Floats]]) -> Figure | None:
    """Draw one panel per model: the scores of each pair class as distributions with medians."""
    if not scores:
        return None
    values = np.concatenate([part for of_row in scores.values() for part in of_row.values()])
    low, high = np.percentile(values, [0.1, 99.9])
    edges = np.linspace(low, high, 49)
    columns = even_columns(len(scores), at_most=3)
    lines = -(-len(scores) // columns)
    names = list(next(iter(scores.values())))
    with styled_figure(1.9 * lines + legend_height(names)) as figure:
        axes = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False).flatten()
        for axis, (label, of_row) in zip(axes, scores.items(), strict=False):
            for place, (name, part) in enumerate(of_row.items()):
                look = {"color": COLOURS[place], "linestyle": DASHES[place]}
                density, _ = np.histogram(part, edges, density=True)
                axis.stairs(density, edges, label=name, linewidth=1.3, **look)
                axis.axvline(float(np.median(part)), linewidth=0.8, alpha=0.7, **look)
            axis.set_title(fill(label, 88 // columns))
            axis.set_yticks([])
        for axis in axes[len(scores) :]:
            axis.set_axis_off()
        for axis in axes[max(0, len(scores) - columns) : len(scores)]:
            axis.set_xlabel("score")
            axis.tick_params(labelbottom=True)
        add_legend(figure, axes[0])
    return figure
