"""Inner loops that numba compiles."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar, cast

from numba import njit

Function = TypeVar("Function", bound=Callable[..., Any])
_REORDERED = {"reassoc", "contract", "nsz"}  # NaN and infinity keep their meaning


def compiled(function: Function) -> Function:
    """Compile a function when it is first called; the result is cached on disk where possible."""
    return _compile(function, fastmath=False)


def compiled_sums(function: Function) -> Function:
    """Compile a function whose sums may be added in any order, and so several terms at a time."""
    return _compile(function, fastmath=_REORDERED)


def _compile(function: Function, *, fastmath: Any) -> Function:
    compile_ = partial(njit, nogil=True, fastmath=fastmath)
    try:
        return cast("Function", compile_(cache=True)(function))
    except RuntimeError:  # neither the installation nor the user's cache is writable
        return cast("Function", compile_()(function))
