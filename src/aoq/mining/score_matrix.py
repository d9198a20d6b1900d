"""The score matrix in one direction: anchors in rows, candidates in columns.

Mining treats images with their texts (`i2t`) and texts with their images (`t2i`) alike; which
argument of the scorer is the anchor is decided here only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Generic, TypeVar

import numpy as np
import torch

from aoq.config import Direction
from aoq.errors import UserError
from aoq.mining.toplists import Hits, TopLists
from aoq.progress import progress_bar
from aoq.scoring.blocks import ranges
from aoq.scoring.encoded import EncodedDataset, Rows
from aoq.scoring.protocol import Scorer
from aoq.threads import WorkerThreads, worker_threads
from aoq.types import Floats, Ids, Positives

E = TypeVar("E")
_CANDIDATES_AT_ONCE = 512


@dataclass(frozen=True, eq=False)
class ScoreMatrix(Generic[E]):
    """Scores of anchors with candidates; `positives` relates anchors (its images) to candidates."""

    direction: Direction
    scorer: Scorer[E]
    anchors: Rows[E]
    candidates: Rows[E]
    positives: Positives
    device: str | torch.device

    @classmethod
    def of(
        cls,
        direction: Direction,
        *,
        scorer: Scorer[E],
        encoded: EncodedDataset[E],
        positives: Positives,
    ) -> ScoreMatrix[E]:
        """Make the matrix of a data set, whose `positives` relate images to texts."""
        images, texts = encoded.images, encoded.texts
        if direction == "i2t":
            return cls(direction, scorer, images, texts, positives, encoded.device)
        return cls(direction, scorer, texts, images, positives.swapped, encoded.device)

    @property
    def nouns(self) -> tuple[str, str]:
        """What anchors and candidates are, for messages."""
        return ("image", "text") if self.direction == "i2t" else ("text", "image")

    def scores(self, anchors: E, candidates: E) -> Floats:
        """Score encodings; the caller may write to them. (anchors, candidates)"""
        with torch.no_grad():
            scores = (
                self.scorer.score_matrix(anchors, candidates)
                if self.direction == "i2t"
                else self.scorer.score_matrix(candidates, anchors).T
            )
        return np.ascontiguousarray(scores.float().cpu().numpy())

    def block(self, anchors: E, ids: slice, candidates: slice) -> Floats:
        """Score the encoded anchors `ids` with a range of candidates, positives at -inf."""
        scores = self.scores(anchors, self.candidates[candidates])
        expected = ids.stop - ids.start, candidates.stop - candidates.start
        if scores.shape != expected:
            step = 1 if self.direction == "i2t" else -1
            raise UserError(
                f"score_matrix(images, texts) has the shape {scores.shape[::step]}; expected "
                f"{expected[::step]}, (N, M)."
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
        """Rank all `candidates` of some anchors, in their order, without guessing floors."""
        candidates = candidates or slice(0, len(self.candidates))
        n_candidates = candidates.stop - candidates.start
        lists = TopLists(len(anchor_ids), depth=depth, n_candidates=n_candidates)
        if ceilings is not None:
            lists.ceilings = ceilings
        with worker_threads(self.device) as workers:
            for rows, hits in self._hits(anchor_ids, candidates, lists.floors, block_size, workers):
                lists.offer(rows, hits)
        lists.settle(slice(0, len(lists)))
        return lists

    def _hits(
        self,
        anchor_ids: Ids,
        candidates: slice,
        floors: Floats,
        block_size: int,
        workers: WorkerThreads,
    ) -> Iterator[tuple[slice, Hits]]:
        """Yield places of anchors with their hits, by blocks; the floors rise on the way."""
        some = replace(self, positives=self.positives.of_images(anchor_ids))

        def score(anchors: E, rows: slice, block: slice) -> tuple[slice, Hits]:
            scores = some.block(anchors, rows, block)
            idx, columns = np.nonzero(scores >= floors[rows, None])
            return rows, Hits(idx, scores[idx, columns], columns + block.start)

        blocks = ranges(candidates.stop, block_size, start=candidates.start)
        for rows in ranges(len(anchor_ids), block_size):
            anchors = self.anchors[torch.from_numpy(anchor_ids[rows])]
            yield from workers.map(partial(score, anchors, rows), blocks)

    def negatives(self, anchor_ids: Ids) -> Iterator[tuple[Ids, Floats]]:
        """Yield all candidates of each anchor but its positives, with their scores.

        The candidates are read once; the scores of all these anchors are held until then.
        """
        anchors, ids = self.anchors[torch.from_numpy(anchor_ids)], np.arange(len(self.candidates))
        scores = np.empty((len(anchor_ids), len(ids)), np.float32)
        unit = f"{self.nouns[1]}s"
        with progress_bar("rank a sample", total=len(ids), unit=unit) as update:
            for block in ranges(len(ids), _CANDIDATES_AT_ONCE):
                scores[:, block] = self.scores(anchors, self.candidates[block])
                update(advance=block.stop - block.start)
        for anchor, row in zip(anchor_ids.tolist(), scores, strict=True):
            own = self.positives.texts_of(anchor)
            yield np.delete(ids, own), np.delete(row, own)
