"""The probability that a candidate is right: a match that the data set does not name.

Candidates are a mixture of matches and true negatives, f = share f_match + (1 - share) f_negative,
and by Bayes' rule a candidate x is a match with the odds share f_match(x) : (1 - share)
f_negative(x). x is how far a pair scores above the mean of the anchor's list, and how many words
the text shares with a caption of the image (with another one, if it is one of them). Named pairs
are matches, so they show f_match; candidates, each counted as far as it is a negative, show
f_negative. With a logistic regression of the ones against the others:

    log f_match(x) / f_negative(x) = w x + c
    p(x) = 1 / (1 + exp(-(w x + b)))        with b such that the mean of p is the share

Counts and p follow from each other, so both are computed in turns (expectation maximisation).
Scores alone cannot tell the share: a model that is wrong scores as high as one that is right. Words
can. A text that says the same as a caption of the image is right, whoever it was written for, and
of captions of one image a known part says the same as another one:

    share = P(L >= bar | candidate) / P(L >= bar | named pair)

This holds if people describe an image like one of another image no more and no less alike than one
and the same image. With one caption an image the divisor is unknown; then p is 1 for texts that say
the same, and 0 elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from aoq.config import Direction
from aoq.mining.candidates import DIRECTIONS, CandidateLists
from aoq.mining.overlap import WordOverlap
from aoq.scoring.blocks import evenly_spread, ranges
from aoq.types import Floats, Ids, Positives

Doubles = npt.NDArray[np.float64]
SAME = 0.8  # words in both over words in either, from which two captions say the same
_BARS = (SAME, 0.7, 0.6)  # the first that enough named pairs reach
_ENOUGH = 20
_SAMPLED = 2_000  # lists by which the estimate is fitted
_LISTS_AT_ONCE = 4096
_RIDGE = 1.0
_ROUNDS = 4
_NEWTON_STEPS = 10
_HIGHEST_SHARE = 0.95


@dataclass(frozen=True)
class MatchEstimate:
    """The fit of one direction."""

    share: float
    "Share of the candidates that are matches."
    score_weight: float
    "By how much the log odds rise with the score."
    likeness_weight: float
    "By how much they rise with the likeness, 0 to 1."
    intercept: float

    def probability(self, scores: Doubles, likeness: Doubles) -> Doubles:
        """Return p of candidates, by their score above the mean of the list and their likeness."""
        logits = self.intercept + self.score_weight * scores + self.likeness_weight * likeness
        return np.where(likeness >= SAME, 1.0, _sigmoid(logits))


def estimate_matches(
    lists: CandidateLists,
    positives: Positives,
    captions: Sequence[str],
    *,
    pair_ids: Ids,
    pair_scores: Floats,
) -> tuple[CandidateLists, dict[Direction, MatchEstimate]]:
    """Add to each candidate the probability that it is a match; also return the fits.

    `pair_scores` are those of the named pairs `pair_ids` (P, 2), all or a sample.
    """
    overlap = WordOverlap(positives, captions)
    pair_likeness = overlap.of(*np.ascontiguousarray(pair_ids.T)).astype(np.float64)
    matches: dict[Direction, Floats] = {}
    estimates: dict[Direction, MatchEstimate] = {}
    for direction in DIRECTIONS:
        ids, scores = lists.of(direction)
        anchors = evenly_spread(len(ids), _SAMPLED)
        means = scores.mean(axis=1, dtype=np.float64)
        estimates[direction] = fit(
            (scores[anchors] - means[anchors, None]).ravel(),
            _likeness_of_lists(overlap, direction, anchors, ids),
            pair_scores - means[pair_ids[:, DIRECTIONS.index(direction)]],
            pair_likeness,
        )
        found = np.empty(ids.shape, np.float32)
        for rows in ranges(len(ids), _LISTS_AT_ONCE):
            likeness = _likeness_of_lists(overlap, direction, np.arange(rows.start, rows.stop), ids)
            above = scores[rows] - means[rows, None]
            found[rows] = estimates[direction].probability(above, likeness.reshape(above.shape))
        matches[direction] = found
    return replace(lists, i2t_matches=matches["i2t"], t2i_matches=matches["t2i"]), estimates


def _likeness_of_lists(
    overlap: WordOverlap, direction: Direction, anchors: Ids, ids: npt.NDArray[np.int32]
) -> Doubles:
    """Compare some anchors with all candidates of their lists, one list after the other."""
    candidates = ids[anchors].astype(np.int64).ravel()
    repeated = np.repeat(anchors, ids.shape[1])
    pairs = (repeated, candidates) if direction == "i2t" else (candidates, repeated)
    return np.nan_to_num(overlap.of(*pairs)).astype(np.float64)


def fit(
    scores: Doubles, likeness: Doubles, pair_scores: Doubles, pair_likeness: Doubles
) -> MatchEstimate:
    """Fit p to candidates and named pairs; a likeness of NaN is that of an only caption."""
    compared = ~np.isnan(pair_likeness)
    share = _share(likeness, pair_likeness[compared])
    if share == 0 or not np.isfinite(scores).all() or not np.isfinite(pair_scores).all():
        return MatchEstimate(float((likeness >= SAME).mean()), 0.0, 0.0, -np.inf)
    x = np.stack([scores, likeness], axis=1)
    named = np.stack([pair_scores, pair_likeness], axis=1)[compared]
    certain, p = likeness >= SAME, np.full(len(x), share)
    for _ in range(_ROUNDS):
        weights = _log_ratio(named, x, 1 - p)
        intercept = _intercept(x @ weights, share=share, certain=certain)
        p = np.where(certain, 1.0, _sigmoid(x @ weights + intercept))
    return MatchEstimate(share, float(weights[0]), float(weights[1]), intercept)


def _share(likeness: Doubles, pair_likeness: Doubles) -> float:
    """Estimate the share of matches among candidates; 0 where there is nothing to compare with."""
    for bar in _BARS:
        if (pair_likeness >= bar).sum() >= _ENOUGH:
            share = (likeness >= bar).mean() / (pair_likeness >= bar).mean()
            return float(min(share, _HIGHEST_SHARE))
    return 0.0


def _log_ratio(named: Doubles, candidates: Doubles, counts: Doubles) -> Doubles:
    """Fit log f_match / f_negative = w x + c by logistic regression (Newton's method); return w.

    A candidate counts as much as it is a negative. More score or more words in common never speak
    against a match: a weight below 0 is left out.
    """
    x = np.concatenate([candidates, named])
    spread = np.maximum(x.std(axis=0), 1e-12)
    x = np.column_stack([(x - x.mean(axis=0)) / spread, np.ones(len(x))])
    is_named = np.repeat([0.0, 1.0], [len(candidates), len(named)])
    counts = np.concatenate([counts, np.ones(len(named))])
    used = [0, 1, 2]
    while True:
        weights = np.zeros(3)
        for _ in range(_NEWTON_STEPS):
            p = _sigmoid(x @ weights)
            slope = x[:, used].T @ (counts * (p - is_named)) + _RIDGE * weights[used]
            curve = (x[:, used].T * (counts * p * (1 - p))) @ x[:, used]
            weights[used] -= np.linalg.solve(curve + _RIDGE * np.eye(len(used)), slope)
        negative = [place for place in used[:-1] if weights[place] < 0]
        if not negative:
            return np.asarray(weights[:2] / spread)
        used = [place for place in used if place not in negative]


def _intercept(unscaled: Doubles, *, share: float, certain: npt.NDArray[np.bool_]) -> float:
    """Find the intercept with which the mean of p is the share, those that are certain included."""
    low, high = -unscaled.max() - 30.0, -unscaled.min() + 30.0
    for _ in range(60):
        middle = (low + high) / 2
        p = np.where(certain, 1.0, _sigmoid(unscaled + middle))
        low, high = (middle, high) if p.mean() < share else (low, middle)
    return float((low + high) / 2)


def _sigmoid(logits: Doubles) -> Doubles:
    return np.asarray(0.5 * (1 + np.tanh(0.5 * logits)))
