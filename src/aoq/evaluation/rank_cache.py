"""Ranks that are saved with a run: a small file from which all figures of a model follow.

Recalls state how many queries were answered, not which. Intervals, comparisons of two models on the
same queries and histograms need the ranks themselves; ranking a test set again for each of them
would cost minutes with cross attention. So an evaluation saves them in its run, under a name made
of the model's and the data's hashes, so different weights or data never match.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from aoq.data.dataset import PairDataset
from aoq.evaluation.protocols import JudgedFold
from aoq.evaluation.ranks import PairRanks
from aoq.manifest import DamagedFileError, check_file
from aoq.storage import atomic_file, hash_parts

FOLDER = "ranks"
_SIDES = ("images", "texts")


def ranks_file(run: Path, *, model: str, dataset: PairDataset) -> Path:
    """Return where a run keeps the ranks of the model with the hash `model` on a whole split."""
    key = hash_parts(f"{model} {dataset.fingerprint}".encode())[:16]
    return run / FOLDER / f"{dataset.split}-{key}.safetensors"


def keep_ranks(path: Path, fold: JudgedFold) -> None:
    """Save the ranks on a whole split, in the smallest integer type that holds them."""
    found = {side: getattr(fold.pair_ranks, side) for side in _SIDES}
    ranks = {side: each.astype(np.min_scalar_type(each.max())) for side, each in found.items()}
    with atomic_file(path) as temporary:
        save_file(ranks, temporary, metadata={"sha256": _content_hash(ranks)})


def kept_ranks(path: Path, dataset: PairDataset) -> JudgedFold | None:
    """Load saved ranks; None if they are missing, damaged or of another number of pairs."""
    try:
        check_file(path)
        with safe_open(path, framework="np") as file:
            ranks = {side: file.get_tensor(side) for side in _SIDES}
            stated = (file.metadata() or {}).get("sha256")
    except (OSError, SafetensorError, DamagedFileError):
        return None
    if stated not in (None, _content_hash(ranks)):  # earlier versions stated none
        return None
    if any(part.shape != (_n_pairs(dataset),) for part in ranks.values()):
        return None
    pair_ranks = PairRanks(**{side: ranks[side].astype(np.int64) for side in _SIDES})
    return JudgedFold(dataset.positives, pair_ranks, dataset.fingerprint)


def _content_hash(ranks: Mapping[str, npt.NDArray[Any]]) -> str:
    return hash_parts(*(ranks[side].astype(np.int64).data for side in _SIDES))


def _n_pairs(dataset: PairDataset) -> int:
    return len(dataset.positives.pairs)
