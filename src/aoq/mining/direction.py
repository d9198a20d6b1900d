"""Lists one way and both: how they are to be, and what the rules leave of what a sweep found."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from aoq.config import MiningConfig
from aoq.errors import UserError
from aoq.mining.filters import Rules
from aoq.mining.sides import Side
from aoq.mining.toplists import NO_KEY, Keys, TopLists, ids_of, scores_of
from aoq.progress import warn
from aoq.scoring.blocks import ranges
from aoq.scoring.encoded import EncodedDataset
from aoq.scoring.precision import rounded
from aoq.scoring.protocol import Scorer
from aoq.threads import worker_threads
from aoq.types import Bools, Floats, Ids, Int32s, Positives

E = TypeVar("E")
_RESERVE = 32  # candidates beyond the depth, where a rule may drop some afterwards
_SETTLED_AT_ONCE = 1024  # anchors
_RANKED_AT_ONCE = 1024
_RANKED_WHOLE_AT_ONCE = 16  # anchors whose every candidate is kept: 9 MB each at COCO's size


@dataclass(frozen=True, eq=False)
class Part:
    """The lists of consecutive anchors, best first, and how many candidates score too high."""

    anchors: slice
    keys: Keys
    n_high: Ids


@dataclass(frozen=True, eq=False)
class Finished:
    """The lists of one direction."""

    ids: Int32s
    scores: Floats
    n_high: int
    "Candidates that were dropped because they score too high,"
    n_near: int
    "and because a caption is nearly the same."
    n_excused: int
    "Anchors to which these rules left too few, so that they keep what they had."


@dataclass(frozen=True, eq=False)
class OneWay(Generic[E]):
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
        return _nbytes(n_anchors, len(self.side.anchors), self._depth_to_mine, self.depth)

    def new_lists(self, anchors: slice, *, n_candidates: int) -> TopLists:
        n_anchors = anchors.stop - anchors.start
        positives = self.side.positives
        lists = TopLists(
            n_anchors,
            depth=self._depth_to_mine,
            n_candidates=n_candidates,
            alike=max(1.0, positives.n_texts / positives.n_images),
        )
        if self.ceilings is not None:
            lists.ceilings = self.ceilings[anchors]
        return lists

    def complete(
        self, lists: TopLists, *, first: int = 0, candidates: slice | None = None, block_size: int
    ) -> None:
        """Settle what a sweep found; rank anchors again whose floor was too high.

        `first` is the first anchor of the lists, `candidates` are those that they are about.
        """
        with worker_threads() as workers:
            short = list(workers.map(lists.settle, ranges(len(lists), _SETTLED_AT_ONCE)))
        for rows in _pieces(_joined(short), _RANKED_AT_ONCE):
            again = self.side.rank(
                rows + first,
                depth=lists.depth,
                candidates=candidates,
                ceilings=lists.ceilings[rows],
                block_size=block_size,
            )
            lists.keys[rows], lists.n_dropped[rows] = again.keys, again.n_dropped

    def finish(self, parts: Iterable[Part], *, block_size: int) -> Finished:
        """Cut the lists, which come in parts, to what the rules leave."""
        shape = len(self.side.anchors), self.depth
        ids, scores = np.empty(shape, np.int32), np.empty(shape, np.float32)
        n_high, n_near = np.zeros((2, len(ids)), np.int64)

        def keep(rows: slice | Ids, keys: Keys) -> Ids:
            """Store lists; the places among them of those that have too few candidates."""
            ids[rows], scores[rows] = ids_of(keys), scores_of(keys)
            return np.flatnonzero(keys[:, -1] == NO_KEY)

        def cut(part: Part) -> Ids:
            """Apply the rules to some lists; the anchors to which they leave too few."""
            anchors = np.arange(part.anchors.start, part.anchors.stop)
            kept, n_near[part.anchors] = self._apply_rules(anchors, part.keys)
            n_high[part.anchors] = part.n_high
            return anchors[keep(part.anchors, kept)]

        with worker_threads() as workers:
            wanting = list(workers.map(cut, parts))
        n_excused = 0
        at_once = _RANKED_AT_ONCE if self.near is None else _RANKED_WHOLE_AT_ONCE
        for anchors in _pieces(_joined(wanting), at_once):
            if self.near is not None:  # the reserve was too small, or all candidates are near
                everything = self._rank_all(anchors, block_size)
                kept, n_near[anchors] = self._apply_rules(anchors, everything)
                anchors = anchors[keep(anchors, kept)]
            if len(anchors):
                last = self.skip_first + self.depth
                whole = self.side.rank(anchors, depth=last, block_size=block_size)
                failed = keep(anchors, whole.best(slice(0, len(anchors)))[:, self.skip_first :])
                if len(failed):
                    raise UserError(
                        f"anchor {anchors[failed[0]]} gets scores that are no numbers; look for a "
                        "model that diverged, or for bad features with `aoq data check`."
                    )
                n_high[anchors] = n_near[anchors] = 0
                n_excused += len(anchors)
        return Finished(ids, scores, int(n_high.sum()), int(n_near.sum()), n_excused)

    def _apply_rules(self, anchors: Ids, keys: Keys) -> tuple[Keys, Ids]:
        """Lists without near captions and without their first; how many were near, by anchor."""
        last = self.skip_first + self.depth
        if self.near is None:
            return keys[:, self.skip_first : last], np.zeros(len(keys), np.int64)
        candidates = ids_of(keys).clip(min=0)  # places that were never filled are no ids
        near = self.near(anchors[:, None], candidates) & (keys != NO_KEY)
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


@dataclass(frozen=True, eq=False)
class BothWays(Generic[E]):
    """The lists of images and those of texts, by the same rules."""

    i2t: OneWay[E]
    t2i: OneWay[E]
    labels: Mapping[str, str]
    "The rules that there are, by kind, as people read them."
    n_equal: int
    "Pairs that are struck out because of an equal caption."

    @classmethod
    def from_config(
        cls,
        config: MiningConfig,
        scorer: Scorer[E],
        encoded: EncodedDataset[E],
        positives: Positives,
        captions: Sequence[str] | None,
    ) -> BothWays[E]:
        """As deep as wanted or as the set allows; scores are rounded where that is wanted."""
        encoded.require_fit(positives)
        scorer = rounded(scorer, config.precision)
        rules = Rules.from_config(config, scorer, encoded, positives, captions)
        struck, skip_first = rules.struck, rules.skip_first
        depth_texts, depth_images = (
            usable_depth(wanted, relation, what=what, skip_first=skip_first)
            for wanted, relation, what in (
                (config.depth_texts, struck, "texts"),
                (config.depth_images, struck.swapped, "images"),
            )
        )
        return cls(
            i2t=OneWay(
                Side.of_images(scorer, encoded, struck),
                depth=depth_texts,
                skip_first=skip_first,
                ceilings=rules.ceilings_i2t,
                near=rules.near_texts,
            ),
            t2i=OneWay(
                Side.of_texts(scorer, encoded, struck),
                depth=depth_images,
                skip_first=skip_first,
                ceilings=rules.ceilings_t2i,
                near=rules.near_images,
            ),
            labels=rules.labels,
            n_equal=len(struck.pairs) - len(positives.pairs),
        )

    def nbytes(self, images: slice) -> int:
        """Memory of the lists of these images, and of all texts about them."""
        n_texts = len(self.t2i.side.anchors)
        return self.i2t.nbytes(images.stop - images.start) + self.t2i.nbytes(n_texts)

    def new_lists(self, images: slice) -> tuple[TopLists, TopLists]:
        n_images, n_texts = images.stop - images.start, len(self.t2i.side.anchors)
        return (
            self.i2t.new_lists(images, n_candidates=n_texts),
            self.t2i.new_lists(slice(0, n_texts), n_candidates=n_images),
        )


def _nbytes(n_anchors: int, n_all: int, depth_to_mine: int, depth: int) -> int:
    return n_anchors * 8 * TopLists.capacity(depth_to_mine) + n_all * 8 * depth


def lists_nbytes(config: MiningConfig, positives: Positives, *, n_images: int) -> int:
    """Memory of the lists that a process with so many images fills, before it ranks anything."""
    more = config.skip_first + (0 if config.near_captions is None else _RESERVE)
    total = 0
    for relation, wanted, n_anchors in (
        (positives, config.depth_texts, n_images),
        (positives.swapped, config.depth_images, positives.n_texts),
    ):
        depth = max(0, min(wanted, _available(relation, skip_first=config.skip_first)))
        total += _nbytes(n_anchors, relation.n_images, depth + more, depth)
    return total


def _available(positives: Positives, *, skip_first: int) -> int:
    return positives.n_texts - int(positives.texts_per_image().max(initial=0)) - skip_first


def usable_depth(wanted: int, positives: Positives, *, what: str, skip_first: int = 0) -> int:
    """The depth that every anchor can fill with negatives; says so where that is less."""
    available = _available(positives, skip_first=skip_first)
    if available < 1:
        raise UserError(
            f"no {what} are left to mine for some anchor: all {positives.n_texts:,} belong to it "
            "or are skipped; lower skip_first, leave equal_captions out, or use more data."
        )
    if available < wanted:
        warn(f"the lists are {available} {what} deep instead of {wanted}: the set has no more.")
    return min(wanted, available)


def _joined(parts: list[Ids]) -> Ids:
    return np.concatenate([np.zeros(0, np.int64), *parts])


def _pieces(ids: Ids, size: int) -> list[Ids]:
    return [ids[piece] for piece in ranges(len(ids), size)]
