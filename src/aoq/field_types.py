"""Checks the fields of a dataclass against their annotations when it is created.

A wrong type in a setting would otherwise surface hours later, or never. NumPy numbers are accepted
wherever Python's are, and integers where floats are expected; both become Python's own types, so
that a stored recipe and its hash do not depend on who computed a value. A bool is not a number.
"""

from __future__ import annotations

import numbers
import os
from dataclasses import fields, is_dataclass
from functools import cache
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from aoq.errors import UserError


class _Unfit:
    """Stands for "no value of this type"."""


_NAMES = {int: "int", float: "float (a number)", bool: "true or false", str: "str (a text)"}


def settle_types(settings: Any) -> None:
    """Reject fields that are not of their declared type; convert the others to Python types."""
    kind: Any = type(settings)
    problems = []
    for name, hint in field_hints(kind).items():
        value = getattr(settings, name)
        settled = _settled(hint, value)
        if settled is _Unfit:
            problems.append(
                f"{name} is {value!r}; expected {_describe(hint)} ({kind.__name__}.{name})."
            )
        elif settled is not value:
            object.__setattr__(settings, name, settled)  # the dataclass is frozen
    if problems:
        raise UserError(*problems)


@cache
def field_hints(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


def _settled(hint: Any, value: Any) -> Any:
    """Return the value converted to its declared type, or `_Unfit`."""
    if get_origin(hint) is Literal:
        return next((option for option in get_args(hint) if _is_same(option, value)), _Unfit)
    for kind in get_args(hint) or (hint,):
        settled = _as_kind(kind, value)
        if settled is not _Unfit:
            return settled
    return _Unfit


def _is_same(option: object, value: object) -> bool:
    return isinstance(value, type(option)) and option == value


def _as_kind(kind: type[Any], value: Any) -> Any:
    if type(value) is kind or (is_dataclass(kind) and isinstance(value, kind)):
        return value
    if kind is bool:
        is_truth = type(value).__module__ == "numpy" and type(value).__name__ in ("bool", "bool_")
        return bool(value) if is_truth else _Unfit
    if isinstance(value, bool):
        return _Unfit
    if kind is int and isinstance(value, numbers.Integral):
        return int(value)
    if kind is float and isinstance(value, numbers.Real):
        return float(value)
    if kind is str and isinstance(value, str | os.PathLike):
        return str(value)
    return _Unfit


def _describe(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return f"one of: {', '.join(map(str, get_args(hint)))}"
    kinds = [kind for kind in get_args(hint) or (hint,) if kind is not NoneType]
    names = [_NAMES.get(kind, f"a {kind.__name__}") for kind in kinds]
    return " or ".join([*names, "None"] if NoneType in get_args(hint) else names)
