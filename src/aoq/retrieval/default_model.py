"""The model that searches a folder of photos when none is named.

It is the one of the environment variable AOQ_MODEL, else that of the user's config.toml, which
`aoq import --default` writes, else one that was imported into the cache, else a CLIP or SigLIP in
the cache of Hugging Face, which is imported then. Nothing is downloaded.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import tomli_w

from aoq.errors import UserError
from aoq.progress import say
from aoq.runs.directory import ROUNDS, RunDirectory
from aoq.storage import cache_folder, write_text

VARIABLE = "AOQ_MODEL"
_KINDS = ("siglip2", "siglip", "clip")  # model types of transformers, the better ones first
_HOW = (
    "get one with `aoq import openai/clip-vit-base-patch32 --default`, which downloads it once, or "
    f"name a run with --run RUN or in the variable {VARIABLE}."
)


def default_model() -> Path:
    """Return the run to search photos with; the error says how to get one."""
    named = os.environ.get(VARIABLE)
    if named:
        return _require_run(Path(named), f"the variable {VARIABLE}")
    if configured := read_config().get("model"):
        return _require_run(Path(str(configured)), str(config_file()))
    imported = [path for path in _runs_in(models_folder()) if is_run(path)]
    if imported:
        return max(imported, key=lambda path: path.stat().st_mtime)
    for name in _downloaded():
        return _import(name)
    raise UserError(f"there is no model to search photos with; {_HOW}")


def set_default_model(run: Path) -> Path:
    """Write a run into the user's config.toml; returns that file."""
    path = config_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, tomli_w.dumps({**read_config(), "model": str(run.absolute())}))
    return path


def read_config() -> dict[str, object]:
    """Read the user's config.toml; empty if there is none."""
    path = config_file()
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}); mend or delete it.") from None


def config_file() -> Path:
    """Return the user's config.toml, in the folder that AOQ_CONFIG names or the system's."""
    if own := os.environ.get("AOQ_CONFIG"):
        return Path(own) / "config.toml"
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config", "aoq", "config.toml")


def models_folder() -> Path:
    """Return the folder of the cache for runs of pretrained models."""
    return cache_folder() / "models"


def place_of(name: str) -> Path:
    """Return where a pretrained model is imported to, if no place is named."""
    plain = "-".join(Path(name).parts[-2:] if not Path(name).exists() else Path(name).parts[-1:])
    return models_folder() / plain


def is_run(path: Path) -> bool:
    """Return whether a folder is a run or one of its rounds, trained or not."""
    return any(RunDirectory(path / name).config.is_file() for name in ("", *ROUNDS.values()))


def _require_run(path: Path, where: str) -> Path:
    if not is_run(path):
        raise UserError(f"{where} names {path}, which is no run of a model; {_HOW}")
    return path


def _runs_in(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _downloaded() -> Iterator[str]:
    """Yield the names of dual encoders whose files are in the cache of Hugging Face."""
    try:
        from huggingface_hub.constants import HF_HUB_CACHE
    except ImportError:
        return
    found: dict[str, str] = {}
    for config in sorted(Path(HF_HUB_CACHE).glob("models--*/snapshots/*/config.json")):
        files = {path.name for path in config.parent.iterdir()}
        is_whole = "preprocessor_config.json" in files and any("tokenizer" in n for n in files)
        if is_whole and any(name.endswith(".safetensors") for name in files):
            with suppress(OSError, ValueError, AttributeError):
                kind = json.loads(config.read_bytes()).get("model_type")
                name = config.parents[2].name.removeprefix("models--").replace("--", "/")
                found.setdefault(str(kind), name)
    yield from (found[kind] for kind in _KINDS if kind in found)


def _import(name: str) -> Path:
    from aoq.published.dual_encoders import import_dual_encoder

    say(f"no model is configured; {name} is in the cache of Hugging Face and is used")
    return import_dual_encoder(place_of(name), name).path
