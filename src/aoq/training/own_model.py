"""Tells whether a model that a program brings is the one that a run was trained with.

Weights may fit a model that computes something else. A run of such a model therefore keeps three
hashes: of its parameters and buffers, of its modules and their settings, and of the source of its
classes. Source is compared without comments and layout. Classes of installed packages, and those
without source (made by `exec`, say), count by name only; so do functions outside the classes.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import textwrap
from pathlib import Path
from typing import Any, cast

from torch import nn

from aoq.errors import UserError
from aoq.progress import warn
from aoq.scoring.protocol import TrainableModel
from aoq.storage import RunDirectory, hash_parts, read_json

_PARTS = {
    "tensors": "names, shapes or dtypes of its parameters and buffers",
    "modules": "modules or their settings",
    "source": "source",
}
_INSTALLED = ("site-packages", "dist-packages")


def fingerprint_model(model: TrainableModel) -> dict[str, str]:
    """Hashes of what a model is, apart from the values of its weights."""
    module = cast("nn.Module", model)
    tensors = [
        (name, list(tensor.shape), str(tensor.dtype))
        for named in (module.named_parameters, module.named_buffers)
        for name, tensor in named(remove_duplicate=False)
    ]
    modules = [(name, type(part).__name__) for name, part in module.named_modules()]
    described = re.sub(r" at 0x[0-9a-fA-F]+", "", repr(module))
    classes = {kind for part in module.modules() for kind in type(part).__mro__}
    sources = sorted((kind.__name__, _source(kind)) for kind in classes if kind is not object)
    parts = {"tensors": sorted(tensors), "modules": [modules, described], "source": sources}
    return {name: hash_parts(json.dumps(part).encode()) for name, part in parts.items()}


def _source(kind: type[Any]) -> str:
    """What a class does, without comments and layout; nothing where that cannot be known."""
    try:
        file = inspect.getfile(kind)
        if kind.__module__.partition(".")[0] == "aoq" or set(_INSTALLED) & set(Path(file).parts):
            return ""
        return ast.unparse(ast.parse(textwrap.dedent(inspect.getsource(kind))))
    except (OSError, TypeError, SyntaxError):
        return ""


def refuse_other_model(run: RunDirectory, model: TrainableModel) -> None:
    """Refuse to go on with a model that is not, in all its parts, the one a round began with."""
    changed = _changed_parts(run, model)
    if changed:
        raise UserError(
            f"{run.path} was trained with another model: what make_model builds now differs in "
            f"its {_described(changed)}; choose another folder, put the model back as it was, or "
            "start anew with force=True."
        )


def require_same_structure(run: RunDirectory, model: TrainableModel) -> None:
    """Refuse to put weights into a model of another structure; say so where its source differs."""
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
    """Parts that are not as the run says; runs of earlier versions say nothing."""
    if not run.origin.is_file():
        return []
    stored = read_json(run.origin).get("model") or {}
    found = fingerprint_model(model) if stored else {}
    return [name for name in _PARTS if name in stored and stored[name] != found[name]]


def _described(parts: list[str]) -> str:
    return " and in its ".join(_PARTS[part] for part in parts)
