"""`aoq evaluate`: how good a trained model is."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from aoq.cli.base import Json, app, first, print_metrics


@app.command
def evaluate(
    *runs: Path,
    split: str = "test",
    data: Path | None = None,
    memory: str | None = None,
    as_json: Json = False,
) -> None:
    """Recalls, ranks and rsum of a trained model.

    Parameters
    ----------
    runs
        Folder of a trained model; of several, each is judged, and then their ensemble (mean score).
    split
        Split to judge on.
    data
        Data set; default: the one the model was trained on.
    memory
        Budget for encodings and blocks of scores, such as 2GiB.
    as_json
        Print JSON for programs.
    """
    from aoq.training.trained import evaluate_runs

    first(runs)
    results = evaluate_runs(runs, split=split, data=data, memory=memory)
    rows = {name: metrics.as_dict() for name, metrics in results}
    if as_json:
        sys.stdout.write(json.dumps(rows if len(runs) > 1 else rows[str(runs[0])]) + "\n")
    else:
        print_metrics(rows, title=f"split {split}")
