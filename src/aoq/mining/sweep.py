"""One pass over the score matrix that fills both kinds of list, a stripe of images at a time.

The whole matrix is scored in blocks: a block's rows feed the images' lists, its columns the
texts'. Blocks are dealt out to threads (`workers`). What a block leaves behind follows from the
order of the blocks, never from which thread was faster.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import torch

from aoq.mining.score_matrix import ScoreMatrix
from aoq.mining.toplists import Hits, TopLists
from aoq.progress import progress_bar
from aoq.scoring.blocks import evenly_spread, ranges
from aoq.scoring.encoded import Rows
from aoq.threads import worker_threads
from aoq.types import Floats, Positives

E = TypeVar("E")
_ROWS_AT_ONCE = 512  # rows of a block between two chances to raise the floors of its columns
_SAMPLE = 256  # candidates that show where a list will end


@dataclass(frozen=True, eq=False)
class Sweep(ABC, Generic[E]):
    """What a pass reads and fills."""

    matrix: ScoreMatrix[E]  # i2t
    images: slice
    "All images, or a process's share."
    i2t: TopLists
    t2i: TopLists
    block_size: int

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

    def run(self, *, first_stripe: int = 0, pause: Callable[[], bool]) -> Iterator[int]:
        """Score blocks in threads; see `Sweep.run`."""
        matrix = self.matrix
        stripes, texts = self.stripes, ranges(len(matrix.candidates), self.block_size)
        sample = _Sample.of_texts(matrix.candidates, matrix.positives)
        under_way: deque[_Task] = deque()
        latest: dict[int, Future[Hits]] = {}
        with (
            progress_bar("mine", total=len(stripes) * len(texts), unit="blocks") as update,
            worker_threads(matrix.device) as workers,
        ):

            def collect(*, leave: int) -> None:
                while len(under_way) > leave:
                    task = under_way.popleft()
                    self._collect(task)
                    if latest[task.texts.start] is task.hits:
                        del latest[task.texts.start]  # no later block waits for it
                    update()

            update(advance=first_stripe * len(texts))
            for number, stripe in enumerate(stripes[first_stripe:], first_stripe + 1):
                images, rows = matrix.anchors[stripe], self._rows(stripe)
                self.i2t.guess_floors(rows, sample.scores(matrix, images, stripe))
                for block in texts:
                    before = latest.get(block.start)
                    hits = workers.pool.submit(self._score, images, stripe, block, before)
                    latest[block.start] = hits
                    under_way.append(_Task(rows, block, hits))
                    collect(leave=2 * workers.count)
                if pause():
                    collect(leave=0)
                    yield number
            collect(leave=0)

    def _score(self, images: E, stripe: slice, texts: slice, before: Future[Hits] | None) -> Hits:
        """Feed the lists of `texts` with a block; return the hits for those of the images."""
        if before is not None:
            before.result()  # the same texts with the stripe above come first
        scores = self.matrix.block(images, stripe, texts)
        if stripe.start == self.images.start:
            rows = evenly_spread(len(scores), _SAMPLE)
            self.t2i.guess_floors(texts, np.ascontiguousarray(scores[rows].T))
        hits = [
            self._feed_rows(scores[rows], stripe, rows, texts)
            for rows in ranges(len(scores), _ROWS_AT_ONCE)
        ]
        return Hits(*(np.concatenate(parts) for parts in zip(*hits, strict=True)))

    def _feed_rows(self, scores: Floats, stripe: slice, rows: slice, texts: slice) -> Hits:
        """Feed the lists of `texts` with some rows of a block; return the hits for the images."""
        from aoq.mining.kernels import Block, feed_lists  # compiled, or read from a cache

        first, lists = stripe.start + rows.start, self.t2i
        block = Block(scores, self.i2t.floors[self._rows(stripe)][rows], first)
        idx, ids = np.empty((2, scores.size + 1), np.int32)
        hits = Hits(idx, np.empty(scores.size + 1, np.float32), ids)
        row = n_hits = 0
        while row < len(scores):
            row, n_hits = feed_lists(block, lists.arrays(texts), hits, row, n_hits)
            lists.make_room(texts)
        seen = first + len(scores) - self.images.start
        lists.raise_floors(texts, seen=seen, latest=len(scores))
        return Hits(
            idx=idx[:n_hits] + np.int32(rows.start),
            scores=hits.scores[:n_hits].copy(),
            ids=ids[:n_hits] + np.int32(texts.start),
        )

    def _collect(self, task: _Task) -> None:
        """Feed the images' lists; the threads may have seen floors that have risen since."""
        self.i2t.offer(task.rows, task.hits.result())
        latest = task.texts.stop - task.texts.start
        self.i2t.raise_floors(task.rows, seen=task.texts.stop, latest=latest)


@dataclass(frozen=True)
class _Task:
    """A block that a thread scores."""

    rows: slice
    texts: slice
    hits: Future[Hits]


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
