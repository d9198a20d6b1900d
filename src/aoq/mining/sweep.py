"""One pass over the score matrix that fills both kinds of list, a stripe of images at a time.

The whole matrix is scored in blocks: a block's rows feed the images' lists, its columns the
texts'. Blocks are dealt out to threads (`workers`). What a block leaves behind follows from the
order of the blocks, never from which thread was faster. A block is multiplied in float32, or
rounded, and then only the pairs that may enter a list are scored (`aoq.mining.product`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Generic, TypeVar

import numpy as np
import torch

from aoq.mining.product import FLOAT32, ProductChoice, RoundedStripe, struck_within
from aoq.mining.score_matrix import ScoreMatrix
from aoq.mining.toplists import Hits, TopLists
from aoq.progress import progress_bar
from aoq.scoring.approximation import RoundedBlocks
from aoq.scoring.blocks import evenly_spread, ranges
from aoq.scoring.encoded import Rows
from aoq.threads import worker_threads
from aoq.types import Floats, Ids, Int32s, Positives

E = TypeVar("E")
_ROWS_AT_ONCE = 512  # rows of a block between two chances to raise the floors of its columns
_SAMPLE = 256  # candidates that show where a list will end
_IN_VAIN = 2  # blocks that admit too many pairs, after which a stripe goes on in float32


@dataclass(frozen=True, eq=False)
class Sweep(ABC, Generic[E]):
    """What a pass reads and fills."""

    matrix: ScoreMatrix[E]  # i2t
    images: slice
    "All images, or a process's share."
    i2t: TopLists
    t2i: TopLists
    block_size: int
    choice: ProductChoice = field(default=FLOAT32, kw_only=True)
    counts: Ids = field(default_factory=lambda: np.zeros(2, np.int64), kw_only=True)
    "Pairs that a rounded product has looked at, and those among them that float32 scored."

    @property
    def stripes(self) -> list[slice]:
        return ranges(self.images.stop, self.block_size, start=self.images.start)

    @property
    def key(self) -> list[Any]:
        """What half-finished lists depend on, beside settings and share."""
        return [self.block_size]

    @abstractmethod
    def run(self, *, first_stripe: int = 0, pause: Callable[[], bool]) -> Iterator[int]:
        """Fill the lists; yield how many stripes are done whenever `pause` is true.

        Nothing is under way then.
        """

    def _rows(self, stripe: slice) -> slice:
        """Return where the images of a stripe are among `images`."""
        return slice(stripe.start - self.images.start, stripe.stop - self.images.start)


@dataclass(frozen=True, eq=False)
class FullSweep(Sweep[E]):
    """A pass over every image with every text."""

    @cached_property
    def _rounded_texts(self) -> RoundedBlocks:
        return RoundedBlocks()

    def run(self, *, first_stripe: int = 0, pause: Callable[[], bool]) -> Iterator[int]:
        """Score blocks in threads; see `Sweep.run`."""
        matrix = self.matrix
        stripes, texts = self.stripes, ranges(len(matrix.candidates), self.block_size)
        sample = _Sample.of_texts(matrix.candidates, matrix.positives)
        under_way: deque[_Task[E]] = deque()
        latest: dict[int, Future[_Found]] = {}
        with (
            progress_bar("mine", total=len(stripes) * len(texts), unit="blocks") as update,
            worker_threads(matrix.device) as workers,
        ):

            def collect(*, leave: int) -> None:
                while len(under_way) > leave:
                    task = under_way.popleft()
                    self._collect(task)
                    if latest[task.texts.start] is task.found:
                        del latest[task.texts.start]  # no later block waits for it
                    update()

            update(advance=first_stripe * len(texts))
            for number, ids in enumerate(stripes[first_stripe:], first_stripe + 1):
                stripe = self._stripe(ids)
                self.i2t.guess_floors(stripe.rows, sample.scores(matrix, stripe.images, ids))
                for block in texts:
                    before = latest.get(block.start)
                    # Decided here: what a block does must not depend on which thread is faster.
                    rounded = None if stripe.in_vain >= _IN_VAIN else stripe.rounded
                    floors = self.i2t.floors[stripe.rows].copy()
                    found = workers.pool.submit(self._score, stripe, rounded, block, floors, before)
                    latest[block.start] = found
                    under_way.append(_Task(stripe, block, found))
                    collect(leave=2 * workers.count)
                if pause():
                    collect(leave=0)
                    yield number
            collect(leave=0)

    def _stripe(self, ids: slice) -> _Stripe[E]:
        images: Any = self.matrix.anchors[ids]
        rounded = RoundedStripe.of(images, self.choice) if self.choice.fast else None
        return _Stripe(ids, self._rows(ids), images, rounded)

    def _score(
        self,
        stripe: _Stripe[E],
        rounded: RoundedStripe | None,
        texts: slice,
        floors: Floats,
        before: Future[_Found] | None,
    ) -> _Found:
        """Feed the lists of `texts` with a block; return the hits for those of the images."""
        if before is not None:
            before.result()  # the same texts with the stripe above come first
        if rounded is not None:
            return self._score_rounded(stripe, rounded, texts, floors)
        scores = self.matrix.block(stripe.images, stripe.ids, texts)
        if stripe.ids.start == self.images.start:
            rows = evenly_spread(len(scores), _SAMPLE)
            self.t2i.guess_floors(texts, np.ascontiguousarray(scores[rows].T))
        return _Found.join(
            [
                self._feed_rows(scores[rows], stripe, rows, texts)
                for rows in ranges(len(scores), _ROWS_AT_ONCE)
            ]
        )

    def _score_rounded(
        self, stripe: _Stripe[E], rounded: RoundedStripe, texts: slice, floors: Floats
    ) -> _Found:
        """Score the pairs of a block that a rounded product admits, or all if they are many."""
        encoded: Any = self.matrix.candidates[texts]
        block = rounded.block(encoded, self._rounded_texts.of(encoded.vectors, texts, rounded.kind))
        struck = struck_within(self.matrix.positives, stripe.ids, texts)
        n_images = len(floors)
        if stripe.ids.start == self.images.start:
            sampled = evenly_spread(n_images, _SAMPLE)
            sample = block.lowest_scores(sampled)
            places = np.searchsorted(sampled, struck[0]).clip(max=len(sampled) - 1)
            inside = sampled[places] == struck[0]
            sample[places[inside], struck[1][inside]] = -np.inf
            self.t2i.guess_floors(texts, np.ascontiguousarray(sample.T))
        parts = []
        for rows in ranges(n_images, _ROWS_AT_ONCE):
            hits = block.hits(rows, floors[rows], self.t2i.floors[texts], struck)
            if hits is None:
                scores = self._scores_of_rows(stripe, rows, encoded, struck)
                found = self._feed_rows(scores, stripe, rows, texts)
            else:
                found = self._feed_hits(hits, stripe, rows, texts, floors)
            n_pairs = (rows.stop - rows.start) * block.texts.shape[0]
            parts.append(
                replace(
                    found,
                    n_pairs=n_pairs,
                    n_scored=n_pairs if hits is None else len(hits.idx),
                    in_vain=hits is None,
                )
            )
        return _Found.join(parts)

    def _feed_hits(
        self, hits: Hits, stripe: _Stripe[E], rows: slice, texts: slice, floors: Floats
    ) -> _Found:
        """Feed the lists of `texts` with scored pairs; return the hits for the images."""
        places = hits.idx + np.int32(stripe.ids.start)
        self.t2i.offer(texts, Hits(hits.ids, hits.scores, places))
        seen = stripe.ids.start + rows.stop - self.images.start
        self.t2i.raise_floors(texts, seen=seen, latest=rows.stop - rows.start)
        high = np.flatnonzero(hits.scores >= floors[hits.idx])
        ids = hits.ids[high] + np.int32(texts.start)
        return _Found(Hits(hits.idx[high], hits.scores[high], ids))

    def _scores_of_rows(
        self, stripe: _Stripe[E], rows: slice, texts: E, struck: tuple[Ids, Ids]
    ) -> Floats:
        """Score some rows of a stripe in float32, positives at -inf."""
        images: Any = stripe.images
        scores = self.matrix.scores(images[rows], texts)
        inside = (struck[0] >= rows.start) & (struck[0] < rows.stop)
        scores[struck[0][inside] - rows.start, struck[1][inside]] = -np.inf
        return scores

    def _feed_rows(self, scores: Floats, stripe: _Stripe[E], rows: slice, texts: slice) -> _Found:
        """Feed the lists of `texts` with some rows of a block; return the hits for the images."""
        from aoq.mining.kernels import Block, find_scores  # compiled, or read from a cache

        floors = self.i2t.floors[stripe.rows]
        places: Int32s = np.empty((2, scores.size), np.int32)
        values: Floats = np.empty(scores.size, np.float32)
        count = find_scores(
            Block(scores, floors[rows], self.t2i.floors[texts]),
            Hits(places[0], values, places[1]),
        )
        idx, ids = places[0, :count] + np.int32(rows.start), places[1, :count]
        return self._feed_hits(Hits(idx, values[:count], ids), stripe, rows, texts, floors)

    def _collect(self, task: _Task[E]) -> None:
        """Feed the images' lists; the threads may have seen floors that have risen since."""
        found = task.found.result()
        task.stripe.in_vain += found.in_vain
        self.counts[:] += found.n_pairs, found.n_scored
        rows = task.stripe.rows
        self.i2t.offer(rows, found.hits)
        latest = task.texts.stop - task.texts.start
        self.i2t.raise_floors(rows, seen=task.texts.stop, latest=latest)


