"""The demo: the paper's idea on the embedded data set, from pictures to a report.

Round one, mining, then round two four times from scratch with the same epochs: online (Eq. 2),
OffTri (3), OffQuin (4) and AdapOffQuin (5). Every stage is skipped when it is finished, so the
same command continues an interrupted demo and rewrites the report of a complete one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from aoq.config import LossName, Recipe
from aoq.errors import UserError, require_packages
from aoq.experiments.lanes import Job, Part, run_side_by_side
from aoq.experiments.report import Setting, write_report
from aoq.progress import say
from aoq.recipes import load_recipe
from aoq.storage import MANIFEST
from aoq.training.checkpoint import load_run
from aoq.training.inputs import open_training_data
from aoq.training.trained import judge_once
from aoq.training.two_rounds import TwoRounds, prepare_run, train_round

SETTINGS: dict[str, LossName] = {
    "online": "online",
    "OffTri": "off_tri",
    "OffQuin": "off_quin",
    "AdapOffQuin": "adap_off_quin",
}


@dataclass(frozen=True)
class RoundTwo:
    """One setting of round two: where it goes and what it draws from."""

    folder: Path
    recipe: Recipe
    candidates: Path
    label: str

    def as_job(self) -> Job:
        part = Part(self.label, self.folder, self.recipe.round_two.epochs)
        return Job(self.label, partial(train_and_judge, self), (part,))


def train_and_judge(setting: RoundTwo) -> None:
    """Train a setting, or what is left of it, and judge it on the test split."""
    folder, label = setting.folder, setting.label
    data = open_training_data(setting.recipe, checked=True)
    train_round(
        folder, setting.recipe, data, which="two", candidates=setting.candidates, label=label
    )
    if data.test is not None:
        judge_once(folder, data.test, lambda: load_run(folder).model)


def demo_recipe(*, data: Path, size: str, seed: int) -> Recipe:
    """The recipe of a size; `large` is trained with the settings of `small`."""
    name = "scenes-tiny" if size == "tiny" else "scenes-small"
    return replace(load_recipe(name), data=str(data), seed=seed).resolved()


def run_demo(
    out: Path, *, size: str = "small", seed: int = 0, force: bool = False
) -> list[Setting]:
    """Run or continue the demo in `out` and write its report; the settings with their results."""
    require_packages("PIL", "efficientnet_lite_pytorch", extra="extract")
    require_packages("jinja2", "matplotlib", extra="web")
    from aoq.data.build import build_scenes

    data_folder = out / f"scenes-{size}"
    recipe = demo_recipe(data=data_folder, size=size, seed=seed)
    run = prepare_run(out, recipe, force=force)
    if not (data_folder / MANIFEST).exists():
        say(f"drawing `scenes {size}` and reading its pictures")
        build_scenes(data_folder, size=size)
    data = open_training_data(recipe)
    say(
        f"{len(data.train.dataset):,} pictures and {data.train.dataset.n_texts:,} sentences to "
        f"train on, {len(data.vocabulary or ()):,} words"
    )
    stages = TwoRounds(out, recipe, data)
    stages.train_round_one()
    candidates = stages.mine()
    jobs = {
        title: RoundTwo(
            folder=out / loss.replace("_", "-"),
            recipe=recipe.with_loss(loss),
            candidates=candidates,
            label=f"round two, {title}",
        )
        for title, loss in SETTINGS.items()
    }
    problems = run_side_by_side(
        [job.as_job() for job in jobs.values()], title="round two, all settings"
    )
    if problems:
        raise UserError(*(f"{name}: {problem}" for name, problem in problems.items()))
    settings = [Setting.read(title, job.folder) for title, job in jobs.items()]
    write_report(run, settings)
    return settings
