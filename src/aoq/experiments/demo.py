"""The demo: the paper's idea on the embedded data set, from pictures to a report.

Round one, mining, then round two four times from scratch with the same epochs: online (Eq. 2),
OffTri (3), OffQuin (4) and AdapOffQuin (5). Every stage is skipped when it is finished, so the
same command continues an interrupted demo and rewrites the report of a complete one.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from aoq.config import LossName, Recipe
from aoq.data.build import build_scenes
from aoq.data.dataset import MANIFEST
from aoq.data.scenes import SIZES
from aoq.errors import UserError
from aoq.experiments.lanes import RoundTwo, run_side_by_side
from aoq.experiments.report import Setting, write_report
from aoq.experiments.tables import metrics_table
from aoq.progress import say
from aoq.recipes import load_recipe
from aoq.storage import RunDirectory, refuse_existing
from aoq.training.plan import duration
from aoq.training.two_rounds import (
    ROUND_ONE,
    mine_run,
    open_training_data,
    prepare_run,
    train_round,
)

SETTINGS: dict[str, LossName] = {
    "online": "online",
    "OffTri": "off_tri",
    "OffQuin": "off_quin",
    "AdapOffQuin": "adap_off_quin",
}


def demo_recipe(*, data: Path, size: str, seed: int) -> Recipe:
    """The recipe of a size; `large` is trained with the settings of `small`."""
    name = "scenes-tiny" if size == "tiny" else "scenes-small"
    return replace(load_recipe(name), data=str(data), seed=seed).resolved()


def run_demo(out: Path, *, size: str = "small", seed: int = 0, force: bool = False) -> Path:
    """Run or continue the demo in `out`; the path of its report."""
    started = time.monotonic()
    if size not in SIZES:
        raise UserError(f"there is no size {size!r}; choose one of: {', '.join(SIZES)}.")
    if force:
        refuse_existing(out, force=True)
    data_folder = out / f"scenes-{size}"
    recipe = demo_recipe(data=data_folder, size=size, seed=seed)
    prepare_run(out, recipe)
    if not (data_folder / MANIFEST).exists():
        say(f"drawing `scenes {size}` and reading its pictures")
        build_scenes(data_folder, size=size)
    data = open_training_data(recipe)
    say(
        f"{len(data.train.dataset):,} pictures and {data.train.dataset.n_texts:,} sentences to "
        f"train on, {len(data.vocabulary):,} words"
    )
    run = RunDirectory(out)
    train_round(out / ROUND_ONE, recipe, data, which="one")
    if not run.candidates.exists():
        mine_run(out / ROUND_ONE, run.candidates)
    jobs = {
        title: RoundTwo(
            folder=out / loss.replace("_", "-"),
            recipe=recipe.with_loss(loss),
            candidates=run.candidates,
            label=f"round two, {title}",
        )
        for title, loss in SETTINGS.items()
    }
    run_side_by_side(list(jobs.values()))
    settings = [Setting.read(title, job.folder) for title, job in jobs.items()]
    report = write_report(run, settings)
    _conclude(data_folder, settings, report=report, seconds=time.monotonic() - started)
    return report


def _conclude(data: Path, settings: list[Setting], *, report: Path, seconds: float) -> None:
    """The table on standard output, and where to look further."""
    rows = {setting.title: setting.result for setting in settings}
    Console().print(metrics_table(rows, title="Test split, best epoch on dev, one seed"))
    say(f"done in {duration(seconds)}; the report: {report}")
    best = max(settings, key=lambda setting: float(setting.result["rsum"]))
    say("to look further:")
    say(f"  aoq evaluate {best.folder} --split dev     the best setting on another split")
    say(f"  aoq mine {best.folder}     mine again, with the better model")
    say(f"  aoq run scenes-small --data {data} --out runs/mine --seed 1     another seed")
    say(f"  aoq data check {data}     what the data set holds")
