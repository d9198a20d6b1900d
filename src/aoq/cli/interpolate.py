"""`aoq interpolate`: go back part of the way from a fine-tuned model to the pretrained one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from aoq.cli.base import (
    Flag,
    Json,
    Which,
    app,
    command,
    next_steps,
    print_json,
    trained_round,
)

if TYPE_CHECKING:
    from rich.table import Table

    from aoq.runs.interpolation import Interpolation


@app.command
def interpolate(
    run: Path,
    /,
    *,
    out: Path,
    also: Path | None = None,
    max_drop: Annotated[float, Parameter(validator=Number(gte=0))] = 3.0,
    shares: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0),
    round: Which = None,  # noqa: A002
    force: Flag = False,
    as_json: Json = False,
) -> None:
    """Write a run between a fine-tuned model and the pretrained one, which forgets less.

    The share of the training is chosen on dev, and its result is reported on test. If interrupted,
    the same command continues. For dual encoders without heads.

    Parameters
    ----------
    run
        Folder of a run whose towers learned.
    out
        Folder of the new run.
    also
        A second data set, on which the model must not become worse than before by more than
        --max-drop.
    max_drop
        Largest drop of rsum on the second data set.
    shares
        Shares to try: --shares 0.3 --shares 0.6; 0 is the pretrained model, 1 the fine-tuned one.
    round
        Round to use of a run with two: one or two; default: the better one on dev.
    force
        Start over if `out` exists.
    as_json
        Print JSON for programs.
    """
    from aoq.runs.interpolation import interpolate_run

    found = interpolate_run(
        trained_round(run, round), out, also=also, max_drop=max_drop, shares=shares, force=force
    )
    if as_json:
        print_json(found.as_dict())
        return
    from rich.console import Console

    Console().print(_table(found))
    if not found.share:
        from aoq.progress import warn

        warn(f"{_why_none(found)}: {out} is the pretrained model.")
    next_steps(command("evaluate", out), command("index", out))


def _why_none(found: Interpolation) -> str:
    """Say why the pretrained model was chosen: `found` begins with the shares on dev."""
    first = found.judged[0]
    own = [one for one in found.judged if (one.data, one.split) == (first.data, first.split)]
    gains = [one.metrics["rsum"] - first.metrics["rsum"] for one in own]
    if max(gains) > 0:
        return "every share that is better on dev loses too much on the second data set"
    what = "equals" if not any(gains) else "is not above"
    return f"rsum with every share {what} that before the training"


def _table(found: Interpolation) -> Table:
    """Rsum of every share on every split; test is judged before, after and where it was chosen."""
    from rich.table import Table

    splits = list(dict.fromkeys((one.data, one.split) for one in found.judged))
    rsums = {(one.share, one.data, one.split): one.metrics["rsum"] for one in found.judged}
    table = Table(title="rsum by share of the training", title_justify="left", box=None)
    table.add_column("share")
    for data, split in splits:
        table.add_column(f"{data}\n{split}", justify="right")
    for share in sorted({one.share for one in found.judged}):
        values = [rsums.get((share, *split)) for split in splits]
        cells = ["" if value is None else f"{value:.1f}" for value in values]
        chosen = " (chosen)" if share == found.share else ""
        table.add_row(f"{share:.2f}{chosen}", *cells)
    return table
