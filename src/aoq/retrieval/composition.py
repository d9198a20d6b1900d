"""Composition: several sentences and photos, some of them to be avoided, as one question.

With terms i of weight w_i, which is negative for what should not be there:

*A model of single vectors* is asked with one vector, the direction of sum_i w_i u_i, where u_i is
the vector of a term at unit length. A score is therefore the weighted mean of the terms' cosines,
up to a factor that is the same for all candidates, and a search costs what one of a sentence does.

*A model that scores pairs* has no such vector. Each term scores the candidates, and sum_i w_i z_i
ranks them, where z_i is the score of a term less its mean over the candidates, in standard
deviations: scores of different terms differ in scale. What such a model cannot score, one photo
against another, is the cosine of the means of their regions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from aoq.errors import QueryError
from aoq.retrieval.allowed import Allowed
from aoq.retrieval.ranking import Candidates, ProposedRanker, compares_vectors
from aoq.retrieval.vector_ranking import EncodedQuery, Ranker
from aoq.scoring.blocks import ranges
from aoq.scoring.encoded import Modality
from aoq.types import Encoding, Floats, Ids

_BLOCK_BYTES = 64 * 2**20
_SHORT = 1e-4  # the length of a sum of unit vectors that cancel out, but for rounding


@dataclass(frozen=True)
class Term:
    """A sentence or a photo of a query."""

    kind: Modality
    query: EncodedQuery
    weight: float
    "Negative for what should not be there."


@dataclass(frozen=True)
class Scored:
    """Candidates that the model scored, in no order. (K,)"""

    ids: Ids
    scores: Floats


def score(
    terms: Sequence[Term],
    ranker: Ranker,
    candidates: Candidates,
    *,
    top: int,
    allowed: Allowed | None = None,
    also: Ids | None = None,
) -> Scored:
    """Score at least the `top` best candidates for all terms together, and `also` some others."""
    others = np.empty(0, np.int64) if also is None else also
    query = _as_one(terms, candidates)
    if query is None:
        return _sum(terms, ranker, candidates, top=top, allowed=allowed, also=others)
    ranking = ranker.rank(query, top=top, allowed=allowed)
    ids, scores = ranking.ids[0], ranking.scores[0]
    missing = np.setdiff1d(others, ids)
    if len(missing):
        more = candidates.scores(query.own, torch.from_numpy(missing))[0]
        ids, scores = np.concatenate([ids, missing]), np.concatenate([scores, more])
    return Scored(ids, scores)


def _as_one(terms: Sequence[Term], candidates: Candidates) -> EncodedQuery | None:
    """Return the query that stands for all terms, if the model can be asked with a single one."""
    first = terms[0]
    is_vector = compares_vectors(candidates.scorer)
    if len(terms) == 1 and (is_vector or first.kind != candidates.kind):
        return first.query
    if not is_vector:
        return None
    return EncodedQuery(_compose([term.query.own for term in terms], terms))


def _compose(encoded: Sequence[Encoding], terms: Sequence[Term]) -> Encoding:
    """Add the unit vectors of terms by their weights, at unit length. (1, D)"""
    vectors = [term.weight * unit_vectors(each) for each, term in zip(encoded, terms, strict=True)]
    total = torch.stack(vectors).sum(dim=0)
    if float(total.norm()) < _SHORT:
        raise QueryError("what is asked for and what is excluded are the same; exclude less.")
    return Encoding(total / total.norm())


def unit_vectors(encoded: Encoding) -> Tensor:
    """Return one vector of unit length each: of regions or words, the mean. (N, D)"""
    vectors = encoded.vectors.float()
    if vectors.ndim == 3:
        mask = torch.ones_like(vectors[..., :1])
        if encoded.mask is not None:
            mask = encoded.mask[..., None].to(vectors)
        vectors = (vectors * mask).sum(dim=1)  # (N, D); its length is lost next
    return torch.nn.functional.normalize(vectors, dim=1)


def _sum(
    terms: Sequence[Term],
    ranker: Ranker,
    candidates: Candidates,
    *,
    top: int,
    allowed: Allowed | None,
    also: Ids,
) -> Scored:
    """Score all candidates that may be found, or those that a teacher proposes, term by term."""
    ids = np.arange(len(candidates.rows)) if allowed is None else allowed.numbers
    if isinstance(ranker, ProposedRanker):
        encoded = [term.query.teacher for term in terms]
        composed = _compose([each for each in encoded if each is not None], terms)
        count = max(top, ranker.proposals)
        proposed = ranker.teacher.rank_vectors(composed, top=count, allowed=allowed)
        ids = np.union1d(proposed.ids[0], also)
    if not len(ids):
        return Scored(ids, np.empty(0, np.float32))
    totals = sum(term.weight * standardised(_term_scores(term, candidates, ids)) for term in terms)
    return Scored(ids, np.asarray(totals, np.float32))


def standardised(scores: Floats) -> Floats:
    """Subtract the mean and divide by the standard deviation; equal scores become 0. (K,)"""
    spread = scores.std()
    return (scores - scores.mean()) / spread if spread > 0 else np.zeros_like(scores)


def _term_scores(term: Term, candidates: Candidates, ids: Ids) -> Floats:
    """Score some candidates against one term, in blocks. (K,)"""
    own = unit_vectors(term.query.own)[0] if term.kind == candidates.kind else None
    found = []
    for block in ranges(len(ids), max(1, _BLOCK_BYTES // candidates.rows.row_nbytes)):
        rows = torch.from_numpy(ids[block])
        if own is None:
            found.append(candidates.scores(term.query.own, rows)[0])
        else:
            found.append((unit_vectors(candidates.rows[rows]) @ own).cpu().numpy())
    return np.concatenate(found).astype(np.float64)
