"""`aoq doctor`: what is installed and found, for a report of a problem or a first look."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from importlib import metadata

from aoq.cli.base import Json, app, next_steps, print_json

# Extras, each with the packages by which it is known.
_EXTRAS = {
    "extract": ("pillow", "efficientnet_lite_pytorch"),
    "search": ("faiss-cpu",),
    "milvus": ("pymilvus", "milvus-lite"),
    "web": ("fastapi", "uvicorn", "matplotlib", "jinja2"),
    "transformers": ("transformers", "huggingface-hub"),
    "towers": ("transformers", "peft", "sentencepiece"),
    "hub": ("sentence-transformers",),
    "datasets": ("datasets",),
    "board": ("tensorboard",),
    "coco": ("eccv-caption",),
}
_ALWAYS = ("torch", "numpy", "numba", "lightning-fabric", "safetensors")
_VARIABLES = (
    *("AOQ_CACHE", "AOQ_MODEL", "HF_HOME", "HF_ENDPOINT", "HF_HUB_OFFLINE"),
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "CUDA_VISIBLE_DEVICES"),
)


@app.command
def doctor(*, json: Json = False) -> None:
    """Print versions, devices, threads, pretrained weights, caches and what is missing.

    Parameters
    ----------
    json
        Print one JSON object instead.
    """
    facts = dict(_facts())
    if json:
        print_json(facts)
        return
    from aoq.cli.base import print_table

    print_table(list(facts.items()))
    next_steps("aoq cache", "aoq demo")


def _facts() -> Iterator[tuple[str, str]]:
    import torch

    from aoq import __version__
    from aoq.caches import list_cache
    from aoq.storage import cache_folder
    from aoq.threads import processor_name

    yield "aoq", __version__
    yield "python", f"{platform.python_version()}, {platform.platform()}"
    yield "packages", ", ".join(f"{name} {metadata.version(name)}" for name in _ALWAYS)
    for extra, packages in _EXTRAS.items():
        yield f"extra {extra}", _describe_extra(extra, packages)
    yield "processor", f"{processor_name()}, {os.cpu_count()} cores, {_instructions()}"
    yield "threads", f"{torch.get_num_threads()} of torch; a training measures how many it uses"
    yield "devices", ", ".join(_devices())
    for name in _VARIABLES:
        if name in os.environ:
            yield name, os.environ[name]
    yield "pretrained", _pretrained()
    kept = list_cache()
    yield "cache", f"{cache_folder()}, {sum(each.size for each in kept) / 2**20:,.0f} MiB"


def _describe_extra(extra: str, packages: tuple[str, ...]) -> str:
    """Say which versions an extra has, or which package is missing.

    >>> _describe_extra("nothing", ("no-such-package",))
    "no-such-package is missing: pip install 'aoq[nothing]'"
    """
    found = []
    for name in packages:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            return f"{name} is missing: pip install 'aoq[{extra}]'"
    return ", ".join(found)


def _instructions() -> str:
    """Say which wide or narrow products the processor multiplies natively, as torch sees it."""
    import torch

    return str(torch.backends.cpu.get_cpu_capability())


def _devices() -> list[str]:
    import torch

    cards = range(torch.cuda.device_count()) if torch.cuda.is_available() else ()
    return ["cpu", *(f"cuda:{card} {torch.cuda.get_device_name(card)}" for card in cards)]


def _pretrained() -> str:
    """List what the cache of Hugging Face holds, by name."""
    try:
        from huggingface_hub import scan_cache_dir
        from huggingface_hub.errors import CacheNotFound
    except ImportError:
        return "huggingface-hub is not installed"
    try:
        names = sorted(repo.repo_id for repo in scan_cache_dir().repos if repo.repo_type == "model")
    except CacheNotFound:
        names = []
    return ", ".join(names) or "none in the cache of Hugging Face; folders can be named too"
