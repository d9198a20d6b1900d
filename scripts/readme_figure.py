"""The demo's picture and figures: docs/images/demo.png and results/demo.json from demo runs.

    .venv/bin/python scripts/readme_figure.py runs/demo [runs/demo-seed-1 ...]

Needs a Chromium on the PATH for the picture, which is the top of the first run's report. Prints the
mean and standard deviation of the test rsum over the runs.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from aoq.experiments.demo import SETTINGS, folder_of
from aoq.experiments.results import machine
from aoq.recipes import load_recipe, recipe_as_dict
from aoq.runs.events import read_pace
from aoq.runs.judge import stored_result

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


def collect(run: Path) -> dict[str, Any]:
    """Every setting's test result and training time, with the recipe."""
    stored = load_recipe(run / "config.toml")
    folders = {title: folder_of(run, stored, loss) for title, loss in SETTINGS.items()}
    recipe = recipe_as_dict(stored)
    recipe.pop("data")
    return {
        "command": f"aoq demo --seed {recipe['seed']}",
        "test": {title: stored_result(at, split="test") for title, at in folders.items()},
        "training_seconds": {title: round(read_pace(at).seconds) for title, at in folders.items()},
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
    folders = [Path(argument) for argument in sys.argv[1:]]
    if not folders:
        sys.exit(__doc__)
    runs = [collect(folder) for folder in folders]
    content = json.dumps({"machine": machine(), "runs": runs}, indent=2)
    (ROOT / "results" / "demo.json").write_text(content + "\n")
    for title in SETTINGS:
        sums = [run["test"][title]["rsum"] for run in runs]
        spread = stdev(sums) if len(sums) > 1 else 0.0
        print(f"{title}: test rsum {mean(sums):.1f}, deviation {spread:.1f}, {len(sums)} seeds")
    photograph(folders[0] / "report.html", ROOT / "docs" / "images" / "demo.png")


if __name__ == "__main__":
    main()
