"""The demo: the paper's idea on the embedded data set, from pictures to a report.

Round one, mining, then round two from scratch with each loss and the same epochs: online (Eq. 2),
OffTri (3), OffQuin (4) and AdapOffQuin (5). Where both rounds have the same settings, round one is
the online training. Every stage is skipped when it is finished, so the same command continues an
interrupted demo and rewrites the report of a complete one.
"""

from __future__ import annotations

import shlex
from dataclasses import replace
from functools import partial
from pathlib import Path

from aoq.config import LossName, Recipe
from aoq.data.dataset import PairDataset
from aoq.data.splits import MANIFEST, open_dataset
from aoq.distributed import alone_in
from aoq.errors import UserError, require_packages
from aoq.experiments.jobs import Job, JobRound, run_jobs
from aoq.experiments.negatives import MinedLists
from aoq.experiments.page import ExperimentReport
from aoq.experiments.report import shown_machine
from aoq.experiments.results import machine
from aoq.experiments.rows import ResultRow, Training
from aoq.progress import count_of, say
from aoq.recipes import load_recipe, scenes_recipe
from aoq.runs.checkpoint import load_run
from aoq.runs.directory import ROUND_ONE, RunDirectory
from aoq.runs.events import read_pace
from aoq.runs.judge import judge_once, ranks_of, stored_result
from aoq.training.inputs import TrainingData, open_training_data
from aoq.training.two_rounds import TwoRounds, prepare_run, train_round

SETTINGS: dict[str, LossName] = {
    "online": "online",
    "OffTri": "off_tri",
    "OffQuin": "off_quin",
    "AdapOffQuin": "adap_off_quin",
}


def train_and_judge(folder: Path, recipe: Recipe, *, candidates: Path, label: str) -> None:
    """Train what is left of a round two, and judge it on the test split."""
    data = open_training_data(recipe, checked=True)
    train_round(folder, recipe, data, which="two", candidates=candidates, label=label)
    judge(folder, data)


def judge(folder: Path, data: TrainingData) -> None:
    """Judge a trained round on the test split."""
    if data.test is not None:
        device = data.test.device
        judge_once(folder, data.test, lambda: load_run(folder, device=device).model)


def run_demo(
    out: Path, *, size: str = "small", seed: int = 0, force: bool = False
) -> ExperimentReport:
    """Run or continue the demo in `out` and write its page; return its report."""
    require_packages("PIL", "efficientnet_lite_pytorch", extra="extract")
    require_packages("jinja2", "matplotlib", extra="web")
    from aoq.data.build import build_scenes

    data_folder = out / f"scenes-{size}"
    recipe = replace(load_recipe(scenes_recipe(size)), data=str(data_folder), seed=seed).resolved()
    run = prepare_run(out, recipe, force=force)
    with alone_in(out):
        if not (data_folder / MANIFEST).exists():
            say(f"drawing `scenes {size}` and reading its pictures")
            build_scenes(data_folder, size=size)
        _train_settings(out, recipe)
        report = demo_report(out, recipe, size=size)
        report.write_page(run.report)
    return report


def _train_settings(out: Path, recipe: Recipe) -> None:
    """Do what is left of round one, mining and every setting of round two."""
    data = open_training_data(recipe)
    say(
        f"{count_of(len(data.train.dataset), 'picture')} and "
        f"{count_of(data.train.dataset.n_texts, 'sentence')} to "
        f"train on, {len(data.vocabulary or ()):,} words"
    )
    stages = TwoRounds(out, recipe, data)
    stages.train_round_one()
    candidates = stages.mine()
    jobs = []
    for title, loss in SETTINGS.items():
        folder = folder_of(out, recipe, loss)
        if folder == stages.round_one:
            judge(folder, data)
            continue
        own, label = recipe.with_loss(loss), f"round two, {title}"
        work = partial(train_and_judge, folder, own, candidates=candidates, label=label)
        jobs.append(Job(label, work, (JobRound(label, folder, own.round_two),)))
    problems = run_jobs(jobs, title="round two, all settings")
    if problems:
        raise UserError(*(f"{name}: {problem}" for name, problem in problems.items()))


def folder_of(out: Path, recipe: Recipe, loss: LossName) -> Path:
    """Return the folder of a setting: round one's, if another round two would repeat it."""
    if recipe.with_loss(loss).round_two == recipe.round_one:
        return out / ROUND_ONE
    return out / loss.replace("_", "-")


def demo_report(out: Path, recipe: Recipe, *, size: str) -> ExperimentReport:
    """Make the report of a finished demo."""
    data, one, two = Path(recipe.data), recipe.round_one, recipe.round_two
    dataset = open_dataset(data, "test")
    folders = {title: folder_of(out, recipe, loss) for title, loss in SETTINGS.items()}
    rows = [
        ResultRow(title, "demo", (recipe.seed,), (_training(folder, recipe, dataset),))
        for title, folder in folders.items()
    ]
    seconds = (f"{row.label} {row.trainings[0].line['seconds']:.0f}" for row in rows)
    first = f", {count_of(two.warmup_epochs, 'epoch')} of them with all negatives of the batch"
    epochs = count_of(two.epochs, "epoch") + (first if two.warmup_epochs else "")
    return ExperimentReport(
        title="Four ways to choose the negatives",
        description=(
            f"{recipe.model.name.upper()} (width {recipe.model.joint_width}) on the embedded data "
            f"set, seed {recipe.seed}: round one with the hardest negatives of each batch of "
            f"{one.batch_size} (online), mining with its model, then round two from scratch with "
            f"each other loss; every round has {epochs}. One seed "
            "on a small set: on another seed the order can be another."
        ),
        rows=rows,
        dataset=dataset,
        data=data,
        mined=MinedLists.open(
            out, teacher=out / ROUND_ONE, lists=RunDirectory(out).candidates, data=data
        ),
        facts={
            "seconds of a training": ", ".join(seconds),
            "machine": shown_machine(machine()),
        },
        commands={
            "all settings": shlex.join(
                ["aoq", "demo", "--size", size, "--seed", f"{recipe.seed}", "--out", f"{out}"]
            )
        },
    )


def _training(folder: Path, recipe: Recipe, dataset: PairDataset) -> Training:
    """Read a finished training: its test result, its curve on dev and its time."""
    result, pace = stored_result(folder, split=dataset.split), read_pace(folder)
    if result is None:
        raise UserError(f"{folder} has no test result yet; run `aoq evaluate {folder}`.")
    return Training(
        seed=recipe.seed,
        figures=result,
        runs=(folder,),
        ranks=ranks_of([folder], dataset, data=Path(recipe.data)),
        line={"curve": pace.curve, "seconds": pace.seconds},
    )
