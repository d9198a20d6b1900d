"""Compares rows of an experiment: the effect, and its error from trainings and from queries.

Figures are the mean of dev and test, because dev only chose the epoch: twice as many queries decide
more. A row that was chosen on dev (`Choice`) is judged on test alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean

import numpy as np

from aoq.evaluation.effects import (
    Doubles,
    Effect,
    QueryError,
    RunError,
    Variance,
    own_variance,
    query_influence,
)
from aoq.evaluation.protocols import JudgedFold
from aoq.experiments.rows import ResultRow, Training

Splits = tuple[str, ...]
BOTH: Splits = ("dev", "test")


@dataclass(frozen=True, eq=False)
class Contrast:
    """Weights of rows: their mean less the mean of others, or the mean itself."""

    rows: Sequence[ResultRow]
    others: Sequence[ResultRow] = ()

    @property
    def weighted(self) -> list[tuple[float, ResultRow]]:
        """Each row once, by its setting: the weights of one that is named several times add up."""
        weights: dict[tuple[str, str], tuple[float, ResultRow]] = {}
        for sign, rows in ((1, self.rows), (-1, self.others)):
            for row in rows:
                before, _ = weights.get((row.group, _key(row)), (0.0, row))
                weights[row.group, _key(row)] = before + sign / len(rows), row
        return list(weights.values())

    @property
    def seeds(self) -> list[int]:
        """The seeds that all rows have."""
        rows = (*self.rows, *self.others)
        return [t.seed for t in self.rows[0].trainings if all(row.training(t.seed) for row in rows)]

    @property
    def splits(self) -> Splits:
        """The splits that chose none of the rows."""
        rows = (*self.rows, *self.others)
        trainings = [training for row in rows for training in row.trainings]
        free = BOTH[1:] if any(row.note for row in rows) else BOTH
        return tuple(s for s in free if all(t.line.get(s) for t in trainings)) or BOTH[1:]

    @property
    def is_within_models(self) -> bool:
        """Whether weights add up to 0 for each model, so that effects of seeds cancel out."""
        groups = {row.group for _, row in self.weighted}
        sums = [sum(w for w, row in self.weighted if row.group == group) for group in groups]
        return all(abs(total) < 1e-9 for total in sums)


@dataclass(frozen=True)
class Comparison:
    """A contrast of rows, as measured."""

    effect: Effect
    by_seed: Mapping[int, float]
    by_split: Mapping[str, float]


@dataclass(frozen=True, eq=False)
class Comparisons:
    """Compares rows, with the deviation of trainings pooled over all rows of each model."""

    pool: Sequence[ResultRow]
    _errors: dict[tuple[str, Splits], RunError | None] = field(default_factory=dict)

    def compare(self, contrast: Contrast) -> Comparison | None:
        """Estimate a contrast; none if the rows share no seed."""
        seeds, splits = contrast.seeds, contrast.splits
        if not seeds:
            return None
        found = {
            (seed, split): sum(w * _rsum(row, seed, split) for w, row in contrast.weighted)
            for seed in seeds
            for split in splits
        }
        by_seed = {seed: mean(found[seed, split] for split in splits) for seed in seeds}
        queries = _query_error(contrast, seeds, splits)
        effect = Effect(
            mean(by_seed.values()),
            runs=self._variance(contrast, by_seed),
            queries=None if queries is None else queries.mean,
            both=Variance(0.0) if queries is None else queries.both,
        )
        by_split = {split: mean(found[seed, split] for seed in seeds) for split in splits}
        return Comparison(effect, by_seed, by_split)

    def run_error(self, group: str, splits: Splits = BOTH) -> RunError | None:
        """Return how much trainings of a model differ; none if there are too few."""
        if (group, splits) not in self._errors:
            rows: dict[str, dict[int, float]] = {}
            for row in self.pool:
                if row.group == group:
                    trainings = [t for t in row.trainings if all(map(t.line.get, splits))]
                    found = {t.seed: mean(_figure(t, s) for s in splits) for t in trainings}
                    rows.setdefault(_key(row), {}).update(found)  # a setting may have two labels
            self._errors[group, splits] = RunError.pooled(rows)
        return self._errors[group, splits]

    def _variance(self, contrast: Contrast, by_seed: Mapping[int, float]) -> Variance:
        """Return the variance of a mean over seeds: pooled, or its own if that is not possible."""
        parts, n_seeds = [], len(by_seed)
        for weight, row in contrast.weighted if contrast.is_within_models else ():
            error = self.run_error(row.group, contrast.splits)
            if error is None:
                break
            own = [mean(_figure(t, s) for s in contrast.splits) for t in row.trainings]
            is_out = _key(row) in error.left_out
            one = own_variance(own).times(len(own)) if is_out else error.variance
            part = one.times(1 / n_seeds)
            parts.append((row.group, is_out, part.times(weight**2)))
        if len(parts) < len(contrast.weighted):
            return own_variance([*by_seed.values()])
        pooled = {
            group: [part for of, is_out, part in parts if of == group and not is_out]
            for group in dict.fromkeys(of for of, _, _ in parts)
        }
        sums = [
            Variance(sum(part.value for part in same), same[0].degrees)
            for same in pooled.values()
            if same
        ]
        return Variance.sum([*sums, *(part for _, is_out, part in parts if is_out)])


def _key(row: ResultRow) -> str:
    """Identify a setting, which may have several labels."""
    return str(row.trainings[0].line.get("digest", row.label)) if row.trainings else row.label


def _figure(training: Training, split: str) -> float:
    """Return rsum, unrounded where ranks are there."""
    ranks = _ranks(training, split)
    if ranks is not None:
        return ranks.metrics.rsum
    return float((training.line.get(split) or training.figures)["rsum"])


def _rsum(row: ResultRow, seed: int, split: str) -> float:
    training = row.training(seed)
    assert training is not None
    return _figure(training, split)


def _ranks(training: Training, split: str) -> JudgedFold | None:
    return training.dev_ranks if split == "dev" else training.ranks


def _query_error(contrast: Contrast, seeds: Sequence[int], splits: Splits) -> QueryError | None:
    """Measure the error from queries on the splits with ranks; none if no split has them."""
    found = [
        QueryError.of(np.stack(influence))
        for split in splits
        if (influence := _influence(contrast, seeds, split))
    ]
    return QueryError.mean_of_splits(found, n_splits=len(splits)) if found else None


def _influence(contrast: Contrast, seeds: Sequence[int], split: str) -> list[Doubles]:
    """Return the influence of every image on the contrast with each seed; empty without ranks."""
    found = []
    for seed in seeds:
        parts = []
        for weight, row in contrast.weighted:
            training = row.training(seed)
            ranks = None if training is None else _ranks(training, split)
            if ranks is None:
                return []
            parts.append(weight * query_influence(ranks))
        found.append(np.asarray(np.sum(parts, axis=0)))
    return found
