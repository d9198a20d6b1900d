"""What a trained run is used for: mining with it, and judging it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aoq.config import MiningConfig
from aoq.data.collate import Collator
from aoq.data.dataset import PairDataset, open_dataset
from aoq.errors import UserError
from aoq.evaluation.metrics import Metrics
from aoq.evaluation.protocols import evaluate_encoded
from aoq.mining.candidates import CandidateLists, Provenance
from aoq.mining.offline import mine
from aoq.progress import EventLog, say
from aoq.recipes import load_recipe
from aoq.scoring.encoded import EncodedDataset, encode_dataset
from aoq.scoring.ensemble import Ensemble
from aoq.scoring.protocol import Scorer
from aoq.storage import RunDirectory, append_json_line, hash_file, read_json_lines
from aoq.training.checkpoint import load_run
from aoq.training.inputs import default_device


@dataclass(frozen=True)
class Judge:
    """One trained model, or several as an ensemble, with one split as they encode it."""

    runs: Sequence[Path]
    dataset: PairDataset
    scorer: Scorer[Any]
    encoded: EncodedDataset[Any]

    @property
    def model_hash(self) -> str:
        """SHA-256 of the weights; of an ensemble all of them, in order."""
        return "+".join(hash_file(RunDirectory(run).model) for run in self.runs)


def open_judge(runs: Sequence[Path], *, split: str, data: Path | None = None) -> Judge:
    """Encode a split with each of `runs`; the data set is that of the first unless one is named."""
    own = load_recipe(RunDirectory(runs[0]).require_trained().config).data
    if data is None and not own:
        raise UserError(f"{runs[0]} names no data set; add --data FOLDER.")
    dataset = open_dataset(data or Path(own), split)
    models, encoded = [], []
    for run in runs:
        trained = load_run(run, device=default_device())
        trained.require_width(dataset.features.shape[2], source=dataset.name)
        collator = Collator(dataset, trained.vocabulary, device=default_device())
        encoded.append(
            encode_dataset(trained.model, collator, description=f"encode {split} with {run.name}")
        )
        models.append(trained.model)
    if len(runs) == 1:
        return Judge(runs, dataset, models[0], encoded[0])
    return Judge(runs, dataset, Ensemble(models), Ensemble.join(encoded))


def mine_run(
    runs: Path | Sequence[Path],
    out: Path,
    *,
    data: Path | None = None,
    config: MiningConfig | None = None,
) -> CandidateLists:
    """Rank the training set with a trained model, or with several as one, and store the lists."""
    runs = [runs] if isinstance(runs, Path) else runs
    first = RunDirectory(runs[0]).require_trained()
    started = time.monotonic()
    judge = open_judge(runs, split="train", data=data)
    lists = mine(
        judge.scorer,
        judge.encoded,
        judge.dataset.positives,
        config=config or load_recipe(first.config).mining,
        provenance=Provenance(teacher=judge.model_hash, data=judge.dataset.fingerprint),
    )
    lists.save(out)
    seconds = time.monotonic() - started
    EventLog(first.events).write(
        "mined", seconds=round(seconds, 2), i2t=lists.i2t.shape, t2i=lists.t2i.shape
    )
    say(
        f"mined {lists.depth_texts} texts for each of {len(lists.i2t):,} images and "
        f"{lists.depth_images} images for each of {len(lists.t2i):,} texts in {seconds:.1f} s"
    )
    return lists


def evaluate_run(
    runs: Path | Sequence[Path],
    *,
    split: str = "test",
    data: Path | None = None,
    memory: str | None = None,
) -> Metrics:
    """Judge a run's best model, or the ensemble of several, on one split; note it in the first."""
    runs = [runs] if isinstance(runs, Path) else runs
    started = time.monotonic()
    judge = open_judge(runs, split=split, data=data)
    metrics = evaluate_encoded(judge.scorer, judge.encoded, judge.dataset.positives, memory=memory)
    directory = RunDirectory(runs[0])
    append_json_line(
        directory.results,
        {
            "split": split,
            "model": judge.model_hash,
            "data": judge.dataset.fingerprint,
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
