"""A round whose model is computed from the data instead of being trained by steps.

Everything else is a round's: an epoch is one computation, dev judges it, the best is kept, and the
log, the manifest and the saved state are the same. So a run of such a model is opened, judged,
mined with and continued as any other; one that was interrupted repeats the epoch under way.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

import numpy as np
import torch
from torch import Tensor

from aoq.data.collate import Collator
from aoq.data.dataset import PairDataset
from aoq.scoring.protocol import FitsInClosedForm
from aoq.threads import ThreadChoice
from aoq.training.round import Round
from aoq.training.signals import Stop
from aoq.types import Ids, Texts

_READ = 256  # pairs that are read at once


def pairs_in_blocks(dataset: PairDataset) -> list[Ids]:
    """Split all positive pairs in their own order: those of an image are next to each other."""
    pairs = dataset.positives.pairs
    return [pairs[start : start + _READ] for start in range(0, len(pairs), _READ)]


def read_blocks(collator: Collator, blocks: Iterable[Ids]) -> Iterator[tuple[Tensor, Texts]]:
    """Read the images and texts of some pairs, aligned; each image of a block once."""
    for pairs in blocks:
        images, rows = np.unique(pairs[:, 0], return_inverse=True)
        yield collator.regions(images)[rows], collator.texts(pairs[:, 1])


class ClosedFormRound(Round):
    """Computes a model once an epoch; its steps only read."""

    def _choose_threads(self) -> ThreadChoice:
        return ThreadChoice(torch.get_num_threads())

    def _batches(self, epoch: int) -> list[Ids]:
        return pairs_in_blocks(self.train.dataset)

    def _train_epoch(self, epoch: int, stop: Stop) -> bool:
        assert isinstance(self.model, FitsInClosedForm)
        started = time.monotonic()
        self.bar(advance=0, title=f"{self.label}: epoch {epoch + 1}/{self.settings.epochs}")
        with stop.at_once():  # nothing is lost but the computation under way
            self.model.fit(self._read_all(), epoch=epoch)
        self.log.write(
            "epoch",
            epoch=epoch + 1,
            learning_rate=0.0,
            seconds=round(time.monotonic() - started, 2),
            steps=self.n_steps,
            loss={},
        )
        return not self.collectives.any(stop.is_asked)

    def _read_all(self) -> Iterator[tuple[Tensor, Texts]]:
        for block in read_blocks(self.train, self._batches(0)):
            yield block
            self.bar()
