"""What a trained run is used for: mining with it, and judging it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from aoq.config import BLOCK_SIZE, MiningConfig
from aoq.data.collate import Collator
from aoq.data.dataset import open_dataset
from aoq.evaluation.metrics import Metrics
from aoq.evaluation.protocols import evaluate
from aoq.mining.candidates import CandidateLists, Provenance
from aoq.mining.offline import mine
from aoq.progress import EventLog, say
from aoq.recipes import load_recipe
from aoq.scoring.blocks import encode_dataset
from aoq.storage import RunDirectory, append_json_line, hash_file, read_json_lines
from aoq.training.checkpoint import TrainedRun, load_run
from aoq.training.inputs import default_device


def _open_trained(run: Path, *, split: str, data: Path | None) -> tuple[TrainedRun, Collator]:
    """A trained model and the split it is to read, its own data set's unless told otherwise."""
    trained = load_run(run, device=default_device())
    dataset = open_dataset(data or Path(trained.recipe.data), split)
    trained.require_width(dataset.features.shape[2], source=dataset.name)
    return trained, Collator(dataset, trained.vocabulary, device=default_device())


def mine_run(
    run: Path, out: Path, *, data: Path | None = None, config: MiningConfig | None = None
) -> CandidateLists:
    """Rank the training set with a trained model and store the lists."""
    trained, collator = _open_trained(run, split="train", data=data)
    started = time.monotonic()
    lists = mine(
        trained.model,
        encode_dataset(trained.model, collator, description="encode the training set"),
        collator.dataset.positives,
        config=config or trained.recipe.mining,
        provenance=Provenance(
            teacher=hash_file(RunDirectory(run).model), data=collator.dataset.fingerprint
        ),
    )
    lists.save(out)
    seconds = time.monotonic() - started
    EventLog(RunDirectory(run).events).write(
        "mined", seconds=round(seconds, 2), i2t=lists.i2t.shape, t2i=lists.t2i.shape
    )
    say(
        f"mined {lists.depth_texts} texts for each of {len(lists.i2t):,} images and "
        f"{lists.depth_images} images for each of {len(lists.t2i):,} texts in {seconds:.1f} s"
    )
    return lists


def evaluate_run(
    run: Path, *, split: str = "test", data: Path | None = None, block_size: int = BLOCK_SIZE
) -> Metrics:
    """Judge the best model of a run on one split, and note the result in the run."""
    trained, collator = _open_trained(run, split=split, data=data)
    started = time.monotonic()
    metrics = evaluate(trained.model, collator, block_size=block_size)
    directory = RunDirectory(run)
    append_json_line(
        directory.results,
        {
            "split": split,
            "model": hash_file(directory.model),
            "data": collator.dataset.fingerprint,
            **metrics.as_dict(),
        },
    )
    seconds = round(time.monotonic() - started, 2)
    EventLog(directory.events).write("evaluated", split=split, seconds=seconds)
    return metrics


def stored_result(run: Path, *, split: str) -> dict[str, Any] | None:
    """The result of a run's model, as it is, on its own data set, if there is one."""
    directory = RunDirectory(run).require_trained()
    dataset = open_dataset(Path(load_recipe(directory.config).data), split)
    wanted = (split, hash_file(directory.model), dataset.fingerprint)
    lines = read_json_lines(directory.results)
    fitting = [line for line in lines if (line["split"], line["model"], line["data"]) == wanted]
    return fitting[-1] if fitting else None


def judge_on_test(run: Path) -> dict[str, Any]:
    """The result of a run on its test split, judged now if it has not been."""
    if stored_result(run, split="test") is None:
        evaluate_run(run)
    result = stored_result(run, split="test")
    assert result is not None
    return result
