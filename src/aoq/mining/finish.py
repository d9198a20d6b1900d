"""From what sweeps found to candidate lists.

Anchors that a sweep left short are ranked again; the lists of all processes are gathered in the
first one; then the rules against false negatives that need a finished list are applied.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from aoq.config import Direction
from aoq.distributed import Number, Processes
from aoq.errors import UserError
from aoq.mining.candidates import CandidateLists, Provenance
from aoq.mining.filters import EQUAL_CAPTIONS, NEAR_CAPTIONS, SCORE_SHARE, SKIP_FIRST
from aoq.mining.matches import MatchEstimate
from aoq.mining.plan import DirectionPlan, Plan
from aoq.mining.product import ProductReport
from aoq.mining.sweep import Sweep
from aoq.mining.toplists import NO_KEY, Keys, TopLists, ids_of, merged, scores_of
from aoq.scoring.blocks import ranges
from aoq.threads import worker_threads
from aoq.types import Floats, Ids, Int32s

E = TypeVar("E")
_SETTLED_AT_ONCE = 1024  # anchors
_RANKED_AT_ONCE = 1024
_RANKED_WHOLE_AT_ONCE = 16  # anchors whose every candidate is kept: 9 MB each at COCO's size
_GATHERED_AT_ONCE = 2048  # lists


@dataclass(frozen=True, eq=False)
class MiningResult:
    """Candidate lists, their plan, and how many candidates the rules kept out of them."""

    lists: CandidateLists
    plan: Plan[Any]
    n_dropped: dict[str, tuple[int, int]]
    "By rule, from the lists of images and of texts."
    n_excused: tuple[int, int]
    "Images and texts to which the rules left too few candidates: these keep what they had."
    product: ProductReport
    estimates: dict[Direction, MatchEstimate] = field(default_factory=dict)
    "How the probabilities that candidates are matches were estimated, if they were."


def finish(
    sweep: Sweep[E], plan: Plan[E], provenance: Provenance, processes: Processes
) -> MiningResult | None:
    """Gather what the sweeps of all processes found, and apply the rules; in the first process."""
    block_size = sweep.block_size
    _complete(sweep.i2t, plan.i2t, first=sweep.images.start, block_size=block_size)
    _complete(sweep.t2i, plan.t2i, candidates=sweep.images, block_size=block_size)
    of_shares = _gather_shares(sweep.i2t, len(plan.i2t.matrix.anchors), processes)
    i2t = _apply_rules(plan.i2t, of_shares, block_size=block_size)
    t2i = _apply_rules(plan.t2i, _gather_merged(sweep.t2i, processes), block_size=block_size)
    counts = processes.gather(sweep.counts[None])
    if not processes.is_first:
        return None
    n_pairs, n_scored = np.concatenate(counts).sum(axis=0).tolist()
    n_dropped = {
        EQUAL_CAPTIONS: (plan.n_equal, plan.n_equal),
        SCORE_SHARE: (i2t.n_high, t2i.n_high),
        NEAR_CAPTIONS: (i2t.n_near, t2i.n_near),
        SKIP_FIRST: (plan.i2t.skip_first * len(i2t.ids), plan.t2i.skip_first * len(t2i.ids)),
    }
    return MiningResult(
        CandidateLists(i2t.ids, i2t.scores, t2i.ids, t2i.scores, provenance),
        plan=plan,
        n_dropped={label: n_dropped[rule] for rule, label in plan.labels.items()},
        n_excused=(i2t.n_excused, t2i.n_excused),
        product=ProductReport(sweep.choice.product, n_pairs=n_pairs, n_scored=n_scored),
    )


def _complete(
    lists: TopLists,
    plan: DirectionPlan[E],
    *,
    first: int = 0,
    candidates: slice | None = None,
    block_size: int,
) -> None:
    """Settle what a sweep found; rank anchors again whose floor was too high.

    `first` is the first anchor of the lists, `candidates` are those that they are about.
    """
    with worker_threads() as workers:
        short = list(workers.map(lists.settle, ranges(len(lists), _SETTLED_AT_ONCE)))
    for rows in _pieces(short, _RANKED_AT_ONCE):
        again = plan.matrix.rank(
            rows + first,
            depth=lists.depth,
            candidates=candidates,
            ceilings=lists.ceilings[rows],
            block_size=block_size,
        )
        lists.keys[rows], lists.n_dropped[rows] = again.keys, again.n_dropped


# Gathering


@dataclass(frozen=True, eq=False)
class _SweptLists:
    """The lists of consecutive anchors, best first, and how many candidates score too high."""

    anchors: slice
    keys: Keys
    n_high: Ids


def _gather_shares(lists: TopLists, n_anchors: int, processes: Processes) -> Iterator[_SweptLists]:
    """Yield the lists of all anchors, where each process has a share of them."""
    shares = [processes.share(n_anchors, rank) for rank in range(processes.size)]
    longest = max(share.stop - share.start for share in shares)
    for rows in ranges(longest, _GATHERED_AT_ONCE):
        count = rows.stop - rows.start
        keys = processes.gather(_padded(lists.best(rows), count))
        n_high = processes.gather(_padded(lists.n_dropped[rows], count))
        for share, share_keys, share_high in zip(shares, keys, n_high, strict=False):
            first = share.start + rows.start
            length = max(0, min(count, share.stop - first))
            anchors = slice(first, first + length)
            yield _SweptLists(anchors, share_keys[:length], share_high[:length])


def _padded(array: npt.NDArray[Number], length: int) -> npt.NDArray[Number]:
    """Pad with zeros at the end: processes send arrays of one shape."""
    padded = np.zeros((length, *array.shape[1:]), array.dtype)
    padded[: len(array)] = array
    return padded


def _gather_merged(lists: TopLists, processes: Processes) -> Iterator[_SweptLists]:
    """Yield the lists of all anchors, where each process has ranked a share of the candidates."""
    for rows in ranges(len(lists), _GATHERED_AT_ONCE):
        keys = processes.gather(lists.best(rows))
        n_high = processes.gather(lists.n_dropped[rows])
        if keys:
            best = keys[0] if len(keys) == 1 else merged(keys)
            yield _SweptLists(rows, best, np.sum(n_high, axis=0))


# Rules


@dataclass(frozen=True, eq=False)
class _RuledLists:
    """The lists of one direction, and how many candidates the rules dropped."""

    ids: Int32s
    scores: Floats
    n_high: int
    "Candidates dropped because they score too high."
    n_near: int
    "Candidates dropped because a caption is nearly the same."
    n_excused: int
    "Anchors to which these rules left too few, so that they keep what they had."


def _apply_rules(
    plan: DirectionPlan[E], swept: Iterable[_SweptLists], *, block_size: int
) -> _RuledLists:
    """Cut lists to what the rules leave; rank again where that is too little."""
    shape = len(plan.matrix.anchors), plan.depth
    ids, scores = np.empty(shape, np.int32), np.empty(shape, np.float32)
    n_high, n_near = np.zeros((2, len(ids)), np.int64)

    def store(rows: slice | Ids, keys: Keys) -> Ids:
        """Store lists; return the places among them of those that are too short."""
        ids[rows], scores[rows] = ids_of(keys), scores_of(keys)
        return np.flatnonzero(keys[:, -1] == NO_KEY)

    def cut(lists: _SweptLists) -> Ids:
        """Store what the rules leave of some lists; return the anchors that have too few."""
        anchors = np.arange(lists.anchors.start, lists.anchors.stop)
        left, n_near[lists.anchors] = _drop_near(plan, anchors, lists.keys)
        n_high[lists.anchors] = lists.n_high
        return anchors[store(lists.anchors, left)]

    with worker_threads() as workers:
        short = list(workers.map(cut, swept))
    n_excused = 0
    at_once = _RANKED_AT_ONCE if plan.near is None else _RANKED_WHOLE_AT_ONCE
    for anchors in _pieces(short, at_once):
        if plan.near is not None:  # the reserve was too small, or all candidates are near
            everything = _rank_all(plan, anchors, block_size=block_size)
            left, n_near[anchors] = _drop_near(plan, anchors, everything)
            anchors = anchors[store(anchors, left)]
        if len(anchors):
            whole = plan.matrix.rank(anchors, depth=plan.last, block_size=block_size)
            failed = store(anchors, whole.best(slice(0, len(anchors)))[:, plan.skip_first :])
            if len(failed):
                raise UserError(
                    f"anchor {anchors[failed[0]]} gets scores that are not finite; look for a "
                    "model that diverged, or for bad features with `aoq data check`."
                )
            n_high[anchors] = n_near[anchors] = 0
            n_excused += len(anchors)
    return _RuledLists(ids, scores, int(n_high.sum()), int(n_near.sum()), n_excused)


def _drop_near(plan: DirectionPlan[E], anchors: Ids, keys: Keys) -> tuple[Keys, Ids]:
    """Drop near captions and the first of each list; also count the near ones, by anchor."""
    wanted = slice(plan.skip_first, plan.last)
    if plan.near is None:
        return keys[:, wanted], np.zeros(len(keys), np.int64)
    candidates = ids_of(keys).clip(min=0)  # empty places hold no id
    near = plan.near(anchors[:, None], candidates) & (keys != NO_KEY)
    left = np.sort(np.where(near, NO_KEY, keys), axis=1)[:, ::-1][:, wanted]
    return left, (near & (keys > left[:, -1:])).sum(axis=1)


def _rank_all(plan: DirectionPlan[E], anchors: Ids, *, block_size: int) -> Keys:
    """Rank every candidate of a few anchors, best first."""
    lists = plan.matrix.rank(
        anchors,
        depth=len(plan.matrix.candidates),
        ceilings=None if plan.ceilings is None else plan.ceilings[anchors],
        block_size=block_size,
    )
    return lists.best(slice(0, len(anchors)))


def _pieces(parts: list[Ids], size: int) -> list[Ids]:
    """Join ids and split them into pieces of at most `size`."""
    ids = np.concatenate([np.zeros(0, np.int64), *parts])
    return [ids[piece] for piece in ranges(len(ids), size)]
