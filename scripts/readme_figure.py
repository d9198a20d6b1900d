"""The README's figure and figures: results/demo.json and docs/images/demo.png from a demo run.

    .venv/bin/python scripts/readme_figure.py runs/demo

Needs a Chromium on the PATH for the picture, which is the top of the run's report.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from aoq.experiments.demo import SETTINGS
from aoq.experiments.report import Setting
from aoq.recipes import load_recipe, recipe_as_dict

ROOT = Path(__file__).resolve().parents[1]
CHROMIUM_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
    "--hide-scrollbars",
    "--no-first-run",
)


def collect(run: Path) -> dict[str, object]:
    """Every setting's test result and training time, with the recipe and the machine."""
    settings = {
        title: Setting.read(title, run / loss.replace("_", "-")) for title, loss in SETTINGS.items()
    }
    recipe = recipe_as_dict(load_recipe(run / "config.toml"))
    recipe.pop("data")
    return {
        "machine": {
            "cores": os.cpu_count(),
            "processor": platform.machine(),
            "python": platform.python_version(),
            "torch": torch.__version__,
        },
        "command": "aoq demo",
        "test": {title: setting.result for title, setting in settings.items()},
        "training_seconds": {title: round(s.seconds) for title, s in settings.items()},
        "recipe": recipe,
    }


def photograph(report: Path, picture: Path) -> None:
    """The first screens of the report."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("no Chromium on the PATH: the picture is left as it is")
    with tempfile.TemporaryDirectory() as profile:
        subprocess.run(
            [
                chromium,
                *CHROMIUM_FLAGS,
                f"--user-data-dir={profile}",
                "--window-size=1080,1420",
                f"--screenshot={picture}",
                report.resolve().as_uri(),
            ],
            check=True,
            capture_output=True,
        )


def main() -> None:
    run = Path(sys.argv[1])
    results = ROOT / "results" / "demo.json"
    results.parent.mkdir(exist_ok=True)
    results.write_text(json.dumps(collect(run), indent=2) + "\n")
    photograph(run / "report.html", ROOT / "docs" / "images" / "demo.png")


if __name__ == "__main__":
    main()
