"""Mining anew while a round trains: negatives that are hard for the weights of the moment.

Lists that were mined before a round are hard for another model. Every few epochs the training set
is ranked again, by the weights that are validated too (their average, where it is kept), and the
epochs from there on draw from the new lists. They are files of the round: a round that goes on
reads those that it stopped with, so it ends like an uninterrupted one. Only the last are kept.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from aoq.config import MiningConfig, RoundConfig
from aoq.data.collate import Collator
from aoq.distributed import Processes
from aoq.mining.candidates import DIRECTIONS, CandidateLists, Provenance
from aoq.mining.mine import mine_in_processes
from aoq.mining.mixing import mixed
from aoq.runs.directory import RunDirectory
from aoq.sampling import OfflineSampler
from aoq.scoring.encoded import encode_dataset
from aoq.scoring.protocol import TrainableModel
from aoq.storage import hash_parts
from aoq.training.callbacks import Mining


class Remining:
    """The lists that a round draws from, epoch by epoch."""

    def __init__(
        self,
        run: RunDirectory,
        settings: RoundConfig,
        *,
        config: MiningConfig,
        train: Collator,
        processes: Processes,
    ) -> None:
        self.run = run
        self.settings = settings
        self.config = config
        self.train = train
        self.processes = processes
        self._read: int | None = None  # the epoch that the lists in use were mined before

    def file_of(self, epoch: int) -> Path:
        """Name the lists that are mined before an epoch, counted from 0."""
        return self.run.remined(epoch + 1)

    def is_missing(self, epoch: int) -> bool:
        """Return whether an epoch begins with lists that are not mined yet."""
        is_missing = self.settings.remines_at(epoch) and not self.file_of(epoch).is_file()
        self.processes.barrier()  # all have looked before one writes
        return is_missing

    def read(self, epoch: int, sampler: OfflineSampler) -> OfflineSampler:
        """Return a sampler of the last lists that were mined before an epoch, if any were."""
        mined = (before for before in range(epoch, -1, -1) if self.settings.remines_at(before))
        last = next(mined, None)
        if last is None or last == self._read:
            return sampler
        self._read, file = last, self.file_of(last)
        lists = CandidateLists.load(file).require_fit(self.train.dataset, source=file)
        if self.processes.is_first:
            self._remove_before(last)
        return sampler.with_lists(lists)

    def mine(self, model: TrainableModel, epoch: int, sampler: OfflineSampler) -> Mining:
        """Rank the training set with the model, in all processes; the first stores the lists."""
        started = time.monotonic()
        dataset = self.train.dataset
        encoded = encode_dataset(model, self.train, description="encode for mining")
        result = mine_in_processes(
            model,
            encoded,
            dataset.positives,
            config=self.config,
            provenance=Provenance(teacher=_hash_weights(model), data=dataset.fingerprint),
            captions=dataset.captions,
            processes=self.processes,
        )
        shares: dict[str, float] = {}
        if result is not None:
            lists, before = result.lists, sampler.lists
            shares = {each: _share_of_old(lists, before, each) for each in DIRECTIONS}
            if self.settings.remine_keep:
                lists = mixed(
                    lists,
                    before,
                    keep=self.settings.remine_keep,
                    depth_texts=sampler.config.depth_texts,
                    depth_images=sampler.config.depth_images,
                )
            lists.save(self.file_of(epoch))
        self.processes.barrier()  # all can read the lists
        return Mining("two", epoch + 1, round(time.monotonic() - started, 2), shares)

    def _remove_before(self, epoch: int) -> None:
        """Remove the lists of earlier epochs, which no epoch draws from any more."""
        for before in range(epoch):
            self.file_of(before).unlink(missing_ok=True)


def describe(mining: Mining) -> str:
    """Say what was mined, and how far the lists are the ones before."""
    shares = ", ".join(f"{share:.0%} of {name}" for name, share in mining.in_old_lists.items())
    return f"mined again in {mining.seconds:.1f} s; {shares} were in the lists before"


def _share_of_old(lists: CandidateLists, old: CandidateLists, direction: str) -> float:
    """Return which share of the candidates was in the lists before, on a sample of anchors."""
    fresh, before = getattr(lists, direction), getattr(old, direction)
    depth = min(fresh.shape[1], before.shape[1])
    rows = range(0, len(fresh), max(1, len(fresh) // 500))
    return float(np.mean([np.isin(fresh[row, :depth], before[row, :depth]).mean() for row in rows]))


def _hash_weights(model: TrainableModel) -> str:
    tensors = (value.detach().cpu().contiguous() for value in model.state_dict().values())
    return hash_parts(*(memoryview(value.numpy().tobytes()) for value in tensors))
