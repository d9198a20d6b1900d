"""The function that `--model MODULE:FUNCTION` names: it makes a model of a user's own.

Only what a user names is imported, never what a run or an index says. Whatever goes wrong in the
user's code becomes one sentence with its place.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from traceback import extract_tb
from typing import Any

from aoq.errors import UserError
from aoq.runs.custom_model import require_model
from aoq.scoring.protocol import TrainableModel


@dataclass(frozen=True)
class NamedModel:
    """A function that makes a model, under the name it was given on the command line."""

    name: str
    function: Callable[[], Any] = field(repr=False)

    @classmethod
    def find(cls, name: str) -> NamedModel:
        """Import a function from the current folder or the Python path."""
        module_name, colon, function_name = name.partition(":")
        parts = [*module_name.split("."), function_name]
        if not colon or not all(part.isidentifier() for part in parts):
            raise UserError(f"--model {name} is not MODULE:FUNCTION; {_example(name)}.")
        module = _import(module_name)
        found = getattr(module, function_name, None)
        place = getattr(module, "__file__", None) or module_name
        if found is None:
            near = get_close_matches(function_name, vars(module), n=1)
            hint = f"did you mean {module_name}:{near[0]}?" if near else "name one that it has."
            raise UserError(f"{place} has no function {function_name}; {hint}")
        if not callable(found):
            raise UserError(
                f"{place}: {function_name} is of the type {type(found).__name__}; expected a "
                "function that makes a model."
            )
        return cls(name, found)

    def __call__(self) -> TrainableModel:
        try:
            made = self.function()
        except UserError:
            raise
        except Exception as error:
            raise UserError(f"{self.name} failed: {_described(error)}.") from error
        try:
            return require_model(made)
        except UserError as error:
            raise UserError(str(error).replace("make_model", self.name, 1)) from None


def _import(name: str) -> Any:
    """Import a module; the current folder comes first, as with `python -m`."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise UserError(
                f"there is no module {name} in {here} or on the Python path; "
                "name the file without .py, and folders with dots: examples.clip:make_model."
            ) from None
        raise UserError(f"{name} cannot be imported: {_described(error)}.") from error
    except UserError:
        raise
    except SystemExit:
        raise UserError(
            f"{name} ends the program when it is imported; move what it runs below "
            'if __name__ == "__main__".'
        ) from None
    except Exception as error:
        raise UserError(f"{name} cannot be imported: {_described(error)}.") from error


def _described(error: Exception) -> str:
    """Say what was raised, and where: the last line outside of importlib."""
    places = [
        place for place in extract_tb(error.__traceback__) if not place.filename.startswith("<")
    ]
    if isinstance(error, SyntaxError):
        where = f" ({error.filename}, line {error.lineno})"
        message = error.msg
    else:
        where = f" ({places[-1].filename}, line {places[-1].lineno})" if places else ""
        message = " ".join(str(error).split())
    return f"{type(error).__name__}{f': {message}' if message else ''}{where}"


def _example(name: str) -> str:
    """Suggest a name for one that is a file, or has no function."""
    module, _, function = name.partition(":")
    path = Path(module.replace("\\", "/"))
    dotted = ".".join(part for part in path.with_suffix("").parts if part not in ("/", ".", ".."))
    if all(part.isidentifier() for part in dotted.split(".")):
        wanted = function if function.isidentifier() else "make_model"
        return f"expected a name such as {dotted}:{wanted}"
    return "expected a name such as my_model:make_model"
