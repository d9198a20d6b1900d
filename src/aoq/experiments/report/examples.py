"""Examples with pictures: where two settings differ, and negatives online beside offline.

Queries are those that one setting answers at once and the other does not, by how far it is off;
half of them speak for the last setting, half for the first, so that a page does not only show
what its author likes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from aoq.config import Direction
from aoq.data.dataset import PairDataset
from aoq.evaluation.protocols import JudgedFold
from aoq.experiments.items import Item
from aoq.experiments.report.rows import ResultRow
from aoq.experiments.report.scores import TeacherBatches, batch_scores
from aoq.scoring.blocks import ranges
from aoq.scoring.precision import as_single
from aoq.training.trained import ScoredSplit, open_splits
from aoq.types import Ids

QUERIES = 4
_ANSWERS: dict[Direction, int] = {"i2t": 5, "t2i": 3}  # as in the paper's figure
_ANCHORS = 3
_AT_ONCE = 1024  # candidates that are scored together


@dataclass(frozen=True)
class Answers:
    """What a setting puts first, and where the best right answer is, counted from 1."""

    setting: str
    rank: int
    items: list[Item]


@dataclass(frozen=True)
class Retrieval:
    """One query and the answers of two settings."""

    direction: Direction
    query: Item
    answers: list[Answers]


@dataclass(frozen=True)
class Negatives:
    """An anchor, what belongs to it, its hardest negative of a batch and of the whole set."""

    direction: Direction
    anchor: Item
    positive: Item
    online: Item
    offline: Item


# Where two settings differ


def retrievals(
    group: Sequence[ResultRow], dataset: PairDataset, *, data: Path | None
) -> list[Retrieval]:
    """Queries both ways that tell the first setting from the last, of the first seed both have."""
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
        ScoredSplit.together(open_splits(training.runs, split=dataset.split, data=data))
        for training in trainings
    ]
    folds = [training.ranks for training in trainings if training.ranks is not None]
    return [
        Retrieval(
            direction,
            _query(dataset, direction, query),
            [
                Answers(
                    name,
                    int(_ranks(fold, direction)[query]) + 1,
                    _first_answers(part, direction, query),
                )
                for name, fold, part in zip(names, folds, parts, strict=True)
            ],
        )
        for direction in _ANSWERS
        for query in where_ranks_differ(*(_ranks(fold, direction) for fold in folds))
    ]


def where_ranks_differ(first: Ids, last: Ids, *, count: int = QUERIES) -> list[int]:
    """Queries that only one of two models answers at once: half for the last, half for the first.

    Of each half, those in which the other model is furthest off. Ranks count from 0.

    >>> where_ranks_differ(np.array([0, 9, 0, 4, 7]), np.array([0, 0, 3, 0, 6]), count=2)
    [1, 2]
    """
    chosen: list[int] = []
    for right, wrong in ((last, first), (first, last)):
        gain = np.where((right == 0) & (wrong > 0), wrong, -1)
        best = np.argsort(-gain, kind="stable")[: count // 2]
        chosen += [int(query) for query in best if gain[query] > 0]
    return chosen


def _ranks(fold: JudgedFold, direction: Direction) -> Ids:
    return fold.ranks.i2t if direction == "i2t" else fold.ranks.t2i


def _query(dataset: PairDataset, direction: Direction, query: int) -> Item:
    return Item.of_image(dataset, query) if direction == "i2t" else Item.of_text(dataset, query)


def _first_answers(part: ScoredSplit, direction: Direction, query: int) -> list[Item]:
    """The best of everything for one query."""
    images, texts, one = part.encoded.images, part.encoded.texts, torch.tensor([query])
    dataset, contains = part.dataset, part.dataset.positives.contains
    matrix = part.scorer.score_matrix
    with torch.no_grad():
        if direction == "i2t":
            pieces = [matrix(images[one], texts[some]) for some in ranges(len(texts), _AT_ONCE)]
        else:
            pieces = [matrix(images[some], texts[one]).T for some in ranges(len(images), _AT_ONCE)]
    values = as_single(torch.cat(pieces, dim=1)[0]).cpu().numpy()
    items = []
    for found in np.argsort(-values, kind="stable")[: _ANSWERS[direction]].tolist():
        score = float(values[found])
        if direction == "i2t":
            item = Item.of_text(dataset, found, score=score)
            right = bool(contains(query, found))
        else:
            item = Item.of_image(dataset, found, score=score)
            right = bool(contains(found, query))
        items.append(replace(item, right=right))
    return items


# Negatives online and offline


def mined_negatives(mined: TeacherBatches, *, count: int = _ANCHORS) -> list[Negatives]:
    """Anchors of one batch, with its hardest negative and the first of their list, both ways.

    The teacher scores both. Anchors are spread over the batch; a note tells the place that the
    batch's negative has in the list.
    """
    dataset, lists, pair_ids = mined.dataset, mined.lists, mined.batches[0]
    scores = next(batch_scores(mined.teacher, mined))
    matrix = scores.matrix.masked_fill(~scores.negative_mask, -torch.inf).cpu()
    spread = np.linspace(0, len(pair_ids) - 1, count + 2).astype(int)[1:-1]
    found = []
    for direction in _ANSWERS:
        if direction == "i2t":
            shown, wrong = Item.of_image, Item.of_text
            (anchors, others), hardness = pair_ids.T, matrix
            listed, listed_scores = lists.i2t, lists.i2t_scores
        else:
            shown, wrong = Item.of_text, Item.of_image
            (others, anchors), hardness = pair_ids.T, matrix.T
            listed, listed_scores = lists.t2i, lists.t2i_scores
        for place in dict.fromkeys(spread.tolist()):
            anchor, hardest = int(anchors[place]), hardness[place].max(dim=0)
            online, offline = int(others[int(hardest.indices)]), int(listed[anchor, 0])
            near = wrong(dataset, online, score=float(hardest.values))
            found.append(
                Negatives(
                    direction,
                    shown(dataset, anchor),
                    wrong(dataset, int(others[place])),
                    _noted(near, listed[anchor]),
                    wrong(dataset, offline, score=_score(listed_scores[anchor, 0])),
                )
            )
    return found


def _noted(item: Item, listed: np.ndarray[tuple[int], np.dtype[np.int32]]) -> Item:
    places = np.flatnonzero(listed == item.number)
    place = f"place {places[0] + 1:,}" if len(places) else f"beyond the first {len(listed):,}"
    return replace(item, note=place)


def _score(score: np.float32) -> float | None:
    return None if np.isnan(score) else float(score)
