"""Examples as figures for print, with their pictures.

The pictures may be under copyright, so these figures are never part of the repository.
"""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill
from typing import TYPE_CHECKING

from aoq.data.items import Item
from aoq.experiments.examples import Retrieval
from aoq.experiments.figures import styled_figure
from aoq.experiments.negatives import Negatives
from aoq.html import small_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_RIGHT = "#00735a"
_SIDE = 320  # pixels of a picture's longer side
_LETTERS = 15  # of 8 points in an inch


def sentence_retrievals(examples: Sequence[Retrieval]) -> Figure | None:
    """Draw a picture and the first sentences of two settings."""
    if not examples:
        return None
    with styled_figure(2.2 * len(examples)) as figure:
        axes = figure.subplots(len(examples), 3, squeeze=False, width_ratios=(1.4, 2.8, 2.8))
        for line, example in zip(axes, examples, strict=True):
            _show(line[0], example.query)
            for axis, answers in zip(line[1:], example.answers, strict=True):
                axis.set_axis_off()
                axis.set_title(f"{answers.setting}: rank {answers.rank}", fontsize=8)
                top = 1.0
                for item in answers.items:
                    text = fill(f"{'✓' if item.right else '·'} {item.text}", int(2.8 * _LETTERS))
                    axis.text(0, top, text, va="top", color=_RIGHT if item.right else "black")
                    top -= 0.03 + 0.075 * (text.count("\n") + 1)
    return figure


def image_retrievals(examples: Sequence[Retrieval]) -> Figure | None:
    """Draw a sentence and the first pictures of two settings."""
    if not examples:
        return None
    with styled_figure(1.75 * len(examples)) as figure:
        bands = figure.subfigures(len(examples), 1, squeeze=False)[:, 0]
        for band, example in zip(bands, examples, strict=True):
            band.suptitle(fill(f"“{example.query.text}”", 100), fontsize=8, x=0.01, ha="left")
            for half, answers in zip(band.subfigures(1, 2), example.answers, strict=True):
                title = f"{answers.setting}: rank {answers.rank}"
                half.suptitle(title, fontsize=8, x=0.02, ha="left", color="#5b6577")
                axes = half.subplots(1, len(answers.items), squeeze=False)[0]
                for axis, item in zip(axes, answers.items, strict=True):
                    _show(axis, item)
    return figure


def negatives_side_by_side(examples: Sequence[Negatives]) -> Figure | None:
    """Draw anchors with their positive, their online and their offline hard negative."""
    if not examples:
        return None
    with styled_figure(1.95 * len(examples)) as figure:
        axes = figure.subplots(len(examples), 3, squeeze=False)
        for line, example in zip(axes, examples, strict=True):
            pair = (example.anchor, example.positive)
            picture = next((item for item in pair if item.picture is not None), pair[0])
            own = example.positive if example.direction == "i2t" else example.anchor
            _show(line[0], picture, f"the pair\n{_short(own)}")
            _show(line[1], example.online, f"online, {_described(example.online)}")
            _show(line[2], example.offline, f"offline, {_described(example.offline)}")
    return figure


def _show(axis: Axes, item: Item, title: str = "") -> None:
    """Draw the picture, framed if it is right; without a picture, the words."""
    axis.set_xticks([])
    axis.set_yticks([])
    picture = small_picture(item.picture, side=_SIDE)
    if picture is None:
        axis.text(0.5, 0.5, fill(item.text, 30), ha="center", va="center")
        axis.set_xlim(0, 1)
    else:
        axis.imshow(picture)
        axis.set_anchor("W")
    for spine in axis.spines.values():
        spine.set_visible(picture is None or item.right)
        spine.set(color=_RIGHT if item.right else "#999999", linewidth=3 if item.right else 0.6)
    if item.right:
        axis.set_xlabel("✓", color=_RIGHT, labelpad=1)
    if title:
        axis.set_title(title, fontsize=8)


def _described(item: Item) -> str:
    score = "" if item.score is None else f"score {item.score:.2f}"
    words = ", ".join(part for part in (score, item.note) if part)
    return f"{words}\n{_short(item)}" if item.picture is not None else words


def _short(item: Item) -> str:
    return fill(item.text, 2 * _LETTERS)
