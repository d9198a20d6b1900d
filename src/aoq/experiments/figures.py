"""Figures for print: what all figures have in common, and the training curves.

Figures are as wide as a page and have letters of 8 points, so they must not be shrunk. Colours are
Okabe and Ito's, which the colour-blind can distinguish; everything with a colour also has a marker,
a dash or a hatch, for prints in black and white. A figure shows at most seven settings: larger
groups take several, each beginning with the first row.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from aoq.errors import require_packages
from aoq.experiments.rows import ResultRow
from aoq.storage import atomic_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#000000", "#E69F00", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))
HATCHES = ("", "////", "....", "\\\\\\\\", "xxxx", "oo", "++")
_AT_ONCE = len(COLOURS)
_WIDTH = 7.0  # inches, of a page
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
    """A figure with the name of its file and a description in words."""

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
def styled_figure(height: float) -> Iterator[Figure]:
    """Make an empty figure; everything drawn inside the context has the common style."""
    require_packages("matplotlib", extra="web")
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(_STYLE):
        yield Figure(figsize=(_WIDTH, height), layout="constrained")


def split_group(group: Sequence[ResultRow]) -> list[list[ResultRow]]:
    """Split a group into what a figure can show, with its first row in each.

    >>> rows = [ResultRow(str(number), "", (), ()) for number in range(9)]
    >>> [[row.label for row in part] for part in split_group(rows)]
    [['0', '1', '2', '3', '4', '5', '6'], ['0', '7', '8']]
    """
    first, others = group[0], list(group[1:])
    starts = range(0, max(len(others), 1), _AT_ONCE - 1)
    return [[first, *others[start : start + _AT_ONCE - 1]] for start in starts]


def training_curves(rows: Sequence[ResultRow]) -> Figure | None:
    """Draw figures on dev by epoch: the mean over the seeds, and the range of the seeds."""
    curves = {
        place: (row.label, points) for place, row in enumerate(rows) if (points := _curves_of(row))
    }
    if not curves:
        return None
    from matplotlib.ticker import MaxNLocator

    labels = [label for label, _ in curves.values()]
    with styled_figure(2.2 + legend_height(labels)) as figure:
        axes = figure.subplots(1, len(_CURVES), squeeze=False)[0]
        for axis, (name, title) in zip(axes, _CURVES.items(), strict=True):
            for place, (label, points) in curves.items():
                _draw_curve(axis, points, name, place, label)
            axis.set_title(f"dev {title}")
            axis.set_xlabel("epoch")
            axis.xaxis.set_major_locator(MaxNLocator(integer=True))
            axis.grid(axis="y", linewidth=0.4, alpha=0.6)
        add_legend(figure, axes[0])
    return figure


_Points = Mapping[int, Sequence[Mapping[str, float]]]


def _curves_of(row: ResultRow) -> _Points:
    """Collect the validations of all seeds by epoch."""
    points: dict[int, list[Mapping[str, float]]] = {}
    for training in row.trainings:
        for point in training.line.get("curve", ()):
            points.setdefault(point["epoch"], []).append(point)
    return dict(sorted(points.items()))


def _draw_curve(axis: Axes, points: _Points, name: str, place: int, label: str) -> None:
    epochs, colour = list(points), COLOURS[place]
    values = [[point[name] for point in of_seeds] for of_seeds in points.values()]
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


def add_legend(figure: Figure, axis: Axes) -> None:
    """Put the legend of an axis below the figure."""
    handles, labels = axis.get_legend_handles_labels()
    columns = _legend_columns(labels)
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, handlelength=3.2)


def legend_height(labels: Sequence[str]) -> float:
    """Return the height of a legend in inches."""
    return 0.15 + 0.17 * math.ceil(len(labels) / _legend_columns(labels))


def _legend_columns(labels: Sequence[str]) -> int:
    """Fill the width of the page evenly."""
    room = 105 // (max(map(len, labels)) + 8)  # letters; a line and its margins are 8
    return even_columns(len(labels), at_most=max(1, room))


def even_columns(count: int, *, at_most: int) -> int:
    """Spread items evenly over as few lines as possible; return the columns.

    >>> [even_columns(count, at_most=3) for count in (1, 2, 3, 4, 5, 7)]
    [1, 2, 3, 2, 3, 3]
    """
    return math.ceil(count / math.ceil(count / at_most))
