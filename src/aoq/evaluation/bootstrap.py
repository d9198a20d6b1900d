"""The bootstrap: how much a figure would vary with other queries.

The queries of a test set are a sample of all possible ones. Drawing as many again from them, with
replacement, many times, shows how much a figure varies for that reason alone.

The queries are not independent, though: the five texts of an image are about the same picture,
and a hard picture is hard for all of them. Drawn one by one they would count as five times the
evidence they are, and intervals of image retrieval would be too narrow. So images are drawn, each
with all its texts (a cluster bootstrap); if a text has several images, these are drawn together.
The candidates stay the same: figures refer to these candidates only. The bootstrap does not cover
the variation over seeds of training (`aoq.evaluation.seeds`).

Folds are drawn from one by one, and their figures averaged, like the figures themselves. Several
trainings of one setting are treated alike: the same queries are drawn for all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from aoq.errors import UserError
from aoq.evaluation.metrics import PAPER_FIGURES, RECALLS
from aoq.evaluation.protocols import JudgedFold, average
from aoq.types import Ids, Positives

Doubles = npt.NDArray[np.float64]
RESAMPLES = 1000
LEVEL = 0.95
_AT_ONCE = 4_000_000  # queries of all resamples in memory at a time


@dataclass(frozen=True)
class Interval:
    """A figure, with percentiles over the resamples."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Difference(Interval):
    """The gain of a second model over a first one, on the same queries."""

    below_zero: float
    "Share of the resamples in which the second model scores less than the first."


@dataclass(frozen=True, eq=False)
class Resampled:
    """Every figure of a model, also for each resample; all models share the same draws."""

    positives: tuple[Positives, ...]
    "The queries of each fold."
    figures: Mapping[str, float]
    drawn: Mapping[str, Doubles]  # (resamples,) each
    data: str | None = None
    "Fingerprint of the split, if known."

    @classmethod
    def of(
        cls, folds: Sequence[JudgedFold], *, resamples: int = RESAMPLES, seed: int = 0
    ) -> Resampled:
        return cls(
            positives=tuple(fold.positives for fold in folds),
            figures=average(folds).figures(),
            drawn=resampled_figures(folds, resamples=resamples, seed=seed),
            data=folds[0].data,
        )

    @classmethod
    def mean(cls, trainings: Sequence[Resampled]) -> Resampled:
        """Average several trainings of one setting: the mean of each figure, in every resample."""
        first, names = trainings[0], list(trainings[0].figures)
        for other in trainings[1:]:
            first.require_same_queries(other)
        return cls(
            positives=first.positives,
            figures={name: float(np.mean([t.figures[name] for t in trainings])) for name in names},
            drawn={name: np.mean([t.drawn[name] for t in trainings], axis=0) for name in names},
            data=first.data,
        )

    def intervals(self, *, level: float = LEVEL) -> dict[str, Interval]:
        return {
            name: Interval(value, *percentiles(self.drawn[name], level))
            for name, value in self.figures.items()
        }

    def minus(self, first: Resampled, *, level: float = LEVEL) -> dict[str, Difference]:
        """Return the gain over `first` in rsum and every recall."""
        first.require_same_queries(self)
        differences = {}
        for name in PAPER_FIGURES:
            gained = self.drawn[name] - first.drawn[name]
            differences[name] = Difference(
                self.figures[name] - first.figures[name],
                *percentiles(gained, level),
                below_zero=float(np.mean(gained < -1e-9)),  # ignore rounding
            )
        return differences

    def require_same_queries(self, other: Resampled) -> None:
        """Raise a `UserError` unless both models were evaluated on the same queries.

        Matching pair ids do not imply the same queries if the data sets differ.
        """
        other_data = None not in (self.data, other.data) and self.data != other.data
        if (
            other_data
            or len(self.positives) != len(other.positives)
            or not all(
                np.array_equal(one.pairs, two.pairs)
                for one, two in zip(self.positives, other.positives, strict=True)
            )
        ):
            raise UserError(
                "the two models were evaluated on different queries; evaluate both on the same."
            )


def bootstrap(
    folds: Sequence[JudgedFold],
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
    level: float = LEVEL,
) -> dict[str, Interval]:
    """Compute the interval of every figure of `Metrics.figures`."""
    return Resampled.of(folds, resamples=resamples, seed=seed).intervals(level=level)


def paired_bootstrap(
    first: Sequence[JudgedFold],
    second: Sequence[JudgedFold],
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
    level: float = LEVEL,
) -> dict[str, Difference]:
    """Compare second with first in rsum and every recall, with the same draws of the same queries.

    A query that is hard for one model is mostly hard for the other as well; drawn together, this
    cancels out, so that smaller differences become visible than with two separate intervals.
    """
    one, two = (Resampled.of(folds, resamples=resamples, seed=seed) for folds in (first, second))
    return two.minus(one, level=level)


