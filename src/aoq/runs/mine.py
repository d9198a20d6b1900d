"""Mining with the model of a run: candidate lists with their report, and a note in the run."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from aoq.config import Direction, MiningConfig
from aoq.data.splits import open_dataset
from aoq.distributed import ALONE, Processes
from aoq.folders import remember_file
from aoq.mining.agreement import Agreement, agreement
from aoq.mining.candidates import CandidateLists, Provenance
from aoq.mining.finish import MiningResult
from aoq.mining.mine import mine_in_processes
from aoq.mining.report import mining_report, report_file
from aoq.mining.sweep_file import remove_sweep_files, sweep_file, sweep_folder
from aoq.progress import EventLog, say
from aoq.recipes import load_recipe
from aoq.runs.best_round import best_round
from aoq.runs.checkpoint import MakeModel
from aoq.runs.directory import RunDirectory, unless_read_only
from aoq.runs.encodings import ScoredSplit, open_splits, own_data


def mine_run(
    runs: Path | str | Sequence[Path | str],
    out: Path | str,
    *,
    data: Path | str | None = None,
    config: MiningConfig | None = None,
    proposals: Path | str | None = None,
    sample: int = 100,
    processes: Processes = ALONE,
    make_model: MakeModel | None = None,
) -> CandidateLists | None:
    """Rank the training set with a trained model, or an ensemble of several, and store the lists.

    With `proposals`, the lists of another model, only what is in them is ranked; the exact lists
    of `sample` images and texts then show how much is missed that way. `make_model` builds a model
    of your own, as in training.

    Several processes call this; the first one returns the lists. A killed run of it continues
    where it was.
    """
    runs = [runs] if isinstance(runs, Path | str) else runs
    first, out = RunDirectory(best_round(runs[0]).path), Path(out)
    config = config or load_recipe(first.config).mining
    proposed = None
    if proposals is not None:
        dataset = open_dataset(data or own_data(first.path), "train")
        proposed = CandidateLists.load(proposals).require_fit(dataset, source=proposals)
    opened = open_splits(
        runs,
        split="train",
        data=data,
        on_disk=processes,
        scratch=sweep_folder(out),
        make_model=make_model,
    )
    teacher = ScoredSplit.ensemble(opened)
    return mine_split(
        teacher, out, config=config, proposed=proposed, sample=sample, processes=processes
    )


def mine_split(
    teacher: ScoredSplit,
    out: Path,
    *,
    config: MiningConfig,
    proposed: CandidateLists | None = None,
    sample: int = 100,
    processes: Processes = ALONE,
) -> CandidateLists | None:
    """Mine a split that is encoded, store lists and report, and note it in the (first) run.

    The parameters are those of `mine_run`; `proposed` are lists that fit the split.
    """
    started = time.monotonic()
    inputs = teacher.scorer, teacher.encoded, teacher.dataset.positives
    result = mine_in_processes(
        *inputs,
        config=config,
        provenance=Provenance(teacher=teacher.model_hash, data=teacher.dataset.fingerprint),
        captions=teacher.dataset.captions,
        proposals=proposed,
        processes=processes,
        saved=sweep_file(out, processes),
    )
    seconds = time.monotonic() - started
    agreed: Mapping[Direction, Agreement] = {}
    if proposed is not None and sample:
        agreed = agreement(*inputs, proposed, config=config, sample=sample, processes=processes)
    if result is not None:
        report = mining_report(
            teacher.scorer, teacher.encoded, teacher.dataset, result, config=config, sample=sample
        )
        report.save(report_file(out))
        remember_file(report_file(out))
        result.lists.save(out)  # last: where the lists are, all is complete
        remember_file(out)
        _note(result, agreed, run=teacher.runs[0], seconds=seconds)
    processes.barrier()  # the lists are there: what was saved on the way is of no use any more
    if processes.is_first:
        remove_sweep_files(out)
    return None if result is None else result.lists


def _note(
    result: MiningResult, agreed: Mapping[Direction, Agreement], *, run: Path, seconds: float
) -> None:
    """Print what was mined, and write it to the log of the run."""
    lists = result.lists
    say(f"mined {lists.extent} in {seconds:.1f} s ({result.product.sentence})")
    for found in agreed.values():
        say(found.sentence)
    with unless_read_only(run, "that it was mined with"):
        EventLog(RunDirectory(run).events).write(
            "mined",
            seconds=round(seconds, 2),
            threads=torch.get_num_threads(),
            i2t=lists.i2t.shape,
            t2i=lists.t2i.shape,
            dropped=result.n_dropped,
            product=asdict(result.product),
            **{f"agreement_{direction}": asdict(found) for direction, found in agreed.items()},
        )
