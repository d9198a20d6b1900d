"""What another model's lists propose: the pairs that a slow model scores, instead of all.

Pairs are scored an image at a time, against its proposed texts. Most of a pair's cost is to take
its members out, and an image takes more than a text: with 36 regions of 1,024 numbers this way
scores about twice as many pairs a second as aligned batches, or as one text against its images.
Similar images scored together share too few texts to gain much by it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch

from aoq.mining.candidates import CandidateLists
from aoq.mining.score_matrix import ScoreMatrix
from aoq.mining.toplists import Hits
from aoq.progress import progress_bar
from aoq.scoring.blocks import ranges
from aoq.storage import hash_parts
from aoq.threads import WorkerThreads, worker_threads
from aoq.types import Bools, Floats, Ids, Int32s

E = TypeVar("E")
_SCORED_AT_ONCE = 512  # candidates, where they are no larger than the next line allows
_TAKEN_OUT = 64 * 2**20  # bytes
_LISTS_AT_ONCE = 4096


@dataclass(frozen=True, eq=False)
class ProposedMatrix(ScoreMatrix[E]):
    """A score matrix of which only the proposed pairs are ever scored."""

    own: Int32s  # (anchors, h), what each anchor proposes
    other: Int32s  # (candidates, h), what each candidate proposes
    at_once: int
    "Candidates that are scored together."

    @classmethod
    def restrict(
        cls, matrix: ScoreMatrix[E], proposals: CandidateLists, *, at_most: int
    ) -> ProposedMatrix[E]:
        """Restrict a matrix to what the lists propose."""
        own, other = proposals.i2t, proposals.t2i
        if matrix.direction == "t2i":
            own, other = other, own
        fitting = max(64, min(_SCORED_AT_ONCE, _TAKEN_OUT // matrix.candidates.row_nbytes))
        return cls(**vars(matrix), own=own, other=other, at_once=min(fitting, at_most))

    @property
    def content_hash(self) -> str:
        """Hash of what is proposed."""
        lists = self.own, self.other
        shapes = str([ids.shape for ids in lists]).encode()
        return hash_parts(shapes, *(np.ascontiguousarray(ids).data for ids in lists))

    def pairs(self, anchors: Ids) -> tuple[Ids, Ids]:
        """Return pairs that either side proposes: rising places in `anchors`, and candidates."""
        n_candidates = len(self.other)
        place = np.full(len(self.own), -1)
        place[anchors] = np.arange(len(anchors))
        keys = [(np.arange(len(anchors))[:, None] * n_candidates + self.own[anchors]).ravel()]
        for block in ranges(n_candidates, _LISTS_AT_ONCE):
            places = place[self.other[block]]
            candidates, columns = np.nonzero(places >= 0)
            found = places[candidates, columns]
            keys.append(found * n_candidates + candidates + block.start)
        places, candidates = np.divmod(np.unique(np.concatenate(keys)), n_candidates)
        free = ~self.positives.contains(anchors[places], candidates)
        return places[free], candidates[free]

    def proposes(self, anchors: Ids, lists: Int32s) -> Bools:
        """Return whether either side proposes each candidate of the anchors' lists. (anchors, h)"""
        places, candidates = self.pairs(anchors)
        offsets = np.arange(len(anchors)) * len(self.other)
        return np.isin(lists + offsets[:, None], candidates + offsets[places])

    def score(self, anchor: int, candidates: Ids) -> Floats:
        """Score one anchor with some candidates."""
        taken_out = self.anchors[slice(anchor, anchor + 1)]
        parts = [
            self.scores(taken_out, self.candidates[torch.from_numpy(candidates[piece])])[0]
            for piece in ranges(len(candidates), self.at_once)
        ]
        return np.concatenate(parts) if parts else np.zeros(0, np.float32)

    def _hits(
        self,
        anchor_ids: Ids,
        candidates: slice,
        floors: Floats,
        block_size: int,
        workers: WorkerThreads,
    ) -> Iterator[tuple[slice, Hits]]:
        """Yield all that is proposed, an anchor at a time."""
        places, ids = self.pairs(anchor_ids)
        inside = (ids >= candidates.start) & (ids < candidates.stop)
        of_anchors = by_place(places[inside], ids[inside], count=len(anchor_ids))
        scored = workers.map(self.score, anchor_ids.tolist(), of_anchors)
        for row, (ids, scores) in enumerate(zip(of_anchors, scored, strict=True)):
            yield slice(row, row + 1), Hits(np.zeros(len(ids), np.int64), scores, ids)

    def negatives(self, anchor_ids: Ids) -> Iterator[tuple[Ids, Floats]]:
        """Yield all candidates proposed to each anchor, with their scores."""
        of_anchors = by_place(*self.pairs(anchor_ids), count=len(anchor_ids))
        with (
            progress_bar("rank a sample", total=len(anchor_ids), unit="anchors") as update,
            worker_threads(self.device) as workers,
        ):
            scored = workers.map(self.score, anchor_ids.tolist(), of_anchors)
            for ids, scores in zip(of_anchors, scored, strict=True):
                yield ids, scores
                update()


def by_place(places: Ids, candidates: Ids, *, count: int) -> list[Ids]:
    """Split candidates by their anchor's place, one of `count`; `places` rise."""
    return np.split(candidates, np.searchsorted(places, np.arange(1, count)))
