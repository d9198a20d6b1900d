"""Lists of models that are too slow to rank everything: another model proposes, they re-rank.

A teacher whose scores are cheap mines deep lists; the slow model scores those pairs only and keeps
its own hardest. A pair that either side proposes is scored once and counts for both. What is lost
is known: `agreement` says how much of the exact lists of some anchors was proposed at all.

Pairs are scored an image at a time, against its proposed texts. Most of a pair's cost is to take
its members out, and an image takes more than a text: with 36 regions of 1,024 numbers this way
scores about twice as many pairs a second as aligned batches, or as one text against its images.
Similar images scored together share too few texts to gain much by it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from aoq.config import MiningConfig
from aoq.errors import UserError
from aoq.mining.candidates import CandidateLists, Provenance
from aoq.mining.direction import BothWays, OneWay
from aoq.mining.sides import Offer, Side
from aoq.mining.sweep import Sweep
from aoq.mining.together import Mined, sweep_together
from aoq.mining.toplists import ids_of
from aoq.processes import ALONE, Processes
from aoq.progress import progress_bar
from aoq.scoring.blocks import block_size_for, block_size_within, evenly_spread, ranges
from aoq.scoring.encoded import EncodedDataset
from aoq.scoring.precision import rounded
from aoq.scoring.protocol import Scorer
from aoq.storage import hash_parts
from aoq.threads import Workers, worker_threads
from aoq.types import Bools, Floats, Ids, Int32s, Positives

E = TypeVar("E")
_IMAGES_AT_ONCE = 256  # between two chances to save
_SCORED_AT_ONCE = 512  # candidates, where they are no larger than the next line allows
_TAKEN_OUT = 64 * 2**20  # bytes
_LISTS_AT_ONCE = 4096  # that are looked through together
_FIRST = 10  # of a list, on which agreement is reported too
_RANKED_AT_ONCE = 16  # anchors whose exact lists are found in one go


@dataclass(frozen=True, eq=False)
class ProposedSide(Side[E]):
    """Anchors and candidates of which only some pairs are ever scored."""

    own: Int32s  # (anchors, h), what each anchor proposes
    other: Int32s  # (candidates, h), what each candidate proposes
    at_once: int
    "Candidates that are scored together."

    @classmethod
    def of(cls, side: Side[E], proposals: CandidateLists, *, at_most: int) -> ProposedSide[E]:
        """The same side, with what the lists propose."""
        own, other = proposals.i2t, proposals.t2i
        if side.anchors_are_texts:
            own, other = other, own
        fitting = max(64, min(_SCORED_AT_ONCE, _TAKEN_OUT // side.candidates.row_nbytes))
        return cls(**vars(side), own=own, other=other, at_once=min(fitting, at_most))

    @property
    def content_hash(self) -> str:
        """Of what is proposed."""
        lists = self.own, self.other
        shapes = str([part.shape for part in lists]).encode()
        return hash_parts(shapes, *(np.ascontiguousarray(part).data for part in lists))

    def pairs(self, anchors: Ids) -> tuple[Ids, Ids]:
        """Places in `anchors` and candidates of all that either side proposes, in rising order."""
        n_candidates = len(self.other)
        place = np.full(len(self.own), -1)
        place[anchors] = np.arange(len(anchors))
        keys = [(np.arange(len(anchors))[:, None] * n_candidates + self.own[anchors]).ravel()]
        for block in ranges(n_candidates, _LISTS_AT_ONCE):
            places = place[self.other[block]]
            candidates, columns = np.nonzero(places >= 0)
            found = places[candidates, columns]
            keys.append(found * n_candidates + candidates + block.start)
        places, candidates = np.divmod(np.unique(np.concatenate(keys)), n_candidates)
        free = ~self.positives.contains(anchors[places], candidates)
        return places[free], candidates[free]

    def proposes(self, anchors: Ids, lists: Int32s) -> Bools:
        """Whether either side proposes each candidate of the anchors' lists. (anchors, h)"""
        places, candidates = self.pairs(anchors)
        offsets = np.arange(len(anchors)) * len(self.other)
        return np.isin(lists + offsets[:, None], candidates + offsets[places])

    def score(self, anchor: int, candidates: Ids) -> Floats:
        """One anchor against some candidates."""
        taken_out = self.anchors[slice(anchor, anchor + 1)]
        parts = [
            self.matrix(taken_out, self.candidates[torch.from_numpy(candidates[piece])])[0]
            for piece in ranges(len(candidates), self.at_once)
        ]
        return np.concatenate(parts) if parts else np.zeros(0, np.float32)

    def _offers(
        self,
        anchor_ids: Ids,
        candidates: slice,
        floors: Floats,
        block_size: int,
        workers: Workers,
    ) -> Iterator[Offer]:
        """All that is proposed, an anchor at a time."""
        places, ids = self.pairs(anchor_ids)
        inside = (ids >= candidates.start) & (ids < candidates.stop)
        of_anchors = _by_place(places[inside], ids[inside], count=len(anchor_ids))
        scored = workers.map(self.score, anchor_ids.tolist(), of_anchors)
        for row, (ids, scores) in enumerate(zip(of_anchors, scored, strict=True)):
            yield slice(row, row + 1), np.zeros(len(ids), np.int64), scores, ids

    def negatives(self, anchor_ids: Ids) -> Iterator[tuple[Ids, Floats]]:
        """All that is proposed to each anchor, with their scores."""
        of_anchors = _by_place(*self.pairs(anchor_ids), count=len(anchor_ids))
        with (
            progress_bar("rank a sample", total=len(anchor_ids), unit="anchors") as update,
            worker_threads(self.device) as workers,
        ):
            scored = workers.map(self.score, anchor_ids.tolist(), of_anchors)
            for part in zip(of_anchors, scored, strict=True):
                yield part
                update()


