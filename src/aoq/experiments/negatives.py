"""Examples of hard negatives: those of a batch beside those of the whole training set."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from aoq.config import Direction, Recipe
from aoq.data.dataset import PairDataset
from aoq.data.items import KINDS, Item
from aoq.data.splits import open_dataset
from aoq.distributed import default_device
from aoq.mining.candidates import CandidateLists
from aoq.mining.inspection import Anchor, anchor_list
from aoq.randomness import epoch_order
from aoq.recipes import load_recipe
from aoq.runs.checkpoint import load_run
from aoq.runs.directory import RunDirectory
from aoq.scoring.encoded import evaluation_mode
from aoq.types import Floats, Ids


@dataclass(frozen=True, eq=False)
class MinedLists:
    """The lists that a run draws from, and the teacher that mined them."""

    lists: CandidateLists
    teacher: Path
    "The folder of its round one."
    recipe: Recipe
    "Of the run."
    dataset: PairDataset
    "The training set."

    @classmethod
    def open(cls, run: Path, *, teacher: Path, lists: Path, data: Path) -> MinedLists:
        dataset = open_dataset(data, "train")
        found = CandidateLists.load(lists).require_fit(dataset, source=lists)
        return cls(found, teacher, load_recipe(RunDirectory(run).config), dataset)

    @property
    def batch_size(self) -> int:
        return min(self.recipe.round_two.batch_size, len(self.dataset.positives.pairs))


@dataclass(frozen=True)
class Negatives:
    """An anchor, its positive, and its hardest negatives in a batch and in the whole set."""

    direction: Direction
    anchor: Item
    positive: Item
    online: Item
    offline: Item


def hardest_negatives(mined: MinedLists, *, count: int = 3) -> list[Negatives]:
    """Compare anchors' hardest negatives in a batch with the first of their lists, both ways.

    The teacher scores both. Anchors are spread over the first batch of an epoch with seed 0; a
    note gives the online negative's place in the list.
    """
    pairs = mined.dataset.positives.pairs
    batch = pairs[epoch_order(len(pairs), seed=0, epoch=0)[: mined.batch_size]]
    scores = _negative_scores(mined, batch)
    places = np.linspace(0, len(batch) - 1, count + 2).astype(int)[1:-1]
    anchors = list(dict.fromkeys(places.tolist()))
    return [
        *(_compare(mined, "i2t", batch, scores[place], place) for place in anchors),
        *(_compare(mined, "t2i", batch[:, ::-1], scores[:, place], place) for place in anchors),
    ]


def _negative_scores(mined: MinedLists, batch: Ids) -> Floats:
    """Score a batch with the teacher; positive pairs have -inf. (B, B)"""
    trained = load_run(mined.teacher, device=default_device())
    model, collator = trained.model, trained.collator(mined.dataset, device=default_device())
    images, texts = batch.T
    with evaluation_mode(model), torch.no_grad():
        encoded = model.encode_images(collator.regions(images))
        matrix = model.score_matrix(encoded, model.encode_texts(collator.texts(texts)))
    scores: Floats = matrix.float().cpu().numpy()
    scores[mined.dataset.positives.contains(images[:, None], texts[None])] = -np.inf
    return scores


def _compare(
    mined: MinedLists, direction: Direction, batch: Ids, scores: Floats, place: int
) -> Negatives:
    """Compare the negatives of an anchor; `batch` has anchors and their partners. (B, 2), (B,)"""
    dataset, (kind, other) = mined.dataset, KINDS[direction]
    anchor, positive = batch[place].tolist()
    online = int(batch[scores.argmax(), 1])
    listed = mined.lists.of(direction)[0][anchor]
    places = np.flatnonzero(listed == online)
    where = f"place {places[0] + 1:,}" if len(places) else f"beyond the first {len(listed):,}"
    found = anchor_list(mined.lists, dataset, Anchor(kind, anchor), depth=1)
    return Negatives(
        direction,
        anchor=found.anchor,
        positive=Item.of(dataset, other, positive),
        online=replace(Item.of(dataset, other, online, score=float(scores.max())), note=where),
        offline=found.candidates[0],
    )
