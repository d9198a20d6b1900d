"""The command `aoq`: one module for each command, and `base`, which all of them use.

Heavy imports happen inside the commands, so that `aoq --help` answers at once.
"""

from aoq.cli import (
    cache,
    data,
    demo,
    doctor,
    evaluate,
    experiment,
    extract,
    hub,
    import_,
    index,
    interpolate,
    mine,
    recipes,
    runs,
    search,
    serve,
    share,
    train,
)
from aoq.cli.base import app, group_commands, link_pages, main

group_commands(
    {
        "Search photos": ("import", "index", "search", "serve", "score", "encode"),
        "Train and fine-tune": (
            *("data", "extract", "run", "train", "mine", "evaluate", "runs", "recipes"),
            *("interpolate", "export", "push", "pull"),
        ),
        "Research": ("demo", "experiment"),
        "This installation": ("doctor", "cache", "--help", "--version"),
    }
)
link_pages(
    {
        "docs/search.md": ("index", "search", "score", "encode"),
        "docs/serve.md": ("serve",),
        "docs/pretrained.md": ("import",),
        "docs/own-data.md": ("data", "extract"),
        "docs/training.md": ("run", "train", "runs"),
        "docs/mining.md": ("mine",),
        "docs/evaluation.md": ("evaluate",),
        "docs/recipes.md": ("recipes",),
        "docs/fine-tuning.md": ("interpolate",),
        "docs/hub.md": ("export", "push", "pull"),
        "docs/experiments.md": ("experiment",),
        "docs/demo.md": ("demo",),
        "docs/install.md": ("doctor", "cache"),
    }
)

__all__ = [
    "app",
    "cache",
    "data",
    "demo",
    "doctor",
    "evaluate",
    "experiment",
    "extract",
    "hub",
    "import_",
    "index",
    "interpolate",
    "main",
    "mine",
    "recipes",
    "runs",
    "search",
    "serve",
    "share",
    "train",
]