def _by_place(places: Ids, candidates: Ids, *, count: int) -> list[Ids]:
    """The candidates of each of `count` anchors; `places` rise."""
    return np.split(candidates, np.searchsorted(places, np.arange(1, count)))


@dataclass(frozen=True, eq=False)
class ProposedSweep(Sweep[E]):
    """A pass over the proposed pairs only, a stripe of images at a time."""

    side: ProposedSide[E]

    @property
    def plan(self) -> list[Any]:
        """Also what is proposed, and how much of it is scored together."""
        return [*super().plan, self.side.at_once, self.side.content_hash]

    def run(self, *, first_stripe: int = 0, pause: Callable[[], bool]) -> Iterator[int]:
        """Yields how many stripes are done when `pause` says so; nothing is under way then."""
        n_images = self.images.stop - self.images.start
        with (
            progress_bar("re-rank", total=n_images, unit="images") as update,
            worker_threads(self.side.device) as workers,
        ):
            update(advance=min(first_stripe * self.block_size, n_images))
            for number, stripe in enumerate(self.stripes[first_stripe:], first_stripe + 1):
                images = np.arange(stripe.start, stripe.stop)
                places, texts = self.side.pairs(images)
                of_images = _by_place(places, texts, count=len(images))
                parts = []
                for scores in workers.map(self.side.score, images.tolist(), of_images):
                    parts.append(scores)
                    update()
                self._fill(stripe, places, texts, np.concatenate(parts))
                if pause():
                    yield number

    def _fill(self, stripe: slice, places: Ids, texts: Ids, scores: Floats) -> None:
        """Feed both kinds of list with the scores of a stripe."""
        self.i2t.offer(self._rows(stripe), places, scores, texts)
        by_text = np.argsort(texts, kind="stable")
        images = places[by_text] + stripe.start
        everyone = slice(0, len(self.t2i))
        self.t2i.offer(everyone, texts[by_text], scores[by_text], images)


def rerank(
    scorer: Scorer[E],
    encoded: EncodedDataset[E],
    positives: Positives,
    proposals: CandidateLists,
    *,
    config: MiningConfig,
    provenance: Provenance,
    captions: Sequence[str] | None = None,
    processes: Processes = ALONE,
    saved: Path | None = None,
    save_every: float = 10.0,
) -> Mined | None:
    """The hardest negatives of every image and text among those that `proposals` name.

    Otherwise as `mine_together`: each process has its share of the images, the first one gets the
    lists, and with a file `saved` a killed process goes on and ends up with the same, bit by bit.
    The proposals have to fit the data set (`CandidateLists.require_fit`).
    """
    ways = BothWays.from_config(config, scorer, encoded, positives, captions)
    share = processes.share(positives.n_images)
    at_most = block_size_within(
        config.memory,
        encoded,
        beside=ways.nbytes(share) + proposals.nbytes,
        blocks=torch.get_num_threads(),
    )
    of_images = ProposedSide.of(ways.i2t.side, proposals, at_most=at_most)
    of_texts = ProposedSide.of(ways.t2i.side, proposals, at_most=at_most)
    struck = _struck(of_images, ways.i2t), _struck(of_texts, ways.t2i)[:, ::-1]
    ways = replace(
        ways,
        i2t=replace(ways.i2t, side=of_images),
        t2i=replace(ways.t2i, side=of_texts),
        n_equal=len(np.unique(np.concatenate(struck), axis=0)),
    )
    return sweep_together(
        ProposedSweep(of_images, share, *ways.new_lists(share), block_size=_IMAGES_AT_ONCE),
        ways,
        config=config,
        provenance=replace(provenance, proposals=proposals.provenance.teacher),
        processes=processes,
        saved=saved,
        save_every=save_every,
    )


