"""Scores of the pair classes on training batches: positives, and the three kinds of negatives.

The paper's goal is to separate them: positives far above offline hard negatives, and those above
online ones. Every model scores the same batches with the same offline negatives, without dropout,
so that only the models differ.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from aoq.config import LossConfig, RoundConfig
from aoq.data.dataset import PairDataset
from aoq.distributed import default_device
from aoq.experiments.negatives import MinedLists
from aoq.losses import BatchScores
from aoq.mining.candidates import CandidateLists
from aoq.progress import track
from aoq.randomness import epoch_order
from aoq.runs.checkpoint import TrainedRun, load_run
from aoq.sampling import OfflineSampler
from aoq.scoring.encoded import evaluation_mode
from aoq.training.step import make_batches, score_batch
from aoq.types import Floats, Ids, StepBatch

PAIRS = 2048


@dataclass(frozen=True, eq=False)
class TeacherBatches:
    """A teacher, its lists, and a fixed sample of the batches that are drawn from them."""

    teacher: Path
    "The folder of its round one."
    lists: CandidateLists
    dataset: PairDataset
    "The training set."
    settings: RoundConfig
    "Of round two with the full loss: the batch size, and which negatives a step has."
    sampler: OfflineSampler

    @classmethod
    def of(cls, mined: MinedLists) -> TeacherBatches:
        """Draw from the lists as the run's recipe says, with seed 0."""
        dataset, lists = mined.dataset, mined.lists
        loss, size = LossConfig(name="adap_off_quin"), mined.recipe.round_two.batch_size
        return cls(
            teacher=mined.teacher,
            lists=lists,
            dataset=dataset,
            settings=RoundConfig(loss=loss, batch_size=size),
            sampler=OfflineSampler(lists, dataset.positives, config=mined.recipe.sampling, seed=0),
        )

    @cached_property
    def batches(self) -> list[Ids]:
        """Positive pairs of whole batches, in the order of an epoch of seed 0. (B, 2) each"""
        pairs = self.dataset.positives.pairs
        size = min(self.settings.batch_size, len(pairs))
        order = epoch_order(len(pairs), seed=0, epoch=0)
        number = max(1, min(PAIRS, len(pairs)) // size)
        return list(pairs[order[: number * size]].reshape(number, size, 2))

    def read(self, trained: TrainedRun) -> Iterator[StepBatch]:
        """Collate the batches with their offline negatives for a model."""
        collator = trained.collator(self.dataset, device=default_device())
        for step, pair_ids in enumerate(self.batches):
            (batch,) = make_batches(
                collator,
                pair_ids,
                settings=self.settings,
                sampler=self.sampler,
                epoch=0,
                step=step,
            )
            yield batch


def batch_scores(run: Path, mined: TeacherBatches) -> Iterator[BatchScores]:
    """Score each of the batches with a trained model."""
    trained = load_run(run, device=default_device())
    batches = mined.read(trained)
    total = len(mined.batches)
    with evaluation_mode(trained.model):
        for batch in track(batches, f"score batches with {run.name}", total=total, unit="batches"):
            yield score_batch(trained.model, batch)[0]


def scores_by_class(run: Path, mined: TeacherBatches) -> dict[str, Floats]:
    """Collect the scores of every pair class, both directions together."""
    found: defaultdict[str, list[Tensor]] = defaultdict(list)
    for scores in batch_scores(run, mined):
        negatives, offline = scores.negative_mask, scores.require_offline()
        valid = offline.derived_mask
        assert offline.derived is not None
        assert offline.partners is not None
        assert valid is not None
        found["positive"] += [scores.positive]
        found["offline hard negative"] += [offline.i2t, offline.t2i]
        found["online hard negative"] += [
            scores.i2t_online[negatives.any(dim=1)],
            scores.t2i_online[negatives.any(dim=0)],
        ]
        found["derived pair"] += [offline.derived[valid], offline.partners[valid]]
    joined = {name: torch.cat(parts).cpu().numpy() for name, parts in found.items()}
    return {name: values.astype(np.float32) for name, values in joined.items() if len(values)}
