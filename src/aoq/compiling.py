"""Inner loops that numba compiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Compile when first called; the result is kept on disk, if there is a place to keep it."""
    try:
        return cast("Function", njit(nogil=True, cache=True)(function))
    except RuntimeError:  # neither the installation nor the user's cache can be written to
        return cast("Function", njit(nogil=True)(function))