def _struck(side: ProposedSide[E], way: OneWay[E]) -> Ids:
    """Anchors and own proposals that are struck, if every anchor has enough others. (pairs, 2)"""
    pairs = []
    for rows in ranges(len(side.own), _LISTS_AT_ONCE):
        own, anchors = side.own[rows], np.arange(rows.start, rows.stop)
        places, columns = np.nonzero(side.positives.contains(anchors[:, None], own))
        pairs.append(np.stack([anchors[places], own[places, columns]], axis=1))
    struck = np.concatenate(pairs)
    counts = np.bincount(struck[:, 0], minlength=len(side.own))
    worst = int(counts.argmax())
    left = side.own.shape[1] - int(counts[worst])
    needed = way.skip_first + way.depth
    if left < needed:
        anchor, what = ("text", "images") if side.anchors_are_texts else ("image", "texts")
        raise UserError(
            f"the proposals leave {left} {what} to {anchor} {worst}; expected at least {needed}, "
            f"{way.depth} to keep and {way.skip_first} to skip: mine deeper proposals, "
            f"with --depth-{what} of {2 * needed} or more, or keep fewer."
        )
    return struck


@dataclass(frozen=True)
class Agreement:
    """How much of the exact lists of some anchors was proposed, and so found by re-ranking.

    Without rules, that is: what is among the best of all is among the best of those proposed.
    """

    anchors: str
    "images, or texts."
    n_anchors: int
    depth: int
    found: float
    "Share of the first `depth` of the exact lists."
    depth_first: int
    found_first: float
    "Share of the first `depth_first`."

    @property
    def sentence(self) -> str:
        candidates = "images" if self.anchors == "texts" else "texts"
        sentence = (
            f"re-ranking found {self.found:.1%} of the {self.depth} hardest {candidates} of "
            f"{self.n_anchors} sampled {self.anchors}"
        )
        if self.depth_first < self.depth:
            sentence += f", and {self.found_first:.1%} of the first {self.depth_first}"
        return sentence


def agreement(
    scorer: Scorer[E],
    encoded: EncodedDataset[E],
    positives: Positives,
    proposals: CandidateLists,
    *,
    config: MiningConfig,
    sample: int = 100,
    processes: Processes = ALONE,
) -> dict[str, Agreement]:
    """Of i2t and t2i: rank `sample` anchors, evenly spread, against everything, and compare.

    Processes share the work; the first one gets the answer.
    """
    scorer = rounded(scorer, config.precision)
    sides = {
        "i2t": Side.of_images(scorer, encoded, positives),
        "t2i": Side.of_texts(scorer, encoded, positives),
    }
    depths = {
        "i2t": min(config.depth_texts, proposals.depth_texts),
        "t2i": min(config.depth_images, proposals.depth_images),
    }
    block_size = block_size_for(config.memory, encoded, beside=proposals.nbytes)
    results = {}
    for direction, side in sides.items():
        anchors = evenly_spread(len(side.anchors), sample)
        share = anchors[processes.share(len(anchors))]
        depth = depths[direction]
        exact = _exact_lists(side, share, depth=depth, block_size=block_size)
        proposed = ProposedSide.of(side, proposals, at_most=block_size)
        found = processes.gather(proposed.proposes(share, exact).sum(axis=0, keepdims=True))
        if processes.is_first:
            at_ranks = np.concatenate(found).sum(axis=0) / len(anchors)
            results[direction] = Agreement(
                anchors="texts" if side.anchors_are_texts else "images",
                n_anchors=len(anchors),
                depth=depth,
                found=float(at_ranks.mean()),
                depth_first=len(at_ranks[:_FIRST]),
                found_first=float(at_ranks[:_FIRST].mean()),
            )
    return results


def _exact_lists(side: Side[E], anchors: Ids, *, depth: int, block_size: int) -> Int32s:
    """The hardest of all candidates of some anchors. (anchors, depth)"""
    exact = np.zeros((len(anchors), depth), np.int32)
    with progress_bar("rank a sample", total=len(anchors), unit="anchors") as update:
        for piece in ranges(len(anchors), _RANKED_AT_ONCE):
            lists = side.rank(anchors[piece], depth=depth, block_size=block_size)
            exact[piece] = ids_of(lists.best(slice(0, len(lists))))
            update(advance=len(lists))
    return exact
