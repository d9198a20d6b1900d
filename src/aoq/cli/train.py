"""`aoq train` and `aoq run`: train one round, or run a whole recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from aoq.cli.base import (
    PAPER,
    Flag,
    Settings,
    app,
    command,
    next_steps,
    print_metrics,
    print_table,
)
from aoq.config import Recipe
from aoq.errors import UserError


@app.command
def train(
    recipe: str,
    /,
    *,
    out: Path,
    round: Literal["one", "two"] = "one",  # noqa: A002
    start: Path | None = None,
    force: Flag = False,
    settings: Settings = PAPER,
) -> None:
    """Train one round.

    If interrupted, the same command continues. With several GPUs or machines:
    `torchrun --nproc-per-node 4 -m aoq train RECIPE ...`.

    Parameters
    ----------
    recipe
        A TOML file or the name of a recipe, such as scenes-small or vsrn-f30k+off-tri; `aoq
        recipes` lists them.
    out
        Folder of the run; a run that was started with the same settings is continued.
    round
        Round one, or round two with the lists of --candidates.
    start
        Run whose weights round two starts from, if its start_from says so.
    force
        Start over if `out` exists.
    """
    from aoq.distributed import join_processes
    from aoq.runs.directory import RunDirectory
    from aoq.training.inputs import open_training_data
    from aoq.training.two_rounds import train_round

    if settings.candidates and round == "one":
        raise UserError("--candidates is for round two; add --round two or leave it out.")
    if start is not None and settings.settings_of(round).start_from == "scratch":
        raise UserError(
            "--start names weights, but this round starts from scratch; add --round two and "
            "--round-two.start-from round_one, or leave --start out."
        )
    with join_processes() as processes:
        data = open_training_data(settings, processes=processes)
        train_round(out, settings, data, which=round, start=start, force=force, processes=processes)
        if not processes.is_first:
            return
    next_steps(command("evaluate", out))
    if round == "one":
        begun = RunDirectory(out)  # with all changes made by flags
        lists = ("--round", "two", "--candidates", begun.candidates)
        next_steps(
            command("mine", out),
            command("train", begun.config, *lists) + " --out ...",
        )


@app.command
def run(
    recipe: str | None = None,
    /,
    *,
    out: Path,
    plan: Flag = False,
    force: Flag = False,
    settings: Settings = PAPER,
) -> None:
    """Run a whole recipe: round one, mining, round two, evaluation.

    Without a recipe, one is chosen by the size of the training split, by whether --model.image
    names a tower, and by whether there is a GPU; the command that names it is printed.

    If interrupted, the same command continues with the stage where it stopped. With several GPUs or
    machines: `torchrun --nproc-per-node 4 -m aoq run RECIPE ...`.

    Parameters
    ----------
    recipe
        A TOML file or the name of a recipe, such as scenes-small or vsrn-f30k+off-tri; `aoq
        recipes` lists them. Default: one that suits the data and the machine.
    out
        Folder of the run; a run that was started with the same settings is continued.
    plan
        Only print steps, time, disk and memory, estimated from a few steps; nothing is written.
    force
        Start over if `out` exists.
    """
    from aoq.distributed import join_processes
    from aoq.runs.directory import ROUNDS
    from aoq.training.two_rounds import run_recipe

    with join_processes() as processes:
        if recipe is None and processes.is_first:
            _tell_choice(settings, out)
        if plan:
            from aoq.training.cost import estimate_cost

            if processes.size > 1:
                raise UserError("--plan measures the steps of one process; leave torchrun out.")
            print_table(estimate_cost(settings).rows())
            return
        result = run_recipe(out, settings, force=force, processes=processes)
        if not processes.is_first:
            return
    last = ROUNDS[settings.last_round]
    print_metrics({last: result}, title=f"split {result['split']}")
    _report_best_round(out)
    next_steps(
        command("evaluate", out / last, "--split", "dev"),
        command("index", out),
        command("runs", out),
    )


def _report_best_round(out: Path) -> None:
    """Print which round is used from here on, and what to try if round two is the worse one."""
    from aoq.progress import say, warn
    from aoq.runs.best_round import best_round

    choice = best_round(out)
    if choice.sentence:
        say(choice.sentence)
    if choice.best == "one":
        warn(
            "round two is worse than round one on dev, so index, search and serve use round one. "
            "To get more of round two, train into another folder with a longer warm-up and "
            "more epochs (--round-two.warmup-epochs 3 --round-two.epochs 8), with "
            "--round-two.start-from round_one, or with more photos."
        )


def _tell_choice(settings: Recipe, out: Path) -> None:
    """Print why the recipe was chosen, and the command that names it."""
    from aoq.progress import say
    from aoq.training.choice import choose_recipe

    if not settings.data:
        raise UserError("neither a recipe nor a data set is named; add --data FOLDER.")
    choice = choose_recipe(settings.data, image=settings.model.image)
    say(choice.reason)
    say(f"the same: {command('run', *choice.arguments(settings), '--out', out)}")