@dataclass(eq=False)
class _Stripe(Generic[E]):
    """Images that are scored against all texts, a block at a time."""

    ids: slice
    rows: slice
    "Where they are among the images of the sweep."
    images: E
    rounded: RoundedStripe | None
    in_vain: int = 0
    "Rounded products that admitted too many pairs."


@dataclass(frozen=True, eq=False)
class _Found:
    """What a block holds for the lists of the images, and what its rounded product was good for."""

    hits: Hits
    n_pairs: int = 0
    "Pairs of the rounded product."
    n_scored: int = 0
    "Pairs of it that were scored in float32 all the same."
    in_vain: bool = False

    @classmethod
    def join(cls, parts: list[_Found]) -> _Found:
        """Join the parts of a block."""
        hits = zip(*(part.hits for part in parts), strict=True)
        return cls(
            Hits(*map(np.concatenate, hits)),
            n_pairs=sum(part.n_pairs for part in parts),
            n_scored=sum(part.n_scored for part in parts),
            in_vain=any(part.in_vain for part in parts),
        )


@dataclass(frozen=True)
class _Task(Generic[E]):
    """A block that a thread scores."""

    stripe: _Stripe[E]
    texts: slice
    found: Future[_Found]


@dataclass(frozen=True, eq=False)
class _Sample(Generic[E]):
    """Some texts, evenly spread, and whose positives they are."""

    texts: E
    positives: Positives

    @classmethod
    def of_texts(cls, texts: Rows[E], positives: Positives) -> _Sample[E]:
        ids = evenly_spread(len(texts), _SAMPLE)
        return cls(texts[torch.from_numpy(ids)], positives.swapped.of_images(ids).swapped)

    def scores(self, matrix: ScoreMatrix[E], images: E, stripe: slice) -> Floats:
        """Score images with the sample, positives at -inf."""
        scores = matrix.scores(images, self.texts)
        scores[self.positives.within(stripe, slice(0, scores.shape[1]))] = -np.inf
        return scores
