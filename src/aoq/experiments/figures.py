"""Figures as SVG text, readable in print and for the colour-blind."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from aoq.errors import require_packages

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's palette; every curve also has a marker of its own.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9")
MARKERS = ("o", "s", "^", "D", "v", "P")

Curve = Sequence[tuple[int, float]]


def training_curves(panels: Mapping[str, Mapping[str, Curve]]) -> str:
    """One panel a figure of merit, one curve a setting, by epoch; an SVG."""
    require_packages("matplotlib", extra="web")
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "aoq"}):
        figure = Figure(figsize=(4.2 * len(panels), 3.1), layout="constrained")
        axes = figure.subplots(1, len(panels), squeeze=False)[0]
        for axis, (title, curves) in zip(axes, panels.items(), strict=True):
            _draw_panel(axis, title, curves)
            axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def _draw_panel(axis: Axes, title: str, curves: Mapping[str, Curve]) -> None:
    for place, (name, points) in enumerate(curves.items()):
        epochs, values = zip(*points, strict=True) if points else ((), ())
        axis.plot(
            epochs,
            values,
            label=name,
            color=COLOURS[place % len(COLOURS)],
            marker=MARKERS[place % len(MARKERS)],
            markersize=4,
            linewidth=1.6,
        )
    axis.set_title(title, fontsize=10, loc="left")
    axis.set_xlabel("epoch", fontsize=9)
    axis.tick_params(labelsize=8)
    axis.grid(axis="y", linewidth=0.4, alpha=0.6)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
