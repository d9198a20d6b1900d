"""Effects: what a setting changes, with the error of both trainings and queries.

A difference of two settings would change with other trainings (weights, batches) and with other
queries. With trainings k of S seeds and queries i of N, the figure of a setting r is

    y_rki = mean_r + run_rk + query_ri + both_rki

so the mean over seeds and queries of a contrast has the variance A / S + B / N + C / (S N). Three
things can be measured: how runs differ (A + C / N), how queries differ in the mean over the runs
(B + C / S), and C itself. The variance is the first over S, plus the second over N, less C / (S N),
which both contain (crossed random effects: Clark 1973; Brennan, Generalizability Theory, 2001).

Three seeds say little about their own deviation, so that of all rows of a model is pooled: what is
left of their figures after an effect of the row and one of the seed, which rows share because they
start from the same weights (`RunError`). A row whose trainings differ far more than the others' is
left out of the pool by Cochran's test (ISO 5725-2) and keeps an error of its own.

Degrees of freedom of the sum are Satterthwaite's, its quantiles Student's. Of several effects that
are judged together, p-values are corrected by Holm's method.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, sqrt

import numpy as np
import numpy.typing as npt

from aoq.evaluation.bootstrap import LEVEL, Interval, clusters
from aoq.evaluation.protocols import JudgedFold
from aoq.types import Ids

Doubles = npt.NDArray[np.float64]
BySeed = Mapping[int, float]
OUTLYING = 0.01  # significance at which Cochran's test leaves a row out of the pool


@dataclass(frozen=True)
class Variance:
    """A part of the variance of an effect, with its degrees of freedom; inf if it is known."""

    value: float
    degrees: float = inf

    def times(self, factor: float) -> Variance:
        return Variance(self.value * factor, self.degrees)

    @classmethod
    def sum(cls, parts: Sequence[Variance]) -> Variance:
        """Add independent parts, with Satterthwaite's degrees of freedom.

        >>> Variance.sum([Variance(1.0, 4), Variance(1.0, 4)])
        Variance(value=2.0, degrees=8.0)
        """
        total = sum(part.value for part in parts)
        spent = sum(part.value**2 / part.degrees for part in parts)
        return cls(total, total**2 / spent if spent else inf)


@dataclass(frozen=True)
class Effect:
    """A difference, or a figure itself, and the parts of its variance."""

    value: float
    runs: Variance
    "Of the mean over the trainings."
    queries: Variance | None = None
    "Of the mean over the queries; none without ranks."
    both: Variance = Variance(0.0)
    "What is contained in both of them."

    @property
    def error(self) -> float:
        """The standard error.

        >>> Effect(5.0, Variance(4.0, 20), Variance(6.0, 999), Variance(1.0, 1998)).error
        3.0
        """
        return sqrt(max(self._variance, self.runs.value, self._of_queries.value))

    @property
    def degrees(self) -> float:
        """Satterthwaite's degrees of freedom of the error."""
        parts = (self.runs, self._of_queries, self.both)
        spent = sum(part.value**2 / part.degrees for part in parts)
        return self.error**4 / spent if 0 < spent < inf else inf

    @property
    def _of_queries(self) -> Variance:
        return self.queries or Variance(0.0)

    @property
    def _variance(self) -> float:
        return self.runs.value + self._of_queries.value - self.both.value

    def interval(self, *, level: float = LEVEL) -> Interval:
        """Return the range that contains the true effect with this probability."""
        half = t_quantile((1 + level) / 2, self.degrees) * self.error
        return Interval(self.value, self.value - half, self.value + half)

    def p_within(self, low: float, high: float) -> float:
        """Test whether the true effect lies between two bounds: two one-sided tests.

        The p-value is the smallest at which the interval of level 1 - p is within the bounds
        (Schuirmann 1987); with only one bound, that of an ordinary two-sided test.
        """
        tails = (self._tail(self.value - low), self._tail(high - self.value))
        return min(1.0, 2 * max(tails))

    def p_outside(self, low: float, high: float) -> float:
        """Test whether it does not: the smallest p at which the interval is beyond one bound."""
        tails = (self._tail(low - self.value), self._tail(self.value - high))
        return min(1.0, 2 * min(tails))

    def _tail(self, distance: float) -> float:
        """Return how often an estimate is as far beyond a bound if the truth is at the bound."""
        if distance in (inf, -inf) or not self.error:
            return 0.0 if distance > 0 else 1.0
        return t_tail(distance / self.error, self.degrees)


@dataclass(frozen=True)
class RunError:
    """How much the trainings of one model differ, pooled over its rows."""

    variance: Variance
    "Of one training, besides what its seed does to all rows."
    left_out: tuple[str, ...] = ()
    "Rows whose trainings differ far more."

    @classmethod
    def pooled(cls, rows: Mapping[str, BySeed]) -> RunError | None:
        """Pool the rows of one model; none if no residual is left.

        >>> rows = {"a": {0: 1.0, 1: 3.0}, "b": {0: 2.0, 1: 6.0}}
        >>> error = RunError.pooled(rows).variance
        >>> round(error.value, 6), error.degrees
        (1.0, 1)
        """
        rows = {label: values for label, values in rows.items() if len(values) > 1}
        left_out = []
        while (label := outlying(rows)) is not None:
            left_out.append(label)
            rows = {other: values for other, values in rows.items() if other != label}
        squares, degrees = _residual(rows)
        if degrees < 1:
            return None
        return cls(Variance(squares / degrees, degrees), tuple(left_out))


