"""What a trained run is used for: mining with it, and judging it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from aoq.config import MiningConfig, RoundName
from aoq.data.collate import Collator
from aoq.data.dataset import PairDataset
from aoq.data.opening import open_dataset
from aoq.disk import is_read_only, is_writable
from aoq.errors import UserError
from aoq.evaluation.kept_ranks import keep_ranks, kept_ranks, ranks_file
from aoq.evaluation.metrics import FIGURES, Metrics
from aoq.evaluation.protocols import JudgedFold, judge_folds
from aoq.folders import remember_file
from aoq.manifest import create_manifest
from aoq.mining.candidates import CandidateLists, Provenance
from aoq.mining.offline import mine_together
from aoq.mining.report import mining_report, report_file
from aoq.mining.rerank import Agreement, agreement, rerank
from aoq.mining.saved import remove_saved, saved_file, saved_folder
from aoq.mining.together import Mined
from aoq.processes import ALONE, Processes, alone_in
from aoq.progress import EventLog, count_of, say, warn
from aoq.recipes import load_recipe
from aoq.scoring.encoded import EncodedDataset, encode_dataset
from aoq.scoring.ensemble import Ensemble
from aoq.scoring.protocol import Scorer, TrainableModel
from aoq.scoring.stored import encode_to_disk, encodings_folder, open_stored
from aoq.storage import RunDirectory, append_json_line, read_json_lines
from aoq.training.best_round import best_round
from aoq.training.checkpoint import hash_model, hash_models, load_run
from aoq.training.inputs import default_device
from aoq.types import Encoding


@dataclass(frozen=True)
class ScoredSplit:
    """One split as a trained model encodes it, or several as an ensemble."""

    runs: tuple[Path, ...]
    dataset: PairDataset
    scorer: Scorer[Any]
    encoded: EncodedDataset[Any]
    model_hash: str

    @classmethod
    def encode(
        cls,
        run: Path,
        model: TrainableModel,
        collator: Collator,
        *,
        model_hash: str,
        on_disk: Processes | None = None,
        scratch: Path | None = None,
    ) -> ScoredSplit:
        """Encode a split with the model of a run, whose hash is that of what was loaded.

        Encodings are held in memory, or kept in the run's folder by the processes `on_disk`. Where
        a run is read-only they are kept in the folder `scratch`, or held in memory without one.
        """
        description = f"encode {collator.dataset.split} with {run.name}"
        folder = None
        if on_disk is not None:
            folder = _place_for_encodings(run, collator.dataset, model_hash, scratch)
        if on_disk is None or folder is None:
            encoded = encode_dataset(model, collator, description=description)
        elif not is_writable(folder):  # complete
            dataset = collator.dataset
            encoded = open_stored(folder, len(dataset), dataset.n_texts, device=collator.device)
        else:
            encoded = _encode_on_disk(folder, model, collator, on_disk, description)
        return cls((run,), collator.dataset, model, encoded, model_hash)

    def judge(self, *, memory: str | None = None, folds: int = 1) -> list[JudgedFold]:
        """The ranks of each fold; of one fold, those of the whole split."""
        return judge_folds(
            self.scorer,
            self.encoded,
            self.dataset.positives,
            memory=memory,
            folds=folds,
            data=self.dataset.fingerprint,
        )

    @classmethod
    def together(cls, parts: Sequence[ScoredSplit]) -> ScoredSplit:
        """The ensemble of them; of one, that one."""
        if len(parts) == 1:
            return parts[0]
        return cls(
            runs=tuple(run for part in parts for run in part.runs),
            dataset=parts[0].dataset,
            scorer=Ensemble([part.scorer for part in parts]),
            encoded=Ensemble.join([part.encoded for part in parts]),
            model_hash="+".join(part.model_hash for part in parts),
        )


def open_splits(
    runs: Sequence[Path | str],
    *,
    split: str,
    data: Path | str | None = None,
    on_disk: Processes | None = None,
    round: RoundName | None = None,  # noqa: A002
    scratch: Path | None = None,
) -> list[ScoredSplit]:
    """Encode a split with the best round of each of `runs`, or with the `round` that is named.

    The data set is their own, unless one is named.
    """
    rounds = [best_round(run, round).path for run in runs]
    if data is None:
        _require_same_data(rounds)
    dataset = open_dataset(data or own_data(rounds[0]), split)
    parts = []
    for run in rounds:
        trained = load_run(run, device=default_device())
        trained.require_width(dataset.features.shape[2], source=dataset.name)
        collator = Collator(dataset, trained.vocabulary, device=default_device())
        parts.append(
            ScoredSplit.encode(
                run,
                trained.model,
                collator,
                model_hash=trained.model_hash,
                on_disk=on_disk,
                scratch=scratch,
            )
        )
    return parts


def _place_for_encodings(
    run: Path, dataset: PairDataset, model_hash: str, scratch: Path | None
) -> Path | None:
    """The run's folder, if it can be written to or holds everything already; else in `scratch`."""
    kept = kept_encodings(run, dataset, model_hash=model_hash)
    if is_writable(kept):
        return kept
    with suppress(UserError):
        open_stored(kept, len(dataset), dataset.n_texts)
        return kept
    if scratch is None:
        return None
    return encodings_folder(scratch, model_hash=model_hash, data=dataset.fingerprint)


