"""Inner loops that numba compiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Compile a function when it is first called; the result is cached on disk where possible."""
    try:
        return cast("Function", njit(nogil=True, cache=True)(function))
    except RuntimeError:  # neither the installation nor the user's cache is writable
        return cast("Function", njit(nogil=True)(function))
