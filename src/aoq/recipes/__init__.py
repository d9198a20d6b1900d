"""Recipes: TOML files of the settings in `aoq.config`; the shipped ones are known by name.

A recipe may start with `extends = "other"` and then states only its changes. A name does the same
without a file: `vsrn-coco+off-tri+h500` applies small files, each with one change, to a base, in
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

from aoq.config import MIN_WORD_COUNT, TOWER_NAMES, Behaviour, Recipe, as_published
from aoq.errors import UserError
from aoq.field_types import field_hints
from aoq.manifest import read_checked
from aoq.progress import warn
from aoq.storage import write_text

_BASES = Path(__file__).resolve().parent
_CHANGES = _BASES / "changes"
_NONE = "none"  # TOML has no word for it
# Settings that only some models have.
_SCAN = ("direction", "raw_norm", "aggregate", "aggregate_temperature", "bidirectional")
_WITH_REGIONS = ("vsrn", "scan", "bfan", "vse")
_MODELS_WITH = dict.fromkeys((*_SCAN, "weight_norm"), ("scan",)) | {
    **dict.fromkeys(("feature_dropout", "word_dropout"), (*_WITH_REGIONS, "bow", "towers")),
    **dict.fromkeys(("drop_regions", "drop_words"), (*_WITH_REGIONS, "bow")),
    **dict.fromkeys(("ridge", "ridge_factor", "correlation_power"), ("cca",)),
    "standardise": _WITH_REGIONS,
    "word_weights": ("bow", "cca"),
    "variant": ("vsrn",),
    "temperature": ("scan", "bfan"),
    "focal": ("bfan",),
}


def shipped_recipes() -> dict[str, str]:
    """Return the names and descriptions of the recipes that come with the package."""
    return _descriptions(_BASES)


def shipped_changes() -> dict[str, str]:
    """Return the changes that a plus adds to a recipe's name, and their descriptions."""
    return _descriptions(_CHANGES)


def scenes_recipe(size: str | None) -> str:
    """Return the recipe that suits a size of the embedded data set."""
    return "scenes-tiny" if size == "tiny" else "scenes-small"


def load_recipe(name: str | Path, *, behaviour: Behaviour | None = None) -> Recipe:
    """Load a recipe by its shipped name or the path of a TOML file, with +changes after it.

    The behaviour, from the files or as given, decides the default settings; settings that the
    files state take precedence.

    >>> load_recipe("vsrn-coco+off-tri").round_two.loss.name
    'off_tri'
    """
    table = _read(str(name))
    if behaviour is not None:
        table["behaviour"] = behaviour
    recipe = with_settings(_start(table, where=str(name)), table, where=str(name))
    for change in _split(str(name), None)[1]:
        if not any(_is_used(setting, recipe) for setting in _flat(_read_change(change, None))):
            warn(f"{name}: {change} changes nothing that this recipe uses; leave it out.")
    return recipe


def _start(table: dict[str, Any], *, where: str) -> Recipe:
    """Return the defaults of a behaviour, which depend on the model."""
    if table.get("behaviour") != "official":
        return Recipe()
    model = table.get("model")
    name = {"name": model["name"]} if isinstance(model, dict) and "name" in model else {}
    return as_published(with_settings(Recipe(), {"model": name}, where=where))


def with_settings(recipe: Recipe, settings: dict[str, Any], *, where: str) -> Recipe:
    """Change some settings of a recipe, as a TOML file at `where` states them."""
    changed = _build(Recipe, settings, where=where, default=recipe)
    assert isinstance(changed, Recipe)
    return changed


def save_recipe(recipe: Recipe, path: Path | str) -> None:
    write_text(Path(path), recipe_as_toml(recipe))


def recipe_as_toml(recipe: Recipe) -> str:
    """Write every setting, so that the recipe does not depend on the defaults of a behaviour."""

    def spell_none(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        return {key: _NONE if value is None else value for key, value in pairs}

    return tomli_w.dumps(dataclasses.asdict(recipe, dict_factory=spell_none))


def recipe_as_dict(recipe: Recipe) -> dict[str, Any]:
    """Return the recipe as nested tables, without values of None."""

    def drop_none(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        return {key: value for key, value in pairs if value is not None}

    return dataclasses.asdict(recipe, dict_factory=drop_none)


# What may change during a run: files have hashes of their own, and how often something is written,
# or how much memory is used, does not affect results (docs/mining.md has BFAN's exception).
# Towers may move: runs know them by the hashes of their weights.
HARMLESS = TOWER_NAMES | {"data", "candidates", "log_every", "checkpoint_every", "memory"}


def dotted_settings(recipe: Recipe) -> dict[str, Any]:
    """Return every setting by its full name; an automatic word count becomes the paper's.

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
    """Return whether a recipe, by its model and rounds, uses a setting, given by its full name."""
    part, _, name = setting.partition(".")
    if part == "model" and name in _MODELS_WITH:
        return recipe.model.name in _MODELS_WITH[name]
    return part not in ("round_two", "sampling") or recipe.rounds == "both"


def settings_that_matter(recipe: Recipe) -> dict[str, Any]:
    """Return the settings by full name, without those that do not affect results."""
    settings = dotted_settings(recipe)
    return {name: settings[name] for name in settings if name.split(".")[-1] not in HARMLESS}


def _descriptions(folder: Path) -> dict[str, str]:
    """Return the first line, a comment, of each file in a folder, by the file's name."""
    texts = {path.stem: path.read_text(encoding="utf-8") for path in folder.glob("*.toml")}
    return {name: texts[name].partition("\n")[0].removeprefix("# ") for name in sorted(texts)}


def _read(name: str, *, beside: Path | None = None, below: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Read the tables of a recipe with its changes; files `beside` an extending one come first."""
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
    """Split a base from its changes. If the path of the base has a plus, an existing file wins."""
    parts = name.split("+")
    for end in range(len(parts), 0, -1):
        base = "+".join(parts[:end])
        if _find_file(base, beside) is not None:
            return base, parts[end:]
    return parts[0], parts[1:]


def _find_file(name: str, beside: Path | None) -> Path | None:
    """Find the TOML file with this path, relative to the folder `beside` or else to here."""
    if Path(name).suffix != ".toml":
        return None
    places = [Path(name)] if beside is None else [beside / name, Path(name)]
    return next((place.resolve() for place in places if place.is_file()), None)


def _find_base(name: str, beside: Path | None, below: tuple[Path, ...]) -> Path:
    """Find a file, a recipe in the folder of the one that extends it, or a shipped one."""
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
    """Read the tables of a change: a shipped one by name, or a file."""
    path = _find_file(name, beside) or _CHANGES / f"{name}.toml"
    if not path.is_file():
        raise UserError(_unknown("change", name, shipped_changes()))
    table = _read_toml(path)
    if "extends" in table:
        raise UserError(f"{path} extends a recipe, so it is not a change; name it first.")
    return table


def _unknown(what: str, name: str, known: Collection[str]) -> str:
    near = get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]}? Else give" if near else "give"
    return f"there is no {what} {name!r}; {hint} a .toml file or one of: {', '.join(known)}."


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(read_checked(path).decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not a TOML file: {error}.") from None


def _merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merge(merged[key], value) if both else value
    return merged


def _build(kind: Any, table: dict[str, Any], *, where: str, default: Any) -> Any:
    """Build a dataclass from a table; settings that the table leaves out are from `default`."""
    hints = field_hints(kind)
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
    """Convert a value of a TOML file to Python; the dataclass checks its type."""
    return None if NoneType in typing.get_args(hint) and value == _NONE else value
