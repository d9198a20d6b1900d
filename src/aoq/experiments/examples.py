"""Examples with pictures: queries that two settings answer differently.

One setting has the right answer first, and the other is furthest off. Half of the queries are in
favour of the last setting and half of the first, so that a page does not only show what its author
likes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from aoq.config import Direction
from aoq.data.dataset import PairDataset
from aoq.data.items import KINDS, Item
from aoq.experiments.rows import ResultRow
from aoq.runs.encodings import ScoredSplit, open_splits
from aoq.scoring.blocks import ranges
from aoq.scoring.precision import as_single
from aoq.types import Ids

_QUERIES = 4
_ANSWERS: dict[Direction, int] = {"i2t": 5, "t2i": 3}  # as in the paper's figure
_AT_ONCE = 1024  # candidates that are scored together


@dataclass(frozen=True)
class Answers:
    """The first answers of a setting, and the rank of the best right one, from 1."""

    setting: str
    rank: int
    items: list[Item]


@dataclass(frozen=True)
class Retrieval:
    """One query and the answers of two settings."""

    direction: Direction
    query: Item
    answers: list[Answers]


def retrievals(
    group: Sequence[ResultRow], dataset: PairDataset, *, data: Path | None
) -> list[Retrieval]:
    """Find queries that the first and the last setting of a group answer differently.

    Both are taken with the first seed whose runs are there.
    """
    first, last = group[0], group[-1]
    both = [
        (one, two)
        for one in first.trainings
        if one.runs and (two := last.training(one.seed)) is not None and two.runs
    ]
    if first is last or not both:
        return []
    names, trainings = (first.label, last.label), both[0]
    parts = [
        ScoredSplit.ensemble(open_splits(training.runs, split=dataset.split, data=data))
        for training in trainings
    ]
    folds = [training.ranks.ranks for training in trainings if training.ranks is not None]
    found = []
    for direction in _ANSWERS:
        ranks: list[Ids] = [getattr(fold, direction) for fold in folds]
        for query in where_ranks_differ(*ranks):
            answers = [
                Answers(name, int(own[query]) + 1, _first_answers(part, direction, query))
                for name, own, part in zip(names, ranks, parts, strict=True)
            ]
            item = Item.of(dataset, KINDS[direction][0], query)
            found.append(Retrieval(direction, item, answers))
    return found


def where_ranks_differ(first: Ids, last: Ids, *, count: int = _QUERIES) -> list[int]:
    """Choose queries that only one of two models answers first: half for each of them.

    Of each half, the other model is furthest off. Ranks count from 0.

    >>> where_ranks_differ(np.array([0, 9, 0, 4, 7]), np.array([0, 0, 3, 0, 6]), count=2)
    [1, 2]
    """
    chosen: list[int] = []
    for right, wrong in ((last, first), (first, last)):
        gain = np.where((right == 0) & (wrong > 0), wrong, -1)
        best = np.argsort(-gain, kind="stable")[: count // 2]
        chosen += [int(query) for query in best if gain[query] > 0]
    return chosen


def _first_answers(part: ScoredSplit, direction: Direction, query: int) -> list[Item]:
    """Rank everything for one query."""
    images, texts, one = part.encoded.images, part.encoded.texts, torch.tensor([query])
    dataset, matrix = part.dataset, part.scorer.score_matrix
    with torch.no_grad():
        if direction == "i2t":
            belongs = dataset.positives
            pieces = [matrix(images[one], texts[some]) for some in ranges(len(texts), _AT_ONCE)]
        else:
            belongs = dataset.positives.swapped
            pieces = [matrix(images[some], texts[one]).T for some in ranges(len(images), _AT_ONCE)]
    values = as_single(torch.cat(pieces, dim=1)[0]).cpu().numpy()
    right = set(belongs.texts_of(query).tolist())
    found = np.argsort(-values, kind="stable")[: _ANSWERS[direction]].tolist()
    _, kind = KINDS[direction]
    items = (Item.of(dataset, kind, number, score=float(values[number])) for number in found)
    return [replace(item, right=item.number in right) for item in items]
