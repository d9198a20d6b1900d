"""How a trained model is evaluated on a data set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

import numpy as np

from aoq.data.collate import Collator
from aoq.data.dataset import PairDataset
from aoq.evaluation.folds import split_into_folds
from aoq.evaluation.metrics import Metrics
from aoq.evaluation.ranks import PairRanks, Ranks, pair_ranks_in_blocks
from aoq.scoring.blocks import block_size_for
from aoq.scoring.encoded import EncodedDataset, encode_dataset
from aoq.scoring.protocol import Scorer, TrainableModel
from aoq.types import Positives

E = TypeVar("E")


@dataclass(frozen=True, eq=False)
class JudgedFold:
    """The ranks of a fold, or of a whole split, from which every figure follows."""

    positives: Positives
    pair_ranks: PairRanks
    data: str | None = None
    "Fingerprint of the split, if known: two models are compared on the same split only."

    @cached_property
    def ranks(self) -> Ranks:
        return self.pair_ranks.best(self.positives)

    @property
    def metrics(self) -> Metrics:
        return Metrics.from_ranks(self.ranks)


def evaluate(
    model: TrainableModel, collator: Collator, *, description: str = "evaluate", folds: int = 1
) -> Metrics:
    """Evaluate all images against all texts of a split, in both directions, averaged over folds."""
    encoded = encode_dataset(model, collator, description=description)
    return evaluate_encoded(model, encoded, collator.dataset.positives, folds=folds)


def evaluate_encoded(
    scorer: Scorer[E],
    encoded: EncodedDataset[E],
    positives: Positives,
    *,
    memory: str | None = None,
    folds: int = 1,
) -> Metrics:
    """Evaluate an encoded data set, in blocks of up to 1,024, as large as `memory` allows."""
    return average(judge_folds(scorer, encoded, positives, memory=memory, folds=folds))


def judge_folds(
    scorer: Scorer[E],
    encoded: EncodedDataset[E],
    positives: Positives,
    *,
    memory: str | None = None,
    folds: int = 1,
    data: str | None = None,
) -> list[JudgedFold]:
    """Compute the ranks of each fold; one fold is the whole split.

    `data` is the split's fingerprint.
    """
    encoded.require_fit(positives)
    block_size = block_size_for(memory, encoded, beside=0)
    if folds == 1:
        parts = [(positives, encoded)]
    else:
        parts = [(fold.positives, fold.of(encoded)) for fold in split_into_folds(positives, folds)]
    return [
        JudgedFold(own, pair_ranks_in_blocks(scorer, part, own, block_size=block_size), data)
        for own, part in parts
    ]


def average(folds: Sequence[JudgedFold]) -> Metrics:
    """Average every figure over the folds."""
    return Metrics.mean([fold.metrics for fold in folds])


def first_texts(dataset: PairDataset, n_texts: int) -> PairDataset:
    """Return the first `n_texts` captions of a data set, and the images they belong to."""
    if n_texts >= dataset.n_texts:
        return dataset
    pairs = dataset.positives.pairs
    pairs = pairs[pairs[:, 1] < n_texts]
    kept, images = np.unique(pairs[:, 0], return_inverse=True)
    in_order = bool(kept[-1] == len(kept) - 1)  # a slice leaves the features on disk
    return replace(
        dataset,
        features=dataset.features[: len(kept)] if in_order else dataset.features[kept],
        image_ids=tuple(dataset.image_ids[image] for image in kept),
        captions=dataset.captions[:n_texts],
        caption_ids=dataset.caption_ids[:n_texts],
        positives=Positives.from_pairs(
            np.stack([images, pairs[:, 1]], axis=1), n_images=len(kept), n_texts=n_texts
        ),
        pictures=tuple(dataset.pictures[image] for image in kept),
    )
