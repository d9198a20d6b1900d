"""Figures for print: curves, histograms and distributions, as PNG and SVG.

Made for the width of a page with letters of 8 points, so they are not to be shrunk. Colours are
Okabe and Ito's, which the colour-blind tell apart; everything that has a colour has a marker, a
dash or a hatch as well, for prints in black and white. Seven settings are as many as a figure can
show: larger groups go over several, each beginning with the first row.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from aoq.errors import require_packages
from aoq.evaluation.cross_retrieval import CrossRetrieval
from aoq.experiments.report.rows import ResultRow
from aoq.storage import atomic_file
from aoq.types import Floats

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#000000", "#E69F00", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))
HATCHES = ("", "////", "....", "\\\\\\\\", "xxxx", "oo", "++")
AT_ONCE = len(COLOURS)
PAGE = 7.0  # inches
_DPI = 200
_STYLE: Any = {
    "font.size": 8,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "axes.labelsize": 8,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "hatch.linewidth": 0.6,
    "svg.hashsalt": "aoq",  # the same figure is the same file
}
_CURVES = {"rsum": "rsum", "i2t_r1": "R@1, sentences (i2t)", "t2i_r1": "R@1, images (t2i)"}


@dataclass(frozen=True)
class Drawing:
    """A figure with what it says in words."""

    name: str
    title: str
    figure: Figure

    def svg(self) -> str:
        buffer = io.StringIO()
        self._save(buffer, "svg")
        return buffer.getvalue()

    def save(self, folder: Path) -> None:
        for kind in ("png", "svg"):
            with atomic_file(folder / f"{self.name}.{kind}") as temporary:
                self._save(temporary, kind)

    def _save(self, file: Path | io.StringIO, kind: str) -> None:
        import matplotlib as mpl

        metadata: dict[str, Any] = {"Date": None} if kind == "svg" else {"Software": None}
        with mpl.rc_context(_STYLE):
            self.figure.savefig(file, format=kind, dpi=_DPI, metadata=metadata)


@contextmanager
def drawing(height: float) -> Iterator[Figure]:
    """An empty figure; what is drawn inside has the style of all."""
    require_packages("matplotlib", extra="web")
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(_STYLE):
        yield Figure(figsize=(PAGE, height), layout="constrained")


def in_parts(group: Sequence[ResultRow]) -> list[list[ResultRow]]:
    """As many rows as a figure can show, the first of the group in each.

    >>> rows = [ResultRow(str(number), "", (), ()) for number in range(9)]
    >>> [[row.label for row in part] for part in in_parts(rows)]
    [['0', '1', '2', '3', '4', '5', '6'], ['0', '7', '8']]
    """
    first, others = group[0], list(group[1:])
    starts = range(0, max(len(others), 1), AT_ONCE - 1)
    return [[first, *others[start : start + AT_ONCE - 1]] for start in starts]


def training_curves(rows: Sequence[ResultRow]) -> Figure | None:
    """Figures on dev by epoch: the mean over the seeds, and from the lowest to the highest."""
    curves = {
        place: (row.label, points) for place, row in enumerate(rows) if (points := _curves_of(row))
    }
    if not curves:
        return None
    from matplotlib.ticker import MaxNLocator

    with drawing(2.2 + _legend_height([label for label, _ in curves.values()])) as figure:
        axes = figure.subplots(1, len(_CURVES), squeeze=False)[0]
        for axis, (name, title) in zip(axes, _CURVES.items(), strict=True):
            for place, (label, points) in curves.items():
                _draw_curve(axis, points, name, place, label)
            axis.set_title(f"dev {title}")
            axis.set_xlabel("epoch")
            axis.xaxis.set_major_locator(MaxNLocator(integer=True))
            axis.grid(axis="y", linewidth=0.4, alpha=0.6)
        _legend(figure, axes[0])
    return figure


Points = Mapping[int, Sequence[Mapping[str, float]]]


def _curves_of(row: ResultRow) -> Points:
    """By epoch, the validations of all seeds."""
    points: dict[int, list[Mapping[str, float]]] = {}
    for training in row.trainings:
        for point in training.line.get("curve", ()):
            points.setdefault(point["epoch"], []).append(point)
    return dict(sorted(points.items()))


def _draw_curve(axis: Axes, points: Points, name: str, place: int, label: str) -> None:
    epochs = list(points)
    values = [[point[name] for point in of_seeds] for of_seeds in points.values()]
    colour = COLOURS[place]
    axis.plot(
        epochs,
        [float(np.mean(of_seeds)) for of_seeds in values],
        label=label,
        color=colour,
        marker=MARKERS[place],
        linestyle=DASHES[place],
        markersize=4,
        linewidth=1.3,
    )
    if any(len(of_seeds) > 1 for of_seeds in values):
        low, high = [min(v) for v in values], [max(v) for v in values]
        axis.fill_between(epochs, low, high, color=colour, alpha=0.12, linewidth=0)


def cross_retrieval(rows: Sequence[ResultRow]) -> Figure | None:
    """How many percent of the positive pairs have which cross-retrieval rank, row by row.

    Of several seeds the mean, with a line from the lowest to the highest.
    """
    ranked = {
        place: (row.label, shares)
        for place, row in enumerate(rows)
        if (shares := _cross_shares(row))
    }
    if not ranked:
        return None
    names = [part.name for part in CrossRetrieval(np.ones(1)).histogram()]
    width = 0.84 / len(ranked)
    with drawing(2.4 + _legend_height([label for label, _ in ranked.values()])) as figure:
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
        _legend(figure, axis)
    return figure


def _cross_shares(row: ResultRow) -> list[list[float]]:
    """Of every seed, the share of the pairs in each bin."""
    return [
        [part.share for part in CrossRetrieval.of([training.ranks]).histogram()]
        for training in row.trainings
        if training.ranks is not None
    ]


def score_distributions(scores: Mapping[str, Mapping[str, Floats]]) -> Figure | None:
    """A panel a model: how the scores of each pair class are distributed, with their medians."""
    if not scores:
        return None
    values = np.concatenate([part for of_row in scores.values() for part in of_row.values()])
    low, high = np.percentile(values, [0.1, 99.9])
    edges = np.linspace(low, high, 49)
    columns = _columns(len(scores), at_most=3)
    lines = -(-len(scores) // columns)
    names = list(next(iter(scores.values())))
    with drawing(1.9 * lines + _legend_height(names)) as figure:
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
        _legend(figure, axes[0])
    return figure


def _legend(figure: Figure, axis: Axes) -> None:
    handles, labels = axis.get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=_legend_columns(labels),
        handlelength=3.2,
    )


def _legend_columns(labels: Sequence[str]) -> int:
    """As many as the width of the page has room for, filled evenly."""
    room = int(105 / (max(map(len, labels)) + 8))  # letters; a line and its margins are 8
    return _columns(len(labels), at_most=max(1, room))


def _legend_height(labels: Sequence[str]) -> float:
    """In inches."""
    return 0.15 + 0.17 * -(-len(labels) // _legend_columns(labels))


def _columns(count: int, *, at_most: int) -> int:
    """Columns of as many lines as there have to be, filled evenly.

    >>> [_columns(count, at_most=3) for count in (1, 2, 3, 4, 5, 7)]
    [1, 2, 3, 2, 3, 3]
    """
    lines = -(-count // at_most)
    return -(-count // lines)
