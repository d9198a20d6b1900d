"""Ranks that are kept with a run: a small file from which every figure of a model follows.

Recalls tell how many queries were answered, not which. Intervals, comparisons of two models on the
same queries and histograms need the ranks themselves; ranking a test set again for each of them
would cost minutes with cross attention. So they are written down when a model is judged, under a
name made of the model's and the data's hashes: other weights or data never find them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from aoq.data.dataset import PairDataset
from aoq.evaluation.protocols import JudgedFold
from aoq.evaluation.ranks import PairRanks
from aoq.storage import atomic_file, hash_parts

FOLDER = "ranks"
_SIDES = ("images", "texts")


def keep_ranks(run: Path, fold: JudgedFold, *, model: str, dataset: PairDataset) -> None:
    """Write down the ranks of the model with the hash `model` on a whole split."""
    ranks = {side: getattr(fold.pair_ranks, side).astype(np.int32) for side in _SIDES}
    with atomic_file(_file(run, model, dataset)) as temporary:
        save_file(ranks, temporary)


def kept_ranks(run: Path, *, model: str, dataset: PairDataset) -> JudgedFold | None:
    """What was written down; none where it is missing, damaged or of another number of pairs."""
    try:
        ranks = load_file(_file(run, model, dataset))
    except (OSError, SafetensorError):
        return None
    if any(ranks.get(side, np.empty(0)).shape != (_n_pairs(dataset),) for side in _SIDES):
        return None
    pair_ranks = PairRanks(**{side: ranks[side].astype(np.int64) for side in _SIDES})
    return JudgedFold(dataset.positives, pair_ranks, dataset.fingerprint)


def _file(run: Path, model: str, dataset: PairDataset) -> Path:
    key = hash_parts(f"{model} {dataset.fingerprint}".encode())[:16]
    return run / FOLDER / f"{dataset.split}-{key}.safetensors"


def _n_pairs(dataset: PairDataset) -> int:
    return len(dataset.positives.pairs)
