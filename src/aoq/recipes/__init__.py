"""Recipes: TOML files of the settings in `aoq.config`, the shipped ones by name.

A recipe may start with `extends = "other"` and then states only what it changes. The same without
a file: `vsrn-coco+off-tri+h500` lays small files, each of which changes one thing, over a base, in
order. The resolved recipe is stored with each run as `config.toml`, which is a recipe again.
"""

from __future__ import annotations

import dataclasses
import tomllib
import typing
from collections.abc import Collection
from difflib import get_close_matches
from pathlib import Path
from types import NoneType
from typing import Any

import tomli_w

from aoq.config import MIN_WORD_COUNT, Behaviour, Recipe, as_published
from aoq.errors import UserError
from aoq.manifest import read_checked
from aoq.progress import warn
from aoq.storage import write_text

_BASES = Path(__file__).resolve().parent
_CHANGES = _BASES / "changes"
_NONE = "none"  # TOML has no word for it
# Settings of a model that others do not have.
_SCAN = ("direction", "raw_norm", "aggregate", "aggregate_temperature", "bidirectional")
_MODELS_WITH = dict.fromkeys((*_SCAN, "weight_norm"), ("scan",)) | {
    "variant": ("vsrn",),
    "temperature": ("scan", "bfan"),
    "focal": ("bfan",),
}


def shipped_recipes() -> dict[str, str]:
    """The recipes that come with the package: their names and what each is."""
    return _descriptions(_BASES)


def shipped_changes() -> dict[str, str]:
    """What can be added to a recipe's name with a plus, and what it does."""
    return _descriptions(_CHANGES)


def scenes_recipe(size: str | None) -> str:
    """The recipe that suits a size of the embedded data set."""
    return "scenes-tiny" if size == "tiny" else "scenes-small"


def load_recipe(name: str | Path, *, behaviour: Behaviour | None = None) -> Recipe:
    """A recipe by its shipped name or by the path of a TOML file, with changes after a plus each.

    A behaviour, that of the files or the one given, decides what the settings start from; what
    the files state stays.

    >>> load_recipe("vsrn-coco+off-tri").round_two.loss.name
    'off_tri'
    """
    table = _read(str(name))
    if behaviour is not None:
        table["behaviour"] = behaviour
    start = as_published(Recipe()) if table.get("behaviour") == "official" else Recipe()
    recipe = with_settings(start, table, where=str(name))
    for change in _split(str(name), None)[1]:
        if not any(_is_used(setting, recipe) for setting in _flat(_read_change(change, None))):
            warn(f"{name}: {change} changes nothing that this recipe uses; leave it out.")
    return recipe


def with_settings(recipe: Recipe, settings: dict[str, Any], *, where: str) -> Recipe:
    """A recipe with some settings changed, as a TOML file at `where` states them."""
    changed = _build(Recipe, settings, where=where, default=recipe)
    assert isinstance(changed, Recipe)
    return changed


def save_recipe(recipe: Recipe, path: Path | str) -> None:
    write_text(Path(path), recipe_as_toml(recipe))


