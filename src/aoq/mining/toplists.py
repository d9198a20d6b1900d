"""The best candidates of every anchor, gathered while the score matrix streams by.

Almost all scores are far too low to enter a list. So every anchor has a floor, and only the few
scores above it, the hits, are looked at again. A floor that waits until a list is full rises
late; here it is set where the list will end once everything has been seen, judged by the share
that has been seen so far. Such a floor can be too high: then the list ends below it, which shows,
and the anchor is ranked again without one. Lists that end at or above their floor are exact.

A hit is one integer, its key: the score's bits above, the id below. Keys order by score, and
equal scores by id, so that lists depend neither on the order of the blocks nor on their size.
"""

from __future__ import annotations

import math
import sys
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from aoq.types import Floats, Ids, Int32s

Keys = npt.NDArray[np.uint64]

NO_KEY = np.uint64(0)
SPARE = 32  # places of a list beyond twice its depth
_LOWEST = np.finfo(np.float32).min  # struck out scores are -inf, below even this
_SIGN = np.int32(-(2**31))
_LOW, _HIGH = (0, 1) if sys.byteorder == "little" else (1, 0)  # the halves of a key
_DEVIATIONS = 2.5  # between the expected end of a list and its floor: few lists end up short
_GROWTH = 2.5  # floors are set anew when so many times as many candidates have been seen


class Hits(NamedTuple):
    """Scored candidates, one an entry: the place of its anchor, its score and its id."""

    idx: Ids | Int32s
    scores: Floats
    ids: Ids | Int32s


class ListArrays(NamedTuple):
    """The arrays of some lists, as compiled loops read and write them."""

    keys: Keys
    fills: Int32s
    floors: Floats
    ceilings: Floats
    n_dropped: Ids


def keys_of(scores: Floats, ids: Ids) -> Keys:
    """Make keys of candidates: higher for a higher score, and among equals for a lower id."""
    bits = (scores + np.float32(0)).view(np.int32)  # + 0: there is one zero only
    halves = np.empty((len(scores), 2), np.uint32)
    np.bitwise_xor(bits, (bits >> 31) | _SIGN, out=halves[:, _HIGH].view(np.int32))
    np.invert(ids, out=halves[:, _LOW].view(np.int32), casting="unsafe")
    return halves.view(np.uint64)[:, 0]


def scores_of(keys: Keys) -> Floats:
    """Return the scores that keys hold."""
    bits = _half(keys, _HIGH)
    return (bits ^ (~(bits >> 31) | _SIGN)).view(np.float32)


def ids_of(keys: Keys) -> Int32s:
    """Return the ids that keys hold."""
    return ~_half(keys, _LOW)


def _half(keys: Keys, which: int) -> Int32s:
    return np.ascontiguousarray(keys).view(np.int32)[..., which::2]


class TopLists:
    """Lists of `n_anchors` anchors, `depth` of `n_candidates` candidates each.

    Candidates that come in groups of `alike`, as the captions of one picture do, score alike; a
    sample of them then shows less about the others.
    """

    def __init__(
        self, n_anchors: int, *, depth: int, n_candidates: int, alike: float = 1.0
    ) -> None:
        self.depth = depth
        self.n_candidates = n_candidates
        self.alike = alike
        self.keys: Keys = np.zeros((n_anchors, self.capacity(depth)), np.uint64)
        self.fills = np.zeros(n_anchors, np.int32)
        self.floors: Floats = np.full(n_anchors, _LOWEST, np.float32)
        self.ceilings: Floats = np.full(n_anchors, np.inf, np.float32)
        "Scores above are dropped: too high to be a negative."
        self.n_dropped = np.zeros(n_anchors, np.int64)

    @staticmethod
    def capacity(depth: int) -> int:
        """Count the places of a list: twice its depth, so that it is seldom cut back."""
        return 2 * depth + SPARE

    def __len__(self) -> int:
        return len(self.keys)

    def rank_to_keep(self, seen: int, *, alike: float) -> int:
        """Return a rank among the candidates seen that the end of the list will hardly exceed."""
        expected = self.depth * seen / self.n_candidates
        margin = _DEVIATIONS * math.sqrt(expected * alike) + 2
        return min(math.ceil(expected + margin), self.depth)

    def guess_floors(self, anchors: slice, sample: Floats) -> None:
        """Set floors by the scores of a sample of the candidates, evenly spread. (anchors, sample)

        Candidates that are alike follow each other, so there are fewer of them in the sample.
        """
        ceilings = self.ceilings[anchors]
        if np.isfinite(ceilings).any():
            sample = np.where(sample > ceilings[:, None], -np.inf, sample)
        size = sample.shape[1]
        rank = self.rank_to_keep(size, alike=max(1.0, self.alike * size / self.n_candidates))
        if rank < size:
            floors = np.partition(sample, size - rank, axis=1)[:, size - rank]
            self.floors[anchors] = np.where(floors > _LOWEST, floors, _LOWEST)

    def arrays(self, anchors: slice) -> ListArrays:
        """Return views of the lists of some anchors."""
        return ListArrays(*(getattr(self, name)[anchors] for name in ListArrays._fields))

    def offer(self, anchors: slice, hits: Hits) -> None:
        """Take over the hits above the floors; `hits.idx` counts from the first of `anchors`."""
        from aoq.mining.kernels import put  # compiled, or read from a cache, when needed

        put(hits, self.arrays(anchors))

    def raise_floors(self, anchors: slice, *, seen: int, latest: int) -> None:
        """Set floors by the hits among `seen` candidates, if the `latest` are many of them."""
        if seen < self.n_candidates and self._is_due(seen, latest):
            rank = self.rank_to_keep(seen, alike=self.alike)
            rows = anchors.start + np.flatnonzero(self.fills[anchors] > rank)
            if len(rows):
                ends = scores_of(self._best_keys(rows, rank)[:, 0])
                self.floors[rows] = np.maximum(self.floors[rows], ends)

    @staticmethod
    def _is_due(seen: int, latest: int) -> bool:
        """Return whether a power of the growth lies between before and now."""
        before = max(seen - latest, 1)
        return math.floor(math.log(seen, _GROWTH)) > math.floor(math.log(before, _GROWTH))

    def _best_keys(self, rows: Ids, count: int) -> Keys:
        """Return the best `count` hits of some anchors that have more; the lowest of them first."""
        width = int(self.fills[rows].max())
        return np.partition(self.keys[rows, :width], width - count, axis=1)[:, width - count :]

    def settle(self, anchors: slice) -> Ids:
        """Sort lists, best first; return the anchors whose floor was too high.

        Their lists may miss candidates below the floor. Places that were never filled come last.
        """
        beyond = self.keys.shape[1] - self.depth
        best = np.partition(self.keys[anchors], beyond, axis=1)[:, beyond:]
        best.sort(axis=1)
        self.keys[anchors, : self.depth] = best[:, ::-1]
        last, floors = best[:, 0], self.floors[anchors]
        short = (floors > _LOWEST) & ((last == NO_KEY) | (scores_of(last) < floors))
        rows: Ids = anchors.start + np.flatnonzero(short)
        return rows

    def best(self, anchors: slice) -> Keys:
        """Return the settled lists, best first."""
        return self.keys[anchors, : self.depth]


def merged(lists: list[Keys]) -> Keys:
    """Merge several lists of the same anchors, as deep as each, best first."""
    keys = np.sort(np.concatenate(lists, axis=1), axis=1)[:, ::-1]
    return keys[:, : lists[0].shape[1]]
