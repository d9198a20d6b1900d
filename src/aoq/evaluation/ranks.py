"""The rank of the best right answer of every query, from blocks of the score matrix.

Ranks count from 0: the number of wrong answers that are not below the best right one. So ties, and
scores that are no numbers, count against the model; another positive of the query never does.
Scores computed in different blocks may differ in the last digits; wrong answers within `TIE` of
the right one are therefore ties too, which keeps a collapsed model (all scores equal) at the
bottom where it belongs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from aoq.config import BLOCK_SIZE
from aoq.scoring.blocks import ranges, score_blocks
from aoq.scoring.encoded import EncodedDataset
from aoq.scoring.protocol import Scorer
from aoq.types import Ids, Positives

E = TypeVar("E")
TIE = 1e-6


@dataclass(frozen=True)
class Ranks:
    """0-based ranks for every image query (i2t) and every text query (t2i)."""

    i2t: Ids  # (N,)
    t2i: Ids  # (M,)


def ranks_in_blocks(
    scorer: Scorer[E],
    encoded: EncodedDataset[E],
    positives: Positives,
    *,
    block_size: int = BLOCK_SIZE,
) -> Ranks:
    """Ranks without ever holding the score matrix."""
    right = _positive_scores(scorer, encoded, positives, block_size=block_size)
    best_i2t = _best(right, positives.pairs[:, 0], positives.n_images)
    best_t2i = _best(right, positives.pairs[:, 1], positives.n_texts)
    i2t = torch.zeros(positives.n_images, dtype=torch.int64)
    t2i = torch.zeros(positives.n_texts, dtype=torch.int64)
    for block in score_blocks(scorer, encoded, block_size=block_size, description="rank"):
        scores = block.scores.cpu()
        rows, columns = positives.within(block.images, block.texts)
        scores[torch.from_numpy(rows), torch.from_numpy(columns)] = -torch.inf
        i2t[block.images] += (~(scores < best_i2t[block.images, None])).sum(dim=1)
        t2i[block.texts] += (~(scores < best_t2i[None, block.texts])).sum(dim=0)
    return Ranks(i2t=i2t.numpy(), t2i=t2i.numpy())


def ranks_of_matrix(scores: npt.ArrayLike, positives: Positives) -> Ranks:
    """Ranks from a score matrix that somebody already has; ties only where scores are equal."""
    matrix = np.array(scores, dtype=np.float64)
    rows, columns = positives.pairs.T
    right = torch.from_numpy(matrix[rows, columns])
    best_i2t = _best(right, rows, positives.n_images, tie=0.0).numpy()
    best_t2i = _best(right, columns, positives.n_texts, tie=0.0).numpy()
    matrix[rows, columns] = -np.inf
    return Ranks(
        i2t=(~(matrix < best_i2t[:, None])).sum(axis=1), t2i=(~(matrix < best_t2i)).sum(axis=0)
    )


def _positive_scores(
    scorer: Scorer[E], encoded: EncodedDataset[E], positives: Positives, *, block_size: int
) -> Tensor:
    """The score of every positive pair. (P,)"""
    parts = []
    with torch.no_grad():
        for piece in ranges(len(positives.pairs), block_size):
            images, texts = torch.from_numpy(positives.pairs[piece]).unbind(dim=1)
            parts.append(scorer.score_pairs(encoded.images[images], encoded.texts[texts]).cpu())
    return torch.cat(parts)


def _best(right: Tensor, anchors: Ids, n_anchors: int, *, tie: float = TIE) -> Tensor:
    """The best right answer of every query, lowered by what counts as a tie."""
    best = torch.full((n_anchors,), -torch.inf, dtype=right.dtype)
    best.scatter_reduce_(0, torch.from_numpy(np.array(anchors)), right, reduce="amax")
    return best - tie * best.abs().clamp(min=1.0)
