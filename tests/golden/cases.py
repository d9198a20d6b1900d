"""Batches of the golden arrays."""

from __future__ import annotations

import numpy as np
import torch

from aoq.types import AlignedIdx, Positives, StepBatch, Texts
from tests.golden.conftest import Golden


def all_texts(arrays: Golden) -> Texts:
    return Texts(arrays["in.captions"], arrays["in.lengths"])


def step_batch(arrays: Golden, *, dtype: torch.dtype) -> StepBatch:
    rows = arrays["pair.caption_rows"]
    return StepBatch(
        regions=arrays["in.images"].to(dtype),
        texts=all_texts(arrays),
        pairs=AlignedIdx(torch.arange(len(rows)), rows),
        negatives=~torch.eye(len(rows), dtype=torch.bool),
        offline=AlignedIdx(arrays["off.image_rows"], arrays["off.caption_rows"]),
        partners=AlignedIdx(arrays["off2.image_rows"], arrays["off2.caption_rows"]),
    )


def in_order(n_images, n_texts):
    texts = np.arange(n_texts)
    pairs = np.stack([texts // (n_texts // n_images), texts], axis=1)
    return Positives.from_pairs(pairs, n_images=n_images, n_texts=n_texts)