def resampled_figures(
    folds: Sequence[JudgedFold], *, resamples: int = RESAMPLES, seed: int = 0
) -> dict[str, Doubles]:
    """Compute every figure in every resample; equal seeds draw equal queries. (resamples,) each"""
    random = np.random.default_rng(seed)
    by_fold = [list(_figures_of_draws(fold, resamples, random)) for fold in folds]
    names = by_fold[0][0]
    return {
        name: np.mean([np.concatenate([part[name] for part in parts]) for parts in by_fold], axis=0)
        for name in names
    }


def clusters(positives: Positives) -> tuple[Ids, Ids]:
    """Group the images and texts that positives connect; groups are drawn together. (N,), (M,)

    >>> pairs = [(0, 0), (1, 1), (1, 2), (2, 2), (3, 3)]
    >>> positives = Positives.from_pairs(pairs, n_images=4, n_texts=4)
    >>> images, texts = clusters(positives)
    >>> images.tolist(), texts.tolist()
    ([0, 1, 1, 2], [0, 1, 1, 2])
    """
    images, texts = positives.pairs.T
    of_images = np.arange(positives.n_images)
    while True:
        of_texts = np.full(positives.n_texts, positives.n_images)
        np.minimum.at(of_texts, texts, of_images[images])
        joined = of_images.copy()
        np.minimum.at(joined, images, of_texts[texts])
        if np.array_equal(joined, of_images):
            break
        of_images = joined
    numbers = np.unique(np.concatenate([of_images, of_texts]), return_inverse=True)[1]
    return numbers[: positives.n_images], numbers[positives.n_images :]


def _figures_of_draws(
    fold: JudgedFold, resamples: int, random: np.random.Generator
) -> Iterator[dict[str, Doubles]]:
    """Compute the figures of some resamples at a time, from how often each cluster is drawn."""
    of_images, of_texts = clusters(fold.positives)
    n_clusters = int(max(of_images.max(), of_texts.max())) + 1
    at_once = max(1, _AT_ONCE // max(len(of_images), len(of_texts)))
    for start in range(0, resamples, at_once):
        size = min(at_once, resamples - start)
        drawn = random.integers(n_clusters, size=(size, n_clusters))
        drawn += n_clusters * np.arange(size)[:, None]
        times = np.bincount(drawn.reshape(-1), minlength=size * n_clusters)
        weights = times.reshape(size, n_clusters)
        i2t = _weighted(fold.ranks.i2t, of_images, weights)
        t2i = _weighted(fold.ranks.t2i, of_texts, weights)
        figures = {f"i2t_{name}": values for name, values in i2t.items()}
        figures |= {f"t2i_{name}": values for name, values in t2i.items()}
        yield figures | {"rsum": sum((figures[name] for name in RECALLS), np.zeros(size))}


def _weighted(ranks: Ids, of_queries: Ids, weights: Ids) -> dict[str, Doubles]:
    """Compute `DirectionMetrics` figures with each cluster counted by its weight. (S, clusters)"""
    n_clusters = weights.shape[1]

    def total(values: npt.ArrayLike) -> Doubles:
        sums = np.bincount(of_queries, weights=np.asarray(values, float), minlength=n_clusters)
        return np.asarray(weights @ sums)

    n_queries = total(np.ones(len(ranks)))
    return {
        "r1": 100 * total(ranks < 1) / n_queries,
        "r5": 100 * total(ranks < 5) / n_queries,
        "r10": 100 * total(ranks < 10) / n_queries,
        "median_rank": _medians(ranks, weights[:, of_queries]) + 1,
        "mean_rank": total(ranks) / n_queries + 1,
    }


def _medians(ranks: Ids, times: Ids) -> Doubles:
    """Return the floor of the median of ranks, each repeated `times` times. (S, queries)"""
    order = np.argsort(ranks)
    up_to = np.cumsum(times[:, order], axis=1)
    n_queries = up_to[:, -1]
    middle = [
        ranks[order][np.sum(up_to <= place[:, None], axis=1)]
        for place in ((n_queries - 1) // 2, n_queries // 2)
    ]
    return np.asarray(np.floor((middle[0] + middle[1]) / 2))


def percentiles(values: Doubles, level: float = LEVEL) -> tuple[float, float]:
    tail = 50 * (1 - level)
    low, high = np.percentile(values, [tail, 100 - tail])
    return float(low), float(high)
