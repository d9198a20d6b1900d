"""The score matrix seen from one side: anchors in rows, candidates in columns.

What is said once about anchors and candidates then holds for images with their texts and for
texts with their images.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Generic, TypeVar

import numpy as np
import torch

from aoq.errors import UserError
from aoq.mining.toplists import TopLists
from aoq.progress import progress_bar
from aoq.scoring.blocks import ranges
from aoq.scoring.encoded import EncodedDataset, Rows
from aoq.scoring.protocol import Scorer
from aoq.threads import Workers, worker_threads
from aoq.types import Floats, Ids, Positives

E = TypeVar("E")
Offer = tuple[slice, Ids, Floats, Ids]  # anchors, and what `TopLists.offer` takes of them
_CANDIDATES_AT_ONCE = 512


@dataclass(frozen=True, eq=False)
class Side(Generic[E]):
    """Anchors and candidates, and who belongs to whom: `positives` has anchors for images."""

    scorer: Scorer[E]
    anchors: Rows[E]
    candidates: Rows[E]
    positives: Positives
    anchors_are_texts: bool
    device: str | torch.device

    @classmethod
    def of_images(
        cls, scorer: Scorer[E], encoded: EncodedDataset[E], positives: Positives
    ) -> Side[E]:
        return cls(scorer, encoded.images, encoded.texts, positives, False, encoded.device)

    @classmethod
    def of_texts(
        cls, scorer: Scorer[E], encoded: EncodedDataset[E], positives: Positives
    ) -> Side[E]:
        return cls(scorer, encoded.texts, encoded.images, positives.swapped, True, encoded.device)

    def matrix(self, anchors: E, candidates: E) -> Floats:
        """Scores of some anchors and candidates, taken out; the caller may write to them."""
        with torch.no_grad():
            scores = (
                self.scorer.score_matrix(candidates, anchors).T
                if self.anchors_are_texts
                else self.scorer.score_matrix(anchors, candidates)
            )
        return np.ascontiguousarray(scores.float().cpu().numpy())

    def scores(self, anchors: E, ids: slice, candidates: slice) -> Floats:
        """Scores of some anchors, taken out, with their positives put out of the running."""
        scores = self.matrix(anchors, self.candidates[candidates])
        wanted = ids.stop - ids.start, candidates.stop - candidates.start
        if scores.shape != wanted:
            step = -1 if self.anchors_are_texts else 1
            raise UserError(
                f"score_matrix(images, texts) has the shape {scores.shape[::step]}; expected "
                f"{wanted[::step]}, (N, M)."
            )
        scores[self.positives.within(ids, candidates)] = -np.inf
        return scores

    def rank(
        self,
        anchor_ids: Ids,
        *,
        depth: int,
        block_size: int,
        candidates: slice | None = None,
        ceilings: Floats | None = None,
    ) -> TopLists:
        """The lists of some anchors, in their order, of all `candidates` that may be in them."""
        candidates = candidates or slice(0, len(self.candidates))
        n_candidates = candidates.stop - candidates.start
        lists = TopLists(len(anchor_ids), depth=depth, n_candidates=n_candidates)
        if ceilings is not None:
            lists.ceilings = ceilings
        with worker_threads(self.device) as workers:
            for offer in self._offers(anchor_ids, candidates, lists.floors, block_size, workers):
                lists.offer(*offer)
        lists.settle(slice(0, len(lists)))
        return lists

    def _offers(
        self,
        anchor_ids: Ids,
        candidates: slice,
        floors: Floats,
        block_size: int,
        workers: Workers,
    ) -> Iterator[Offer]:
        """Candidates that score above the anchors' floors, which rise on the way, by blocks."""
        some = replace(self, positives=self.positives.of_images(anchor_ids))

        def score(anchors: E, rows: slice, block: slice) -> Offer:
            scores = some.scores(anchors, rows, block)
            idx, columns = np.nonzero(scores >= floors[rows, None])
            return rows, idx, scores[idx, columns], columns + block.start

        blocks = ranges(candidates.stop, block_size, start=candidates.start)
        for rows in ranges(len(anchor_ids), block_size):
            anchors = self.anchors[torch.from_numpy(anchor_ids[rows])]
            yield from workers.map(partial(score, anchors, rows), blocks)

    def negatives(self, anchor_ids: Ids) -> Iterator[tuple[Ids, Floats]]:
        """All candidates of each anchor but its positives, with their scores.

        The candidates are read once; the scores of all these anchors are held until then.
        """
        anchors, ids = self.anchors[torch.from_numpy(anchor_ids)], np.arange(len(self.candidates))
        scores = np.empty((len(anchor_ids), len(ids)), np.float32)
        unit = "images" if self.anchors_are_texts else "texts"
        with progress_bar("rank a sample", total=len(ids), unit=unit) as update:
            for block in ranges(len(ids), _CANDIDATES_AT_ONCE):
                scores[:, block] = self.matrix(anchors, self.candidates[block])
                update(advance=block.stop - block.start)
        for anchor, row in zip(anchor_ids.tolist(), scores, strict=True):
            own = self.positives.texts_of(anchor)
            yield np.delete(ids, own), np.delete(row, own)
