"""One kind of list, from what a sweep found to what the rules leave."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from aoq.errors import UserError
from aoq.mining.sides import Side
from aoq.mining.toplists import NO_KEY, Floats, Int32s, Keys, TopLists, ids_of, scores_of
from aoq.scoring.blocks import ranges
from aoq.types import Bools, Ids

E = TypeVar("E")
_RESERVE = 32  # candidates beyond the depth, where a rule may drop some afterwards
_RANKED_AT_ONCE = 1024  # anchors
_RANKED_WHOLE_AT_ONCE = 16  # anchors whose every candidate is kept: 9 MB each at COCO's size


@dataclass(frozen=True)
class Finished:
    """The lists of one direction."""

    ids: Int32s
    scores: Floats
    n_near: int
    "Candidates that were dropped from them because a caption nearly equals."
    n_excused: int
    "Anchors to which the rules left too few, so that they keep what they had."


@dataclass(frozen=True, eq=False)
class Direction(Generic[E]):
    """The lists of one side: how deep they are, and what may not be in them."""

    side: Side[E]
    depth: int
    skip_first: int = 0
    ceilings: Floats | None = None
    near: Callable[[Ids, Int32s], Bools] | None = None
    "Whether anchors (in a column) and candidates say nearly the same."

    @property
    def _depth_to_mine(self) -> int:
        """The lists' depth, and what may be left out of them afterwards."""
        return self.skip_first + self.depth + (_RESERVE if self.near else 0)

    def nbytes(self, n_anchors: int) -> int:
        """Memory of the lists of so many anchors while they are filled, and of all, finished."""
        while_filled = n_anchors * 8 * TopLists.capacity(self._depth_to_mine)
        return while_filled + len(self.side.anchors) * 8 * self.depth

    def new_lists(self, anchors: slice, *, n_candidates: int) -> TopLists:
        n_anchors = anchors.stop - anchors.start
        lists = TopLists(n_anchors, depth=self._depth_to_mine, n_candidates=n_candidates)
        lists.ceilings = None if self.ceilings is None else self.ceilings[anchors]
        return lists

    def complete(
        self, lists: TopLists, *, first: int = 0, candidates: slice | None = None, block_size: int
    ) -> None:
        """Rank the anchors again whose lists a sweep left short; `first` is the first anchor."""
        for rows in _pieces(lists.short(), _RANKED_AT_ONCE):
            again = self.side.rank(
                rows + first,
                depth=lists.depth,
                candidates=candidates,
                ceilings=None if lists.ceilings is None else lists.ceilings[rows],
                block_size=block_size,
            )
            lists.keys[rows], lists.n_dropped[rows] = again.keys, again.n_dropped

    def finish(self, parts: Iterable[tuple[slice, Keys]], *, block_size: int) -> Finished:
        """Cut the lists to what the rules leave; `parts` are the lists of consecutive anchors."""
        shape = len(self.side.anchors), self.depth
        ids, scores = np.empty(shape, np.int32), np.empty(shape, np.float32)
        n_near = 0

        def keep(anchors: Ids, keys: Keys) -> Ids:
            """Store lists; the anchors among them that have too few candidates."""
            ids[anchors], scores[anchors] = ids_of(keys), scores_of(keys)
            return anchors[np.flatnonzero(keys[:, -1] == NO_KEY)]

        wanting = [np.zeros(0, np.int64)]
        for rows, keys in parts:
            anchors = np.arange(rows.start, rows.stop)
            kept, n_dropped = self._apply_rules(anchors, keys)
            wanting.append(keep(anchors, kept))
            n_near += int(n_dropped[kept[:, -1] != NO_KEY].sum())
        n_excused = 0
        for anchors in _pieces(np.concatenate(wanting), _RANKED_WHOLE_AT_ONCE):
            if self.near is not None:  # the reserve was too small, or all candidates are near
                kept, n_dropped = self._apply_rules(anchors, self._rank_all(anchors, block_size))
                n_near += int(n_dropped[kept[:, -1] != NO_KEY].sum())
                anchors = keep(anchors, kept)
            if len(anchors):
                last = self.skip_first + self.depth
                whole = self.side.rank(anchors, depth=last, block_size=block_size)
                failed = keep(anchors, whole.best(slice(0, len(anchors)))[:, self.skip_first :])
                if len(failed):
                    raise UserError(
                        f"anchor {failed[0]} gets scores that are no numbers; look for a model "
                        "that diverged, or for bad features with `aoq data check`."
                    )
                n_excused += len(anchors)
        return Finished(ids, scores, n_near=n_near, n_excused=n_excused)

    def _apply_rules(self, anchors: Ids, keys: Keys) -> tuple[Keys, Ids]:
        """Lists without near captions and without their first; how many were near, by anchor."""
        last = self.skip_first + self.depth
        if self.near is None:
            return keys[:, self.skip_first : last], np.zeros(len(keys), np.int64)
        near = self.near(anchors[:, None], ids_of(keys)) & (keys != NO_KEY)
        kept = np.sort(np.where(near, NO_KEY, keys), axis=1)[:, ::-1][:, self.skip_first : last]
        return kept, (near & (keys > kept[:, -1:])).sum(axis=1)

    def _rank_all(self, anchors: Ids, block_size: int) -> Keys:
        """Every candidate of a few anchors, best first."""
        lists = self.side.rank(
            anchors,
            depth=len(self.side.candidates),
            ceilings=None if self.ceilings is None else self.ceilings[anchors],
            block_size=block_size,
        )
        return lists.best(slice(0, len(anchors)))


def _pieces(ids: Ids, size: int) -> list[Ids]:
    return [ids[piece] for piece in ranges(len(ids), size)]
