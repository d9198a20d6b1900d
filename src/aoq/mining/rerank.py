"""Lists of models that are too slow to rank everything: another model proposes, they re-rank.

A teacher whose scores are cheap mines deep lists; the slow model scores those pairs only and keeps
its own hardest. A pair that either side proposes is scored once and counts for both. What is lost
is measured by `aoq.mining.agreement`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch

from aoq.errors import UserError
from aoq.mining.candidates import CandidateLists
from aoq.mining.plan import DirectionPlan, Plan
from aoq.mining.proposals import ProposedMatrix, by_place
from aoq.mining.sweep import Sweep
from aoq.mining.toplists import Hits
from aoq.progress import progress_bar
from aoq.scoring.blocks import block_size_within, ranges
from aoq.scoring.encoded import EncodedDataset
from aoq.threads import worker_threads
from aoq.types import Floats, Ids

E = TypeVar("E")
_IMAGES_AT_ONCE = 256  # between two chances to save
_LISTS_AT_ONCE = 4096


@dataclass(frozen=True, eq=False)
class ProposedSweep(Sweep[E]):
    """A pass over the proposed pairs only, a stripe of images at a time."""

    matrix: ProposedMatrix[E]

    @property
    def key(self) -> list[Any]:
        """Includes what is proposed, and how much of it is scored at a time."""
        return [*super().key, self.matrix.at_once, self.matrix.content_hash]

    def run(self, *, first_stripe: int = 0, pause: Callable[[], bool]) -> Iterator[int]:
        """Score an image at a time, several in threads; see `Sweep.run`."""
        n_images = self.images.stop - self.images.start
        with (
            progress_bar("re-rank", total=n_images, unit="images") as update,
            worker_threads(self.matrix.device) as workers,
        ):
            update(advance=min(first_stripe * self.block_size, n_images))
            for number, stripe in enumerate(self.stripes[first_stripe:], first_stripe + 1):
                images = np.arange(stripe.start, stripe.stop)
                places, texts = self.matrix.pairs(images)
                of_images = by_place(places, texts, count=len(images))
                scored = []
                for scores in workers.map(self.matrix.score, images.tolist(), of_images):
                    scored.append(scores)
                    update()
                self._fill(stripe, places, texts, np.concatenate(scored))
                if pause():
                    yield number

    def _fill(self, stripe: slice, places: Ids, texts: Ids, scores: Floats) -> None:
        """Feed both kinds of list with the scores of a stripe."""
        self.i2t.offer(self._rows(stripe), Hits(places, scores, texts))
        by_text = np.argsort(texts, kind="stable")
        images = places[by_text] + stripe.start
        all_texts = slice(0, len(self.t2i))
        self.t2i.offer(all_texts, Hits(texts[by_text], scores[by_text], images))


def propose(
    plan: Plan[E],
    encoded: EncodedDataset[E],
    images: slice,
    *,
    proposals: CandidateLists,
    memory: str | None,
) -> tuple[Plan[E], ProposedSweep[E]]:
    """Restrict a plan to what `proposals` name, and make the sweep of some images.

    The proposals have to fit the data set (`CandidateLists.require_fit`).
    """
    at_most = block_size_within(
        memory,
        encoded,
        beside=plan.nbytes(images) + proposals.nbytes,
        blocks=torch.get_num_threads(),
    )
    i2t = ProposedMatrix.restrict(plan.i2t.matrix, proposals, at_most=at_most)
    t2i = ProposedMatrix.restrict(plan.t2i.matrix, proposals, at_most=at_most)
    struck = _struck(i2t, plan.i2t), _struck(t2i, plan.t2i)[:, ::-1]
    plan = replace(
        plan,
        i2t=replace(plan.i2t, matrix=i2t),
        t2i=replace(plan.t2i, matrix=t2i),
        n_equal=len(np.unique(np.concatenate(struck), axis=0)),
    )
    return plan, ProposedSweep(i2t, images, *plan.new_lists(images), block_size=_IMAGES_AT_ONCE)


def _struck(matrix: ProposedMatrix[E], plan: DirectionPlan[E]) -> Ids:
    """Find the own proposals that are struck, if every anchor has enough others. (pairs, 2)"""
    pairs = []
    for rows in ranges(len(matrix.own), _LISTS_AT_ONCE):
        own, anchors = matrix.own[rows], np.arange(rows.start, rows.stop)
        places, columns = np.nonzero(matrix.positives.contains(anchors[:, None], own))
        pairs.append(np.stack([anchors[places], own[places, columns]], axis=1))
    struck = np.concatenate(pairs)
    counts = np.bincount(struck[:, 0], minlength=len(matrix.own))
    worst = int(counts.argmax())
    left = matrix.own.shape[1] - int(counts[worst])
    if left < plan.last:
        anchor, candidate = matrix.nouns
        raise UserError(
            f"the proposals leave {left} {candidate}s to {anchor} {worst}; expected at least "
            f"{plan.last}, {plan.depth} to keep and {plan.skip_first} to skip: mine deeper "
            f"proposals, with --depth-{candidate}s of {2 * plan.last} or more, or keep fewer."
        )
    return struck
