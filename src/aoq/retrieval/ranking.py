"""Rankers: they find the best of many images or texts for a query, in one of three ways.

An embedding model compares vectors, which a store does for all of them in milliseconds. A model
with cross attention scores pairs: all of them in blocks, which is exact and takes seconds, or only
those that an embedding model proposes. Results are best first, equal scores by the lower number.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from aoq.retrieval.allowed import Allowed
from aoq.retrieval.vector_ranking import EncodedQuery, Ranker, Ranking, VectorRanker, best
from aoq.scoring.blocks import ranges
from aoq.scoring.encoded import Modality, Rows
from aoq.scoring.inner_product import InnerProduct
from aoq.scoring.protocol import Scorer
from aoq.types import Encoding, Floats

_BLOCK_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Candidates:
    """Images or texts to rank, and the model that scores them against queries."""

    scorer: Scorer[Encoding]
    rows: Rows[Encoding]
    kind: Modality

    def scores(self, query: Encoding, rows: slice | torch.Tensor) -> Floats:
        """Score each query against some candidates. (queries, rows)"""
        encoded = self.rows[rows]
        with torch.no_grad():
            scores = (
                self.scorer.score_matrix(encoded, query).T
                if self.kind == "images"
                else self.scorer.score_matrix(query, encoded)
            )
        return scores.float().cpu().numpy()


@dataclass(frozen=True)
class FullRanker:
    """Scores every candidate with the model, in blocks."""

    candidates: Candidates
    exact = True

    def rank(self, query: EncodedQuery, *, top: int, allowed: Allowed | None = None) -> Ranking:
        rows = self.candidates.rows
        n_queries = len(query.own)
        found = Ranking(np.empty((n_queries, 0), np.int64), np.empty((n_queries, 0), np.float32))
        for block in ranges(len(rows), max(1, _BLOCK_BYTES // rows.row_nbytes)):
            numbers = np.arange(block.start, block.stop)
            if allowed is not None:
                numbers = numbers[allowed.mask[block]]
            if not len(numbers):
                continue
            selected = block if allowed is None else torch.from_numpy(numbers)
            scores = self.candidates.scores(query.own, selected)
            ids = np.broadcast_to(numbers, scores.shape)
            found = best(
                np.concatenate([found.scores, scores], axis=1),
                np.concatenate([found.ids, ids], axis=1),
                top=top,
            )
        return found


@dataclass(frozen=True)
class ProposedRanker:
    """Scores with the model only the first candidates of its teacher."""

    candidates: Candidates
    teacher: VectorRanker
    proposals: int

    @property
    def exact(self) -> bool:
        return self.proposals >= len(self.candidates.rows)

    def rank(self, query: EncodedQuery, *, top: int, allowed: Allowed | None = None) -> Ranking:
        assert query.teacher is not None
        count = max(top, self.proposals)
        found = self.teacher.rank_vectors(query.teacher, top=count, allowed=allowed)
        proposed = np.sort(found.ids, axis=1)
        if not proposed.size:
            return found
        scores = [
            self.candidates.scores(query.own[slice(row, row + 1)], torch.from_numpy(ids))
            for row, ids in enumerate(proposed)
        ]
        return best(np.concatenate(scores), proposed, top=top)


def compares_vectors(scorer: Scorer[Encoding]) -> bool:
    """Return whether a score is the inner product of two vectors, which faiss finds fast."""
    kind = type(scorer)
    return isinstance(scorer, InnerProduct) and kind.score_matrix is InnerProduct.score_matrix


def make_ranker(
    candidates: Candidates,
    teacher: Rows[Encoding] | None,
    *,
    proposals: int,
    vectors: VectorRanker | None = None,
) -> Ranker:
    """Make the ranker for a model: by vectors, by its teacher's proposals, or by full scoring.

    `vectors` ranks the vectors of the candidates, if a store holds them; default: in memory.
    """
    if compares_vectors(candidates.scorer):
        return vectors or VectorRanker.of_rows(candidates.rows)
    if teacher is None:
        return FullRanker(candidates)
    return ProposedRanker(candidates, VectorRanker.of_rows(teacher), proposals)
