"""How a trained model is judged on a data set."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from aoq.config import BLOCK_SIZE
from aoq.data.collate import Collator
from aoq.data.dataset import PairDataset
from aoq.evaluation.metrics import Metrics
from aoq.evaluation.ranks import ranks_in_blocks
from aoq.scoring.blocks import encode_dataset
from aoq.scoring.protocol import TrainableModel
from aoq.types import Positives


def evaluate(
    model: TrainableModel,
    collator: Collator,
    *,
    block_size: int = BLOCK_SIZE,
    description: str = "evaluate",
) -> Metrics:
    """Every image against every text of one split, both ways."""
    encoded = encode_dataset(model, collator, description=description)
    positives = collator.dataset.positives
    return Metrics.from_ranks(ranks_in_blocks(model, encoded, positives, block_size=block_size))


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