def recipe_as_toml(recipe: Recipe) -> str:
    """Every setting, so that it is the same whatever the behaviour would have it start from."""

    def spell_none(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        return {key: _NONE if value is None else value for key, value in pairs}

    return tomli_w.dumps(dataclasses.asdict(recipe, dict_factory=spell_none))


def recipe_as_dict(recipe: Recipe) -> dict[str, Any]:
    """The recipe as nested tables, without what is None."""

    def drop_none(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        return {key: value for key, value in pairs if value is not None}

    return dataclasses.asdict(recipe, dict_factory=drop_none)


# What may change while a run is under way: files have hashes of their own, and how often something
# is written, or in how much memory, changes no number (docs/mining.md has BFAN's exception).
HARMLESS = frozenset({"data", "candidates", "log_every", "checkpoint_every", "memory"})


def dotted_settings(recipe: Recipe) -> dict[str, Any]:
    """Every setting by its full name; a word count that is left to the data is the paper's.

    >>> dotted_settings(Recipe())["round_two.loss.alpha"]
    0.3
    """
    return _flat(dataclasses.asdict(recipe)) | {
        "min_word_count": recipe.min_word_count or MIN_WORD_COUNT
    }


def _flat(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in table.items():
        inner = isinstance(value, dict)
        values |= _flat(value, f"{prefix}{name}.") if inner else {prefix + name: value}
    return values


def _is_used(setting: str, recipe: Recipe) -> bool:
    """Whether a setting, by its full name, has a part in a recipe: its model and rounds decide."""
    part, _, name = setting.partition(".")
    if part == "model" and name in _MODELS_WITH:
        return recipe.model.name in _MODELS_WITH[name]
    return part not in ("round_two", "sampling") or recipe.rounds == "both"


def settings_that_matter(recipe: Recipe) -> dict[str, Any]:
    """The same without the harmless ones."""
    settings = dotted_settings(recipe)
    return {name: settings[name] for name in settings if name.split(".")[-1] not in HARMLESS}


def _descriptions(folder: Path) -> dict[str, str]:
    """The files of a folder by name, each with its first line, which is a comment."""
    texts = {path.stem: path.read_text(encoding="utf-8") for path in folder.glob("*.toml")}
    return {name: texts[name].partition("\n")[0].removeprefix("# ") for name in sorted(texts)}


def _read(name: str, *, beside: Path | None = None, below: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The tables of a recipe with its changes; files `beside` one that extends it come first."""
    base, changes = _split(name, beside)
    path = _find_base(base, beside, below)
    table = _read_toml(path)
    parent = table.pop("extends", None)
    if parent is not None:
        if not isinstance(parent, str):
            raise UserError(f"{path}: extends is {parent!r}; expected the name of a recipe.")
        table = _merge(_read(parent, beside=path.parent, below=(*below, path)), table)
    for change in changes:
        table = _merge(table, _read_change(change, beside))
    return table


def _split(name: str, beside: Path | None) -> tuple[str, list[str]]:
    """A base and its changes. The path of the base may have a plus in it: the file decides."""
    parts = name.split("+")
    for end in range(len(parts), 0, -1):
        base = "+".join(parts[:end])
        if _find_file(base, beside) is not None:
            return base, parts[end:]
    return parts[0], parts[1:]


def _find_file(name: str, beside: Path | None) -> Path | None:
    """The TOML file of that path, seen from the folder `beside` or else from here."""
    if Path(name).suffix != ".toml":
        return None
    places = [Path(name)] if beside is None else [beside / name, Path(name)]
    return next((place.resolve() for place in places if place.is_file()), None)


def _find_base(name: str, beside: Path | None, below: tuple[Path, ...]) -> Path:
    """A file, a recipe in the folder of the one that extends it, or a shipped one."""
    path = _find_file(name, beside)
    if path is None and Path(name).suffix == ".toml":
        raise UserError(f"the recipe {name} does not exist; give the path of a TOML file.")
    if path is None:
        folders = [_BASES] if beside is None else [beside, _BASES]
        places = [folder / f"{name}.toml" for folder in folders]
        others = (place for place in places if place.is_file() and place not in below[-1:])
        path = next(others, None)
    if path is None:
        raise UserError(_unknown("recipe", name, shipped_recipes()))
    if path in below:
        raise UserError(f"{path} extends itself; name another recipe.")
    return path


def _read_change(name: str, beside: Path | None) -> dict[str, Any]:
    """The tables of a change: a shipped one by name, or a file."""
    path = _find_file(name, beside) or _CHANGES / f"{name}.toml"
    if not path.is_file():
        raise UserError(_unknown("change", name, shipped_changes()))
    table = _read_toml(path)
    if "extends" in table:
        raise UserError(f"{path} extends a recipe, so it is no change; name it first.")
    return table


def _unknown(what: str, name: str, known: Collection[str]) -> str:
    near = get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]}? Else give" if near else "give"
    return f"there is no {what} {name!r}; {hint} a .toml file or one of: {', '.join(known)}."


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(read_checked(path).decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is no TOML file: {error}.") from None


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
            changes[key] = _read_value(hints[key], value)
    try:
        return dataclasses.replace(default, **changes)
    except UserError as error:
        raise UserError(*(f"{where}: {problem}" for problem in error.problems)) from None


def _read_value(hint: Any, value: Any) -> Any:
    """A value of a TOML file as Python has it; the dataclass holds it to its type."""
    return None if NoneType in typing.get_args(hint) and value == _NONE else value
