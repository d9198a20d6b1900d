"""Lists that keep a share of older ones: the negatives of training change step by step.

Fresh lists hold what the model takes for matches at the moment, older ones what it has unlearned
and may learn again.
"""

from __future__ import annotations

import numpy as np

from aoq.compiling import compiled
from aoq.config import Direction
from aoq.mining.candidates import CandidateLists
from aoq.types import Floats, Int32s


def mixed(
    fresh: CandidateLists, old: CandidateLists, *, keep: float, depth_texts: int, depth_images: int
) -> CandidateLists:
    """Fill a share `keep` of each list with the head of the old one, the rest with the fresh head.

    A list holds no candidate twice. It has no scores, since those of two models do not compare;
    probabilities of matches stay if both have them. The depths are those of the mixed lists.
    """
    i2t, i2t_matches = _mixed_direction(fresh, old, "i2t", keep=keep, depth=depth_texts)
    t2i, t2i_matches = _mixed_direction(fresh, old, "t2i", keep=keep, depth=depth_images)
    return CandidateLists(
        i2t,
        np.full(i2t.shape, np.nan, np.float32),
        t2i,
        np.full(t2i.shape, np.nan, np.float32),
        fresh.provenance,
        i2t_matches=i2t_matches,
        t2i_matches=t2i_matches,
    )


def _mixed_direction(
    fresh: CandidateLists, old: CandidateLists, direction: Direction, *, keep: float, depth: int
) -> tuple[Int32s, Floats | None]:
    ids, old_ids = fresh.of(direction)[0], old.of(direction)[0]
    depth = min(depth, ids.shape[1])
    places = _places(ids, old_ids, depth - round(keep * depth), depth)

    def taken(new: np.ndarray, before: np.ndarray) -> np.ndarray:
        return np.take_along_axis(np.concatenate([new, before], axis=1), places, axis=1)

    matches, old_matches = fresh.matches_of(direction), old.matches_of(direction)
    if matches is None or old_matches is None:
        return taken(ids, old_ids), None
    return taken(ids, old_ids), taken(matches, old_matches)


@compiled
def _places(fresh: Int32s, old: Int32s, n_fresh: int, depth: int) -> Int32s:
    """Find where the entries of each mixed list are in the fresh and the old one, end to end."""
    places = np.empty((len(fresh), depth), np.int32)
    width = fresh.shape[1]
    for row in range(len(fresh)):
        held = set(fresh[row, :n_fresh])
        for rank in range(n_fresh):
            places[row, rank] = rank
        filled = n_fresh
        for rank in range(old.shape[1]):
            if filled < depth and old[row, rank] not in held:
                held.add(old[row, rank])
                places[row, filled] = width + rank
                filled += 1
        for rank in range(n_fresh, width):
            if filled < depth and fresh[row, rank] not in held:
                places[row, filled] = rank
                filled += 1
    return places
