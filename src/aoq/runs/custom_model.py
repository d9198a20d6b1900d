"""Checks whether the model of a user's program is the one that a run was trained with.

Weights may fit a model that computes something else. A run of such a model therefore keeps three
hashes: of its parameters and buffers, of its modules and their settings, and of the source of its
classes and of the functions that these call by name. Source is compared without comments and
layout. What installed packages hold, and what has no source (made by `exec`, say), counts by name.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import textwrap
from pathlib import Path
from types import FunctionType
from typing import Any, cast

from torch import nn

from aoq.errors import UserError
from aoq.parsing import shown
from aoq.progress import warn
from aoq.runs.directory import RunDirectory
from aoq.scoring.protocol import TrainableModel
from aoq.storage import hash_parts

_PARTS = {
    "tensors": "names, shapes or dtypes of its parameters and buffers",
    "modules": "modules or their settings",
    "source": "source",
}
_INSTALLED = ("site-packages", "dist-packages")
_UNTRAINED = ("query_reader",)  # methods that training does not use
_NEEDED = ("encode_images", "encode_texts", "score_matrix", "score_pairs")


def require_model(made: object) -> TrainableModel:
    """Return what a user's function made, if it is a module with the methods of a model."""
    expected = f"expected a torch.nn.Module with {', '.join(_NEEDED[:-1])} and {_NEEDED[-1]}"
    if not isinstance(made, nn.Module):
        raise UserError(f"make_model returned {shown(made)}, which is not a model; {expected}.")
    missing = [name for name in _NEEDED if not callable(getattr(made, name, None))]
    if missing:
        hint = ""
        if not {"encode_images", "encode_texts"} & set(missing):
            hint = "; with one vector per image and text, inherit the two from aoq.InnerProduct"
        raise UserError(
            f"make_model returned a {type(made).__name__} without {' and '.join(missing)}; "
            f"{expected}{hint}."
        )
    return cast("TrainableModel", made)


def fingerprint_model(model: TrainableModel) -> dict[str, str]:
    """Hash what a model is, apart from the values of its weights."""
    module = cast("nn.Module", model)
    tensors = [
        (name, list(tensor.shape), str(tensor.dtype))
        for named in (module.named_parameters, module.named_buffers)
        for name, tensor in named(remove_duplicate=False)
    ]
    modules = [(name, type(part).__name__) for name, part in module.named_modules()]
    described = re.sub(r" at 0x[0-9a-fA-F]+", "", repr(module))
    classes = {kind for part in module.modules() for kind in type(part).__mro__}
    used: set[type[Any] | FunctionType] = {*classes, *_functions_of(classes)}
    sources = sorted((each.__qualname__, _source(each)) for each in used - {object})
    parts = {"tensors": sorted(tensors), "modules": [modules, described], "source": sources}
    return {name: hash_parts(json.dumps(part).encode()) for name, part in parts.items()}


def _functions_of(classes: set[type[Any]]) -> set[FunctionType]:
    """Collect the functions that users' methods call by name, and those that these call."""
    found: set[FunctionType] = set()
    methods = [
        value
        for kind in classes
        if _source(kind)
        for name, value in vars(kind).items()
        if name not in _UNTRAINED
    ]
    to_read = [method for method in methods if isinstance(method, FunctionType)]
    while to_read:
        function = to_read.pop()
        named = (function.__globals__.get(name) for name in function.__code__.co_names)
        called = {each for each in named if isinstance(each, FunctionType) and _source(each)}
        to_read += called - found
        found |= called
    return found


def _source(kind: type[Any] | FunctionType) -> str:
    """Return the bare source of a class or function; empty if it is installed or unknown."""
    try:
        file = inspect.getfile(kind)
        if kind.__module__.partition(".")[0] == "aoq" or set(_INSTALLED) & set(Path(file).parts):
            return ""
        tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    except (OSError, TypeError, SyntaxError):
        return ""
    for part in tree.body:
        if isinstance(part, ast.ClassDef):
            part.body = [each for each in part.body if getattr(each, "name", "") not in _UNTRAINED]
    return ast.unparse(tree)


def require_same_model(run: RunDirectory, model: TrainableModel) -> None:
    """Refuse to continue with a model that differs in any part from that of the round."""
    changed = _changed_parts(run, model)
    if changed:
        raise UserError(
            f"{run.path} was trained with another model: what make_model builds now differs in "
            f"its {_described(changed)}; choose another folder, put the model back as it was, or "
            "start anew with force=True."
        )


def require_same_structure(run: RunDirectory, model: TrainableModel) -> None:
    """Refuse weights for a model of another structure; warn if its source differs."""
    changed = _changed_parts(run, model)
    if set(changed) - {"source"}:
        raise UserError(
            f"{run.path} holds the weights of another model: what make_model builds differs in its "
            f"{_described(changed)}; build the model as it was when it was trained."
        )
    if changed:
        warn(
            f"{run.path}: the source of the model has changed since it was trained; its weights "
            "fit, but scores may differ from the results that are stored."
        )


def _changed_parts(run: RunDirectory, model: TrainableModel) -> list[str]:
    """List the parts that differ from the stored hashes; runs of earlier versions have none."""
    stored = run.read_origin().get("model") or {}
    found = fingerprint_model(model) if stored else {}
    return [name for name in _PARTS if name in stored and stored[name] != found[name]]


def _described(parts: list[str]) -> str:
    return " and in its ".join(_PARTS[part] for part in parts)