def outlying(rows: Mapping[str, BySeed], *, significance: float = OUTLYING) -> str | None:
    """Find the row whose variance is too large a share of all, by Cochran's test."""
    from scipy.special import fdtri

    if len(rows) < 2:
        return None
    variances = {label: float(np.var([*by.values()], ddof=1)) for label, by in rows.items()}
    label = max(variances, key=lambda label: variances[label])
    degrees = float(np.mean([len(by) - 1 for by in rows.values()]))
    others = len(rows) - 1
    f = fdtri(degrees, others * degrees, 1 - significance / len(rows))
    total = sum(variances.values())
    is_large = total > 0 and variances[label] / total > 1 / (1 + others / f)
    return label if is_large else None


def _residual(rows: Mapping[str, BySeed]) -> tuple[float, int]:
    """Fit an effect of every row and of every seed; return the squares left, and their degrees."""
    found = [(row, seed, value) for row, by in rows.items() for seed, value in by.items()]
    if not found:
        return 0.0, 0
    labels, seeds, values = zip(*found, strict=True)
    one_hot = [
        np.equal.outer(np.asarray(names), np.unique(names)).astype(float)
        for names in (labels, seeds)
    ]
    design = np.hstack(one_hot)
    fitted, _, rank, _ = np.linalg.lstsq(design, np.asarray(values), rcond=None)
    residual = np.asarray(values) - design @ fitted
    return float(residual @ residual), len(values) - int(rank)


def own_variance(values: Sequence[float]) -> Variance:
    """Return the variance of a mean from its values alone; infinite if there is only one."""
    if len(values) < 2:
        return Variance(inf, 1)
    return Variance(float(np.var(values, ddof=1)) / len(values), len(values) - 1)


def query_influence(fold: JudgedFold) -> Doubles:
    """Return how much each image with its texts moves rsum, in the mean 0. (clusters,)

    rsum is the sum of six shares of queries. Images are drawn with all their texts, so a share is
    the ratio of two sums over the images, and its influence is that of the first less the share
    times that of the second (the linearised form of the cluster bootstrap).
    """
    of_images, of_texts = clusters(fold.positives)
    count = int(max(of_images.max(), of_texts.max())) + 1
    sides = ((fold.ranks.i2t, of_images), (fold.ranks.t2i, of_texts))
    return np.asarray(np.sum([_influence(ranks, which, count) for ranks, which in sides], axis=0))


def _influence(ranks: Ids, of_queries: Ids, count: int) -> Doubles:
    hits = 100.0 * np.less.outer(ranks, (1, 5, 10)).sum(axis=1)
    centred = np.bincount(of_queries, weights=hits - hits.mean(), minlength=count)
    return np.asarray(count * centred / len(ranks))


@dataclass(frozen=True)
class QueryError:
    """How much other queries would change the mean over the trainings."""

    mean: Variance
    both: Variance
    "What other trainings would change with the queries; contained in the error of the runs too."

    @classmethod
    def of(cls, influence: Doubles) -> QueryError:
        """Take the influence of every image with each seed. (S, clusters)"""
        seeds, count = influence.shape
        by_image = influence.mean(axis=0)
        own = influence - by_image
        own = own - own.mean(axis=1, keepdims=True)
        degrees = (seeds - 1) * (count - 1)
        both = float(np.sum(own**2)) / degrees / (seeds * count) if degrees else 0.0
        mean = float(np.var(by_image, ddof=1)) / count
        return cls(Variance(mean, count - 1), Variance(both, degrees or inf))

    @classmethod
    def mean_of_splits(cls, found: Sequence[QueryError], *, n_splits: int) -> QueryError:
        """Return the error of the mean over splits; splits without ranks count as the others do."""

        def mean(parts: Sequence[Variance]) -> Variance:
            value = float(np.mean([part.value for part in parts])) / n_splits
            return Variance(value, sum(part.degrees for part in parts))

        return cls(mean([part.mean for part in found]), mean([part.both for part in found]))


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct p-values so that all claims with p < 0.05 are right with a probability of 95 %.

    >>> [round(p, 6) for p in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    corrected, highest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=lambda place: p_values[place])):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[place]))
        corrected[place] = highest
    return corrected


def t_quantile(probability: float, degrees: float) -> float:
    """Return the quantile of Student's distribution.

    >>> round(t_quantile(0.975, 60), 3), round(t_quantile(0.975, inf), 3)
    (2.0, 1.96)
    """
    from scipy.special import ndtri, stdtrit

    return float(ndtri(probability) if degrees == inf else stdtrit(degrees, probability))


def t_tail(t: float, degrees: float) -> float:
    """Return the probability that Student's t is higher."""
    from scipy.special import ndtr, stdtr

    return float(ndtr(-t) if degrees == inf else stdtr(degrees, -t))
