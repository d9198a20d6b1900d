"""Recipes: TOML files of the settings in `aoq.config`, the shipped ones by name.

A recipe may start with `extends = "other"` and then states only what it changes. The resolved
recipe is stored with each run as `config.toml`, which is a recipe again.
"""

from __future__ import annotations

import dataclasses
import tomllib
import typing
from pathlib import Path
from types import NoneType
from typing import Any

import tomli_w

from aoq.config import Behaviour, Recipe, as_published
from aoq.errors import UserError
from aoq.storage import write_text

_SHIPPED = Path(__file__).parent


def shipped_recipes() -> list[str]:
    """The names of the recipes that come with the package."""
    return sorted(path.stem for path in _SHIPPED.glob("*.toml"))


def load_recipe(name: str | Path, *, behaviour: Behaviour | None = None) -> Recipe:
    """A recipe by its shipped name or by the path of a TOML file.

    A behaviour, that of the file or the one given, decides what the settings start from; what the
    file states stays.
    """
    table = _read(name)
    if behaviour is not None:
        table["behaviour"] = behaviour
    start = as_published(Recipe()) if table.get("behaviour") == "official" else Recipe()
    recipe = _build(Recipe, table, where=str(name), default=start)
    assert isinstance(recipe, Recipe)
    return recipe


def save_recipe(recipe: Recipe, path: Path) -> None:
    write_text(path, tomli_w.dumps(recipe_as_dict(recipe)))


def recipe_as_dict(recipe: Recipe) -> dict[str, Any]:
    """The recipe as TOML has it: nested tables, without what is None."""

    def drop_none(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        return {key: value for key, value in pairs if value is not None}

    return dataclasses.asdict(recipe, dict_factory=drop_none)


def _locate(name: str | Path) -> Path:
    if Path(name).suffix == ".toml":
        if not Path(name).is_file():
            raise UserError(f"the recipe {name} does not exist; give the path of a TOML file.")
        return Path(name)
    shipped = _SHIPPED / f"{name}.toml"
    if not shipped.is_file():
        known = ", ".join(shipped_recipes())
        raise UserError(f"there is no recipe {name!r}; give a .toml file or one of: {known}.")
    return shipped


def _read(name: str | Path, *, below: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The tables of a recipe, laid over those of the recipe it extends."""
    path = _locate(name)
    if path in below:
        raise UserError(f"{path} extends itself; name another recipe.")
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is no TOML file: {error}.") from None
    parent = table.pop("extends", None)
    if parent is None:
        return table
    if not isinstance(parent, str):
        raise UserError(f"{path}: extends is {parent!r}; expected the name of a recipe.")
    beside = path.parent / f"{parent}.toml"
    found = beside if beside.is_file() and beside != path else parent
    return _merge(_read(found, below=(*below, path)), table)


def _merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merge(merged[key], value) if both else value
    return merged


def _build(kind: type[Any], table: dict[str, Any], *, where: str, default: Any) -> Any:
    """A dataclass from a table; what the table leaves out is as in `default`."""
    hints = typing.get_type_hints(kind)
    changes = {}
    for key, value in table.items():
        if key not in hints:
            known = ", ".join(hints)
            raise UserError(f"{where}: there is no setting {key!r}; expected one of: {known}.")
        place = f"{where}: {key}"
        if dataclasses.is_dataclass(hints[key]):
            if not isinstance(value, dict):
                raise UserError(f"{place} is {value!r}; expected a table [{key}].")
            nested = typing.cast("type[Any]", hints[key])
            changes[key] = _build(nested, value, where=place, default=getattr(default, key))
        else:
            changes[key] = _checked(hints[key], value, where=place)
    return dataclasses.replace(default, **changes)


def _checked(hint: Any, value: Any, *, where: str) -> Any:
    """`value` if it is of the declared type; whole numbers do where a float is expected."""
    if typing.get_origin(hint) is typing.Literal:
        options = typing.get_args(hint)
        if value not in options:
            raise UserError(f"{where} is {value!r}; expected one of: {', '.join(options)}.")
        return value
    accepted = typing.get_args(hint) or (hint,)
    if float in accepted and type(value) is int:
        return float(value)
    if type(value) not in accepted:
        names = " or ".join(kind.__name__ for kind in accepted if kind is not NoneType)
        raise UserError(f"{where} is {value!r}; expected {names}.")
    return value
