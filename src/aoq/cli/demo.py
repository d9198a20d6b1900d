"""`aoq demo`: the whole pipeline on the embedded data set."""

from __future__ import annotations

from pathlib import Path

from aoq.cli.base import Flag, Size, app, command, next_steps, print_metrics


@app.command
def demo(
    *, out: Path = Path("runs/demo"), size: Size = "small", seed: int = 0, force: Flag = False
) -> None:
    """Train four settings on the embedded data set, compare them and write a report.

    Runs round one with the online loss, mining, then round two with OffTri, OffQuin and
    AdapOffQuin. If interrupted, the same command continues.

    Parameters
    ----------
    out
        Folder of the demo's run.
    size
        Size of the data set.
    seed
        Seed of the training.
    force
        Start over if `out` exists.
    """
    from aoq.experiments.demo import run_demo
    from aoq.progress import say
    from aoq.recipes import scenes_recipe
    from aoq.runs.directory import RunDirectory

    rows = run_demo(out, size=size, seed=seed, force=force).rows
    trainings = {row.label: row.trainings[0] for row in rows}
    print_metrics(
        {label: dict(training.figures) for label, training in trainings.items()},
        title="Test split, best epoch on dev, one seed",
    )
    say(f"the report: {RunDirectory(out).report}")
    best = max(trainings.values(), key=lambda training: training.figures["rsum"]).runs[0]
    data = out / f"scenes-{size}"
    next_steps(
        command("index", best),
        command("serve", best),
        command("evaluate", best, "--split", "dev"),
        command("run", scenes_recipe(size), "--data", data, "--out", "runs/other", "--seed", 1),
        command("data", "check", data),
    )
