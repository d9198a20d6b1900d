"""The paper's tables as recipes: which runs make each row.

A row has two recipes, whose scores are averaged: BFAN prob and equal, as the paper states, SCAN t2i
and i2t and two VSRNs of different seeds, as their own papers do. That the rows of tables 3 to 5 are
also ensembles is our interpretation: they are compared with the figures of table 1. Table 6 is
about the time of a step, so one model is enough. The text names neither model nor equation for
squared hinges; it tries them before it introduces Eq. 5, hence VSRN with Eq. 4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from aoq.errors import UserError

Table = Literal["1", "2", "3", "4", "5", "6", "text"]


@dataclass(frozen=True)
class PaperRow:
    """A row of a table, or a run that only the text mentions."""

    table: Table
    label: str
    "The row's name in the paper; 5K if the same models are evaluated on all COCO test images."
    recipes: tuple[str, ...]
    "The models whose scores are averaged."


_OTHER_HALF = {
    "scan-coco": "scan-i2t-coco",
    "scan-f30k": "scan-i2t-f30k",
    "bfan-coco": "bfan-equal",
    "bfan-f30k": "bfan-equal",
    "vsrn-coco": "seed-1",
    "vsrn-f30k": "seed-1",
}
# As the paper writes them, and as changes.
_LOSSES = {
    "": "online",
    " + OffTri": "off-tri",
    " + OffQuin": "off-quin",
    " + AdapOffQuin": "adap-off-quin",
}
_VARIANTS = {
    "OnlyOffline": "only-offline",
    "Fine-tune": "fine-tune",
    "OnlineQuin": "online-quin",
    "w/o OfflineAdap": "wo-offline-adap",
}
_FINAL = ("", " + AdapOffQuin")  # the losses of the shorter tables
_WEIGHTS = (("1.5", "0.2"), ("1.5", "0.3"), ("1.5", "0.5"), ("1.0", "0.3"), ("2.0", "0.3"))


def paper_rows(table: str | None = None) -> list[PaperRow]:
    """Return the rows of one table in the paper's order, or of all tables."""
    if table is not None and table not in get_args(Table):
        known = ", ".join(get_args(Table))
        raise UserError(f"there is no table {table!r} of recipes; expected one of: {known}.")
    return [row for row in _rows() if table in (None, row.table)]


def _rows() -> list[PaperRow]:
    models = {"SCAN": "scan", "BFAN": "bfan", "VSRN": "vsrn"}
    rows = [
        PaperRow("1", model + loss, _ensemble(f"{name}-coco", change))
        for model, name in models.items()
        for loss, change in _LOSSES.items()
    ]
    rows += [
        PaperRow("1", f"{model}{loss}, 5K", _ensemble(f"{name}-coco", _LOSSES[loss]))
        for model, name in models.items()
        for loss in _FINAL
    ]
    rows += [
        PaperRow("2", model + loss, _ensemble(f"{name}-f30k", _LOSSES[loss]))
        for model, name in models.items()
        for loss in _FINAL
    ]
    rows += [
        PaperRow("3", f"{model} ({variant})", _ensemble(f"{models[model]}-coco", change))
        for variant, change in _VARIANTS.items()
        for model in ("BFAN", "VSRN")
    ]
    rows += [
        PaperRow("3", f"VSRN (h = {depth})", _ensemble("vsrn-coco", f"h{depth}"))
        for depth in (200, 500, 1000)
    ]
    rows += [PaperRow("4", "VSRN", _ensemble("vsrn-coco", "online", "batch192"))]
    rows += [
        PaperRow(
            "5",
            f"VSRN (beta = {beta}, alpha = {alpha})",
            _ensemble("vsrn-coco", f"beta-{beta}", f"alpha-{alpha}"),
        )
        for beta, alpha in _WEIGHTS
    ]
    rows += [
        PaperRow("6", f"VSRN{loss}", (f"vsrn-coco+{change}",)) for loss, change in _LOSSES.items()
    ]
    return [
        *rows,
        PaperRow("text", "VSRN (squared)", _ensemble("vsrn-coco", "off-quin", "squared")),
        PaperRow("text", "VSRN (normal distribution)", _ensemble("vsrn-coco", "normal-draws")),
    ]


def _ensemble(base: str, *changes: str) -> tuple[str, str]:
    return "+".join((base, *changes)), "+".join((base, _OTHER_HALF[base], *changes))
