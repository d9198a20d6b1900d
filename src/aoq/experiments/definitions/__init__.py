"""Definitions of experiments: TOML files of rows, each a recipe, the shipped ones by name.

    name = "mine"
    description = "What it shows."
    data = "Which data set it is meant for, and how to build it."
    seeds = [0, 1, 2]
    teacher = "vsrn-flickr8k+online"   # mines the lists that rows draw from: a row or a recipe

    [mining]                           # laid over all recipes, as are [settings]
    depth_texts = 1000
    depth_images = 200

    [[rows]]
    label = "VSRN + OffTri"
    recipe = "vsrn-flickr8k+off-tri"
    settings = { round_two.epochs = 4 }  # laid over this recipe
    teacher = "VSRN"                     # instead of the one above
    seeds = [0]                          # fewer than the others

    [[choices]]                        # one row of the report: the best of some on dev
    label = "VSRN, tuned"
    of = ["VSRN, alpha 0.2", "VSRN, alpha 0.3"]
    seeds = [0]                        # those to choose by; what is chosen is trained with all

    [[ensembles]]                      # judged when the report is written, from what is trained
    label = "VSRN, two seeds"
    members = ["VSRN", "VSRN, seed 1"] # rows with the ensemble's seed, or with one of their own
    seeds = [0]

    [paper]                            # what the paper has for rows, to stand beside
    of = "table 1: MS-COCO, 1,000 test images, two models together"
    rsum."VSRN + OffTri" = 518.6

    [[claims]]                         # what the paper says of rows; the report judges it
    says = "offline negatives help"
    row = "VSRN + OffTri"              # a list: their mean
    above = "VSRN"                     # its rsum is the higher one; instead of this also
    # like = "VSRN", within = 5        #   it differs by less than 5
    # not_above = "VSRN", within = 5   #   it is not higher by 5
    # below = 25                       #   it is below 25

Only the rows are needed. A teacher trains round one alone; rows that draw from lists and have no
teacher mine their own.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from math import inf
from pathlib import Path
from types import UnionType
from typing import Any

from aoq.errors import UserError
from aoq.experiments.definitions.parts import (
    Choice,
    Claim,
    Definition,
    EnsembleRow,
    Paper,
    Row,
)
from aoq.experiments.definitions.soundness import require_sound

__all__ = [
    "Choice",
    "Claim",
    "Definition",
    "EnsembleRow",
    "Paper",
    "Row",
    "load_definition",
    "shipped_definitions",
]

_SHIPPED = Path(__file__).resolve().parent
_KINDS: Mapping[str, type] = {
    "name": str,
    "description": str,
    "data": str,
    "seeds": list,
    "teacher": str,
    "mining": dict,
    "settings": dict,
    "rows": list,
    "ensembles": list,
    "choices": list,
    "paper": dict,
    "claims": list,
}
_ROW_KINDS: Mapping[str, type] = {
    "label": str,
    "recipe": str,
    "settings": dict,
    "teacher": str,
    "seeds": list,
}
_CHOICE_KINDS: Mapping[str, type] = {"label": str, "of": list, "seeds": list}
_ENSEMBLE_KINDS: Mapping[str, type] = {"label": str, "members": list, "seeds": list}
_PAPER_KINDS: Mapping[str, type] = {"of": str, "rsum": dict}
_CLAIM_KINDS: Mapping[str, type | UnionType] = {
    "says": str,
    "row": str | list,
    "above": str | list,
    "like": str | list,
    "not_above": str | list,
    "within": int | float,
    "below": int | float,
}
_EXPECTED: Mapping[type | UnionType, str] = {
    str: "text",
    list: "a list",
    dict: "a table",
    str | list: "text or a list",
    int | float: "a number",
}


def shipped_definitions() -> dict[str, str]:
    """The experiments that come with the package: their names and what each is."""
    return {
        path.stem: load_definition(path.stem).description
        for path in sorted(_SHIPPED.glob("*.toml"))
    }


def load_definition(name: str | Path) -> Definition:
    """A definition by its shipped name or by the path of a TOML file, with mistakes refused.

    >>> load_definition("scenes-table1").rows[1].recipe
    'scenes-tiny+off-tri'
    """
    path = Path(name) if Path(name).suffix == ".toml" else _SHIPPED / f"{name}.toml"
    if not path.is_file():
        known = ", ".join(_shipped_names())
        raise UserError(f"there is no experiment {name}; give a .toml file or one of: {known}.")
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is no TOML file: {error}.") from None
    definition = _parsed(table, path)
    require_sound(definition)
    return definition


def _shipped_names() -> list[str]:
    return sorted(path.stem for path in _SHIPPED.glob("*.toml"))


def _parsed(table: Mapping[str, Any], path: Path) -> Definition:
    _require_kinds(table, _KINDS, where=str(path))
    if not table.get("rows"):
        raise UserError(f"{path} has no rows; add a table [[rows]] with a label and a recipe.")
    rows = [
        Row(**{**row, "seeds": tuple(row.get("seeds", ()))})
        for row in _tables(table, "rows", _ROW_KINDS, ("label", "recipe"), path=path)
    ]
    ensembles = [
        EnsembleRow(row["label"], tuple(row["members"]), tuple(row.get("seeds", (0,))))
        for row in _tables(table, "ensembles", _ENSEMBLE_KINDS, ("label", "members"), path=path)
    ]
    seeds = tuple(table.get("seeds", (0,)))
    choices = [
        Choice(row["label"], tuple(row["of"]), tuple(row.get("seeds", seeds)))
        for row in _tables(table, "choices", _CHOICE_KINDS, ("label", "of"), path=path)
    ]
    paper = table.get("paper")
    if paper is not None:
        _require_kinds(paper, _PAPER_KINDS, where=f"{path}: paper")
    claims = [
        _claim(row, where=f"{path}: claim {row['says']!r}")
        for row in _tables(table, "claims", _CLAIM_KINDS, ("says", "row"), path=path)
    ]
    found = {
        **table,
        "claims": tuple(claims),
        "paper": None if paper is None else Paper(paper.get("of", ""), paper.get("rsum", {})),
        "rows": tuple(rows),
        "ensembles": tuple(ensembles),
        "choices": tuple(choices),
        "seeds": seeds,
    }
    return Definition(source=path.resolve(), **{"name": path.stem, **found})


def _claim(table: Mapping[str, Any], *, where: str) -> Claim:
    kinds = [kind for kind in ("above", "like", "not_above", "below") if kind in table]
    if len(kinds) != 1 or ("within" in table) != (kinds[0] in ("like", "not_above")):
        raise UserError(
            f"{where} says {', '.join(kinds) or 'nothing'} of {table['row']!r}; expected one of "
            "above, below, and like or not_above with within."
        )
    (kind,) = kinds
    rows, than = (
        (value,) if isinstance(value, str) else tuple(value)
        for value in (table["row"], () if kind == "below" else table[kind])
    )
    within = table.get("within", 0.0)
    if "within" in table and within <= 0:
        raise UserError(f"{where} has within = {within}; expected how much more or less is alike.")
    low, high = {
        "above": (0.0, inf),
        "like": (-within, within),
        "not_above": (-inf, within),
        "below": (-inf, table.get("below", inf)),
    }[kind]
    return Claim(table["says"], rows, than, low, high)


def _tables(
    table: Mapping[str, Any],
    name: str,
    kinds: Mapping[str, type | UnionType],
    needed: tuple[str, ...],
    *,
    path: Path,
) -> list[dict[str, Any]]:
    """The tables of one name, [[rows]] for instance, each sound by itself."""
    for number, row in enumerate(table.get(name, ()), start=1):
        where = f"{path}: {name.removesuffix('s')} {number}"
        if not isinstance(row, dict):
            raise UserError(f"{where} is {row!r}; expected a table [[{name}]].")
        _require_kinds(row, kinds, where=where)
        for key in needed:
            if not row.get(key):
                raise UserError(f"{where} has no {key}; each needs {' and '.join(needed)}.")
    return list(table.get(name, ()))


def _require_kinds(
    table: Mapping[str, Any], kinds: Mapping[str, type | UnionType], *, where: str
) -> None:
    for key, value in table.items():
        if key not in kinds:
            raise UserError(f"{where}: there is no {key!r}; expected one of: {', '.join(kinds)}.")
        if not isinstance(value, kinds[key]):
            raise UserError(f"{where}: {key} is {value!r}; expected {_EXPECTED[kinds[key]]}.")
