"""A split of a data set as the model of a run encodes it, which mining and judging start from.

Encodings that are computed for mining are kept in the run's folder, so that they are found again
by whatever needs them next.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from aoq.config import RoundName
from aoq.data.collate import Collator
from aoq.data.dataset import PairDataset
from aoq.data.splits import open_dataset
from aoq.disk import is_writable
from aoq.distributed import ALONE, Processes, alone_in, default_device
from aoq.errors import UserError
from aoq.evaluation.protocols import JudgedFold, judge_folds
from aoq.manifest import create_manifest
from aoq.recipes import load_recipe
from aoq.runs.best_round import best_round
from aoq.runs.checkpoint import MakeModel, load_run
from aoq.runs.directory import RunDirectory
from aoq.scoring.encoded import EncodedDataset, encode_dataset
from aoq.scoring.encoding_files import encode_to_disk, encodings_folder, open_stored
from aoq.scoring.ensemble import Ensemble
from aoq.scoring.protocol import Scorer, TrainableModel


@dataclass(frozen=True)
class ScoredSplit:
    """A split as a trained model, or an ensemble of several, encodes it."""

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
        """Encode a split with the model of a run; `model_hash` is that of the loaded weights.

        Encodings are held in memory, or kept in the run's folder by the processes `on_disk`. If
        the run is read-only, they are kept in the folder `scratch`, or in memory without one.
        """
        description = f"encode {collator.dataset.split} with {run.name}"
        dataset = collator.dataset
        folder = None if on_disk is None else _place(run, dataset, model_hash, scratch)
        if on_disk is None or folder is None:
            encoded = encode_dataset(model, collator, description=description)
        else:
            if is_writable(folder):  # else everything is there
                _encode_on_disk(folder, model, collator, on_disk, description)
            encoded = open_stored(folder, len(dataset), dataset.n_texts, device=collator.device)
        return cls((run,), dataset, model, encoded, model_hash)

    def judge(self, *, memory: str | None = None, folds: int = 1) -> list[JudgedFold]:
        """Rank everything; return the ranks of each fold, of one fold those of the whole split."""
        return judge_folds(
            self.scorer,
            self.encoded,
            self.dataset.positives,
            memory=memory,
            folds=folds,
            data=self.dataset.fingerprint,
        )

    @classmethod
    def ensemble(cls, members: Sequence[ScoredSplit]) -> ScoredSplit:
        """Combine several models of the same split into one that scores with their mean."""
        if len(members) == 1:
            return members[0]
        return cls(
            runs=tuple(run for member in members for run in member.runs),
            dataset=members[0].dataset,
            scorer=Ensemble([member.scorer for member in members]),
            encoded=Ensemble.join([member.encoded for member in members]),
            model_hash="+".join(member.model_hash for member in members),
        )


def open_splits(
    runs: Sequence[Path | str],
    *,
    split: str,
    data: Path | str | None = None,
    on_disk: Processes | None = None,
    round: RoundName | None = None,  # noqa: A002
    scratch: Path | None = None,
    make_model: MakeModel | None = None,
) -> list[ScoredSplit]:
    """Encode a split with the best round of each of `runs`, or with the named `round`.

    `data` defaults to the data set that the runs were trained on; `make_model` builds the model of
    runs that hold one of the user's own.
    """
    rounds = [best_round(run, round).path for run in runs]
    if data is None:
        _require_same_data(rounds)
    dataset = open_dataset(data or own_data(rounds[0]), split)
    opened = []
    for run in rounds:
        trained = load_run(run, device=default_device(), make_model=make_model)
        collator = trained.collator(dataset, device=default_device(), processes=on_disk or ALONE)
        opened.append(
            ScoredSplit.encode(
                run,
                trained.model,
                collator,
                model_hash=trained.model_hash,
                on_disk=on_disk,
                scratch=scratch,
            )
        )
    return opened


def _place(run: Path, dataset: PairDataset, model_hash: str, scratch: Path | None) -> Path | None:
    """Choose the run's folder if it is writable or complete, else one in `scratch`."""
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
) -> None:
    """Encode with all processes what is not in the folder yet."""
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


def _make_encodings_folder(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    create_manifest(folder, "encodings")


def kept_encodings(run: Path, dataset: PairDataset, *, model_hash: str) -> Path:
    """Name the folder for a run's encodings of a data set, whether it exists or not."""
    parent = RunDirectory(run).encodings
    return encodings_folder(parent, model_hash=model_hash, data=dataset.fingerprint)


def _require_same_data(rounds: Sequence[Path]) -> None:
    """Refuse runs of different data: one may have been trained on what it would be judged on."""
    first = own_data(rounds[0])
    for run in rounds[1:]:
        other = load_recipe(RunDirectory(run).config).data
        if other and Path(other).resolve() != first.resolve():
            raise UserError(
                f"{rounds[0]} was trained on {first} and {run} on {other}; name the data set for "
                "all of them with --data."
            )


def own_data(run: Path) -> Path:
    """Return the data set that a run was trained on."""
    own = load_recipe(RunDirectory(run).last_round().config).data
    if not own:
        raise UserError(f"{run} names no data set; add --data FOLDER.")
    return Path(own)
