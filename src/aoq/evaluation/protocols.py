"""How a trained model is judged on a data set."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import numpy as np

from aoq.data.collate import Collator
from aoq.data.dataset import PairDataset
from aoq.evaluation.metrics import Metrics
from aoq.evaluation.ranks import ranks_in_blocks
from aoq.scoring.blocks import block_size_within
from aoq.scoring.encoded import EncodedDataset, encode_dataset
from aoq.scoring.protocol import Scorer, TrainableModel
from aoq.types import Positives

E = TypeVar("E")


def evaluate(
    model: TrainableModel, collator: Collator, *, description: str = "evaluate"
) -> Metrics:
    """Every image against every text of one split, both ways."""
    encoded = encode_dataset(model, collator, description=description)
    return evaluate_encoded(model, encoded, collator.dataset.positives)


def evaluate_encoded(
    scorer: Scorer[E],
    encoded: EncodedDataset[E],
    positives: Positives,
    *,
    memory: str | None = None,
) -> Metrics:
    """The same where everything is encoded, in blocks as large as `memory` allows."""
    block_size = block_size_within(memory, encoded)
    return Metrics.from_ranks(ranks_in_blocks(scorer, encoded, positives, block_size=block_size))


def first_texts(dataset: PairDataset, n_texts: int) -> PairDataset:
    """The first so many captions of a data set, and the images they belong to."""
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
