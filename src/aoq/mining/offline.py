"""Global mining: one pass over the blocks of the score matrix fills both kinds of list.

A block's rows feed the images' lists, its columns the texts'; positives are struck out before
either looks. Only the best of what has been seen so far is kept, so memory does not grow with
the data set beyond the lists themselves.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from aoq.config import MiningConfig
from aoq.errors import UserError
from aoq.mining.candidates import CandidateLists, Floats, Int32s, Provenance
from aoq.progress import warn
from aoq.scoring.blocks import block_size_within, score_blocks
from aoq.scoring.encoded import EncodedDataset
from aoq.scoring.protocol import Scorer
from aoq.types import Positives

E = TypeVar("E")


class TopLists:
    """The highest scores seen so far for every anchor, with their candidates' ids."""

    def __init__(self, *, n_anchors: int, depth: int, device: str | torch.device) -> None:
        self.depth = depth
        self.scores = torch.full((n_anchors, depth), -torch.inf, device=device)
        self.ids = torch.zeros((n_anchors, depth), dtype=torch.int32, device=device)

    def offer(self, anchors: slice, scores: Tensor, *, first_id: int) -> None:
        """Take over what is among the best of `scores` (anchors x candidates first_id...)."""
        best, columns = scores.topk(min(self.depth, scores.shape[1]), dim=1)
        scores = torch.cat([self.scores[anchors], best], dim=1)
        ids = torch.cat([self.ids[anchors], (columns + first_id).to(torch.int32)], dim=1)
        kept, places = scores.topk(self.depth, dim=1)
        self.scores[anchors] = kept
        self.ids[anchors] = ids.gather(1, places)

    def sorted(self) -> tuple[Int32s, Floats]:
        """Hardest first; equal scores in order of id.

        Where the last of a list ties with candidates beyond it, which of them is kept is open.
        """
        ids, scores = self.ids.cpu().numpy(), self.scores.cpu().numpy()
        order = np.lexsort((ids, -scores), axis=1)
        return np.take_along_axis(ids, order, axis=1), np.take_along_axis(scores, order, axis=1)


def usable_depth(wanted: int, positives: Positives, *, what: str) -> int:
    """The depth that every anchor can fill with negatives; says so where that is less."""
    available = positives.n_texts - int(positives.texts_per_image().max(initial=0))
    if available < 1:
        raise UserError(f"no {what} are left to mine: every one belongs to some anchor.")
    if available < wanted:
        warn(f"the lists are {available} {what} deep instead of {wanted}: the set has no more.")
    return min(wanted, available)


def mine(
    scorer: Scorer[E],
    encoded: EncodedDataset[E],
    positives: Positives,
    *,
    config: MiningConfig,
    provenance: Provenance,
    block_size: int | None = None,
) -> CandidateLists:
    """The hardest negatives of every image and text; blocks as large as `config.memory` allows."""
    block_size = block_size or block_size_within(config.memory, encoded)
    i2t = TopLists(
        n_anchors=positives.n_images,
        depth=usable_depth(config.depth_texts, positives, what="texts"),
        device=encoded.device,
    )
    t2i = TopLists(
        n_anchors=positives.n_texts,
        depth=usable_depth(config.depth_images, positives.swapped, what="images"),
        device=encoded.device,
    )
    for block in score_blocks(scorer, encoded, block_size=block_size, description="mine"):
        rows, columns = positives.within(block.images, block.texts)
        block.scores[torch.from_numpy(rows), torch.from_numpy(columns)] = -torch.inf
        i2t.offer(block.images, block.scores, first_id=block.texts.start)
        t2i.offer(block.texts, block.scores.T, first_id=block.images.start)
    i2t_ids, i2t_scores = i2t.sorted()
    t2i_ids, t2i_scores = t2i.sorted()
    return CandidateLists(i2t_ids, i2t_scores, t2i_ids, t2i_scores, provenance)
