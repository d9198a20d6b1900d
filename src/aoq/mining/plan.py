"""How the lists are to be: their depth, the rules that apply, and the memory they take.

The plan is made before anything is scored, so that what cannot be mined is refused at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from aoq.config import Direction, MiningConfig
from aoq.errors import UserError
from aoq.mining.filters import NearTest, Rules
from aoq.mining.score_matrix import ScoreMatrix
from aoq.mining.toplists import TopLists
from aoq.progress import warn
from aoq.scoring.encoded import EncodedDataset
from aoq.scoring.precision import rounded
from aoq.scoring.protocol import Scorer
from aoq.types import Floats, Positives

E = TypeVar("E")
_RESERVE = 32  # candidates beyond the depth, where a rule may drop some afterwards


@dataclass(frozen=True, eq=False)
class DirectionPlan(Generic[E]):
    """The lists of one direction: how deep they are, and what may not be in them."""

    matrix: ScoreMatrix[E]
    depth: int
    skip_first: int = 0
    ceilings: Floats | None = None
    "Scores above are dropped. (anchors,)"
    near: NearTest | None = None
    "Whether anchors (in a column) and candidates say nearly the same."

    @property
    def last(self) -> int:
        """Rank at which a list ends, before its first are skipped."""
        return self.skip_first + self.depth

    @property
    def _swept_depth(self) -> int:
        """Depth of the lists that a sweep fills: some may be dropped afterwards."""
        return self.last + (_RESERVE if self.near else 0)

    def nbytes(self, n_anchors: int) -> int:
        """Return the memory of lists while `n_anchors` are filled, and of all when finished."""
        return _nbytes(n_anchors, len(self.matrix.anchors), self._swept_depth, self.depth)

    def new_lists(self, anchors: slice, *, n_candidates: int) -> TopLists:
        """Make empty lists of some anchors, for a sweep over `n_candidates`."""
        positives = self.matrix.positives
        lists = TopLists(
            anchors.stop - anchors.start,
            depth=self._swept_depth,
            n_candidates=n_candidates,
            alike=max(1.0, positives.n_texts / positives.n_images),
        )
        if self.ceilings is not None:
            lists.ceilings = self.ceilings[anchors]
        return lists


@dataclass(frozen=True, eq=False)
class Plan(Generic[E]):
    """The lists of both directions, by the same rules."""

    i2t: DirectionPlan[E]
    t2i: DirectionPlan[E]
    labels: Mapping[str, str]
    "Rules in force, by kind, as shown to users."
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
    ) -> Plan[E]:
        """Plan lists as deep as configured or as the set allows; round scores if configured."""
        encoded.require_fit(positives)
        scorer = rounded(scorer, config.precision)
        rules = Rules.from_config(config, scorer, encoded, positives, captions)

        def plan(direction: Direction, depth: int) -> DirectionPlan[E]:
            matrix = ScoreMatrix.of(
                direction, scorer=scorer, encoded=encoded, positives=rules.struck
            )
            what, skip = f"{matrix.nouns[1]}s", rules.skip_first
            return DirectionPlan(
                matrix,
                depth=usable_depth(depth, matrix.positives, what=what, skip_first=skip),
                skip_first=skip,
                ceilings=rules.ceilings.get(direction),
                near=rules.near.get(direction),
            )

        return cls(
            i2t=plan("i2t", config.depth_texts),
            t2i=plan("t2i", config.depth_images),
            labels=rules.labels,
            n_equal=len(rules.struck.pairs) - len(positives.pairs),
        )

    def nbytes(self, images: slice) -> int:
        """Return the memory of the lists of these images, and of all texts about them."""
        n_texts = len(self.t2i.matrix.anchors)
        return self.i2t.nbytes(images.stop - images.start) + self.t2i.nbytes(n_texts)

    def new_lists(self, images: slice) -> tuple[TopLists, TopLists]:
        """Make empty lists of these images, and of all texts about them."""
        n_images, n_texts = images.stop - images.start, len(self.t2i.matrix.anchors)
        return (
            self.i2t.new_lists(images, n_candidates=n_texts),
            self.t2i.new_lists(slice(0, n_texts), n_candidates=n_images),
        )


def _nbytes(n_anchors: int, n_all: int, swept_depth: int, depth: int) -> int:
    return n_anchors * 8 * TopLists.capacity(swept_depth) + n_all * 8 * depth


def lists_nbytes(config: MiningConfig, positives: Positives, *, n_images: int) -> int:
    """Return the initial memory of a process's lists, by its number of images."""
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
    """Return the depth that every anchor can fill with negatives; warn where that is less."""
    available = _available(positives, skip_first=skip_first)
    if available < 1:
        raise UserError(
            f"no {what} are left to mine for some anchor: all {positives.n_texts:,} belong to it "
            "or are skipped; lower skip_first, leave equal_captions out, or use more data."
        )
    if available < wanted:
        warn(f"the lists are {available} {what} deep instead of {wanted}: the set has no more.")
    return min(wanted, available)