def _encode_on_disk(
    folder: Path,
    model: TrainableModel,
    collator: Collator,
    processes: Processes,
    description: str,
) -> EncodedDataset[Encoding]:
    """Encode with all processes, or find what was encoded before."""
    dataset = collator.dataset
    processes.first_does(partial(_make_encodings_folder, folder))
    with alone_in(folder, processes, doing="encoded"):
        encode_to_disk(
            model,
            collator,
            folder,
            rank=processes.rank,
            world_size=processes.size,
            description=description,
        )
        processes.barrier()
    return open_stored(folder, len(dataset), dataset.n_texts, device=collator.device)


def _make_encodings_folder(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    create_manifest(folder, "encodings")


def kept_encodings(run: Path, dataset: PairDataset, *, model_hash: str) -> Path:
    """Where a run keeps what its model makes of a data set, whether it is there or not."""
    parent = RunDirectory(run).encodings
    return encodings_folder(parent, model_hash=model_hash, data=dataset.fingerprint)


def _require_same_data(rounds: Sequence[Path]) -> None:
    """One that was trained on other data may have seen what it would be judged on."""
    first = own_data(rounds[0])
    for run in rounds[1:]:
        other = load_recipe(RunDirectory(run).config).data
        if other and Path(other).resolve() != first.resolve():
            raise UserError(
                f"{rounds[0]} was trained on {first} and {run} on {other}; name the data set for "
                "all of them with --data."
            )


def own_data(run: Path) -> Path:
    """The data set that a run was trained on."""
    own = load_recipe(RunDirectory(run).last_round().config).data
    if not own:
        raise UserError(f"{run} names no data set; add --data FOLDER.")
    return Path(own)


def mine_run(
    runs: Path | str | Sequence[Path | str],
    out: Path | str,
    *,
    data: Path | str | None = None,
    config: MiningConfig | None = None,
    proposals: Path | str | None = None,
    sample: int = 100,
    processes: Processes = ALONE,
) -> CandidateLists | None:
    """Rank the training set with a trained model, or with several as one, and store the lists.

    With `proposals`, the lists of another model, only what is in them is ranked; the exact lists
    of so many images and texts, the `sample`, then show how much is missed that way.

    Several processes call this together; the first one returns the lists. Killed, it goes on
    where it was.
    """
    runs = [runs] if isinstance(runs, Path | str) else runs
    first = RunDirectory(best_round(runs[0]).path)
    config = config or load_recipe(first.config).mining
    proposed = None
    if proposals is not None:
        proposed = _open_proposals(Path(proposals), data or own_data(first.path))
    out = Path(out)
    parts = open_splits(
        runs, split="train", data=data, on_disk=processes, scratch=saved_folder(out)
    )
    teacher = ScoredSplit.together(parts)
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
    """The same with what is encoded already."""
    started = time.monotonic()
    inputs = teacher.scorer, teacher.encoded, teacher.dataset.positives
    mine_all = mine_together if proposed is None else partial(rerank, proposals=proposed)
    mined = mine_all(
        *inputs,
        config=config,
        provenance=Provenance(teacher=teacher.model_hash, data=teacher.dataset.fingerprint),
        captions=teacher.dataset.captions,
        processes=processes,
        saved=saved_file(out, processes),
    )
    seconds = time.monotonic() - started
    agreed = {}
    if proposed is not None and sample:
        agreed = agreement(*inputs, proposed, config=config, sample=sample, processes=processes)
    if mined is not None:
        _store(mined, teacher, out, config=config, sample=sample)
        _tell(mined, agreed, run=teacher.runs[0], seconds=seconds)
    processes.barrier()  # the lists are there: what was saved on the way is of no use any more
    if processes.is_first:
        remove_saved(out)
    return None if mined is None else mined.lists


def _store(
    mined: Mined, teacher: ScoredSplit, out: Path, *, config: MiningConfig, sample: int
) -> None:
    """Write the report and then the lists: where they are, all is complete."""
    report = mining_report(
        teacher.scorer, teacher.encoded, teacher.dataset, mined, config=config, sample=sample
    )
    report.save(report_file(out))
    remember_file(report_file(out))
    mined.lists.save(out)
    remember_file(out)


def _tell(mined: Mined, agreed: Mapping[str, Agreement], *, run: Path, seconds: float) -> None:
    """Say what was mined, and note it in the run."""
    i2t, t2i = mined.lists.i2t, mined.lists.t2i
    say(
        f"mined {count_of(i2t.shape[1], 'text')} for each of {count_of(len(i2t), 'image')} and "
        f"{count_of(t2i.shape[1], 'image')} for each of {count_of(len(t2i), 'text')} "
        f"in {seconds:.1f} s"
    )
    for part in agreed.values():
        say(part.sentence)
    with _noting(run, "that it was mined with"):
        EventLog(RunDirectory(run).events).write(
            "mined",
            seconds=round(seconds, 2),
            threads=torch.get_num_threads(),
            i2t=i2t.shape,
            t2i=t2i.shape,
            dropped=mined.n_dropped,
            **{f"agreement_{direction}": asdict(part) for direction, part in agreed.items()},
        )


@contextmanager
def _noting(run: Path, what: str) -> Iterator[None]:
    """Write something into a run; where it is read-only, only say that it is not kept."""
    try:
        yield
    except OSError as error:
        if not is_read_only(error):
            raise
        warn(f"{run} is read-only: {what} is not kept there.")


def _open_proposals(path: Path, data: Path | str) -> CandidateLists:
    return CandidateLists.load(path).require_fit(open_dataset(data, "train"), source=path)


def evaluate_run(
    run: Path | str,
    *,
    split: str = "test",
    data: Path | str | None = None,
    memory: str | None = None,
    round: RoundName | None = None,  # noqa: A002
) -> Metrics:
    """Judge the best model of a run on one split, and note the result in the run."""
    ((_, metrics),) = evaluate_runs([run], split=split, data=data, memory=memory, round=round)
    return metrics


def evaluate_runs(
    runs: Path | str | Sequence[Path | str],
    *,
    split: str = "test",
    data: Path | str | None = None,
    memory: str | None = None,
    round: RoundName | None = None,  # noqa: A002
) -> list[tuple[str, Metrics]]:
    """Judge each run as `evaluate_run` does, and last, of several, their ensemble."""
    runs = [runs] if isinstance(runs, Path | str) else runs
    parts = open_splits(runs, split=split, data=data, round=round)
    results = [(str(part.runs[0]), judge_split(part, memory=memory)) for part in parts]
    if len(parts) > 1:
        results.append(("ensemble", judge_split(ScoredSplit.together(parts), memory=memory)))
    return results


def judge_split(part: ScoredSplit, *, memory: str | None = None) -> Metrics:
    """Rank everything, and note the result and the ranks in the (first) run."""
    started = time.monotonic()
    (fold,) = part.judge(memory=memory)
    return note_result(part, fold, seconds=time.monotonic() - started)


def note_result(part: ScoredSplit, fold: JudgedFold, *, seconds: float, **more: Any) -> Metrics:
    """Keep a result of the whole split and its ranks in the (first) run, with what is `more`."""
    metrics, model = fold.metrics, part.model_hash
    directory = RunDirectory(part.runs[0])
    line = {
        "split": part.dataset.split,
        "model": model,
        "data": part.dataset.fingerprint,
        **metrics.as_dict(),
        **more,
    }
    with _noting(directory.path, "the result"):
        keep_ranks(ranks_file(directory.path, model=model, dataset=part.dataset), fold)
        append_json_line(directory.results, line)
        EventLog(directory.events).write(
            "evaluated",
            split=part.dataset.split,
            seconds=round(seconds, 2),
            threads=torch.get_num_threads(),
        )
    return metrics


def ranks_of(runs: Sequence[Path], dataset: PairDataset, *, data: Path | None) -> JudgedFold:
    """The ranks of a model, or of several as an ensemble: as they are kept, or judged and kept."""
    file = ranks_file(runs[0], model=hash_models(runs), dataset=dataset)
    kept = kept_ranks(file, dataset)
    if kept is None:
        part = ScoredSplit.together(open_splits(runs, split=dataset.split, data=data))
        (kept,) = part.judge()
        with _noting(runs[0], "what was judged"):
            keep_ranks(file, kept)
    return kept


def stored_result(run: Path | str, *, split: str) -> dict[str, Any] | None:
    """The result of a run's model, as it is, on its own data set, if there is one."""
    return result_on(Path(run), open_dataset(own_data(Path(run)), split))


def result_on(
    run: Path, dataset: PairDataset, *, model_hash: str | None = None
) -> dict[str, Any] | None:
    """The same on any data, and of a model that was loaded before."""
    about = {
        "split": dataset.split,
        "model": model_hash or hash_model(run),
        "data": dataset.fingerprint,
    }
    fitting = [
        line
        for line in read_json_lines(RunDirectory(run).results)
        if about.items() <= line.items() and all(name in line for name in FIGURES)
    ]
    return fitting[-1] if fitting else None


def judge_once(run: Path, split: Collator, load: Callable[[], TrainableModel]) -> dict[str, Any]:
    """The result of a finished run, judged now with the model that `load` gives if need be."""
    model_hash = hash_model(run)
    if result_on(run, split.dataset, model_hash=model_hash) is None:
        judge_split(ScoredSplit.encode(run, load(), split, model_hash=model_hash))
    result = result_on(run, split.dataset, model_hash=model_hash)
    assert result is not None
    return result
