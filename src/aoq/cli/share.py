"""`aoq mine share`: how hard the negatives in random batches are."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from aoq.cli.base import (
    Count,
    Json,
    ModelFunction,
    Seed,
    Which,
    own_model,
    print_json,
    trained_round,
)
from aoq.cli.mine import mine_app

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from aoq.evaluation.online_share import OnlineShare


@mine_app.command
def share(
    run: Path,
    /,
    *,
    batch_sizes: Annotated[tuple[Count, ...], Parameter(consume_multiple=True)] = (16, 32, 64, 128),
    top: Count = 100,
    pairs: Count = 8192,
    data: Path | None = None,
    seed: Seed = 0,
    round: Which = None,  # noqa: A002
    model: ModelFunction = None,
    as_json: Json = False,
) -> None:
    """Report how often a batch's hardest negative is among the hardest of the training set.

    Small shares are the reason for offline negatives. Beside each measured figure stands the
    expectation for random batches: 1 - (1 - top/N)^(B-1), and a mean rank of N/B.

    Parameters
    ----------
    run
        Folder of a run, whose best round ranks, or of a round.
    batch_sizes
        Positive pairs per batch.
    top
        Ranks that count as hard.
    pairs
        Positive pairs to measure, in batches of each size.
    data
        Data set; default: the one the model was trained on.
    seed
        Seed of the batches.
    round
        Round to use of a run with two: one or two; default: the better one on dev.
    as_json
        Print JSON for programs.
    """
    from rich.console import Console

    from aoq.distributed import ALONE
    from aoq.evaluation.online_share import online_shares
    from aoq.runs.encodings import open_splits

    folder = trained_round(run, round)
    make_model = own_model(model, [folder])
    (part,) = open_splits([folder], split="train", data=data, on_disk=ALONE, make_model=make_model)
    shares = online_shares(
        part.scorer,
        part.encoded,
        part.dataset.positives,
        batch_sizes=batch_sizes,
        top=top,
        pairs=pairs,
        seed=seed,
    )
    if as_json:
        print_json([found.as_dict() for found in shares])
    else:
        Console(highlight=False).print(_table(shares))


def _table(shares: Sequence[OnlineShare]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in shares[0].shown:
        table.add_column(heading, justify="right" if heading else "left")
    for found in shares:
        table.add_row(*found.shown.values())
    return table
