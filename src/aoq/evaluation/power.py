"""Power: what a comparison will be able to decide, before anything is trained.

The test of `aoq.evaluation.effects` finds that a true difference lies between two bounds if the
interval around the estimate does. How often it will depends on the deviation of the trainings, on
their number and on how many claims are judged together. The chance is exact for a normal estimate:
the mean over the error's distribution (chi) of the chance given the error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, sqrt

import numpy as np

from aoq.evaluation.bootstrap import LEVEL
from aoq.evaluation.effects import t_quantile

POWER = 0.8
DIFFERENCE = 3.0
"Of rsum: the smallest difference that is worth finding."
DEVIATION = 2.6
"Of rsum over trainings of VSRN, on dev and test of Flickr8k together, besides the seeds' effect."
MOST_SEEDS = 100
_POINTS = 1000  # of the error's distribution


@dataclass(frozen=True, kw_only=True)
class Design:
    """A comparison of rows that will be trained with the same seeds."""

    rows: int = 2
    "Rows of the model, whose deviation is pooled."
    deviation: float = DEVIATION
    "Of one training, besides what its seed does to all rows."
    weight: float = 2.0
    "Sum of the squared weights of the rows: 2 for a row less another."
    queries: float = 0.0
    "Variance that other queries add, whatever the number of seeds."
    claims: int = 1
    "Claims that are judged together; the first of them has to pass the strictest level."

    def power(
        self, true: float, *, seeds: int, low: float = 0.0, high: float = inf, level: float = LEVEL
    ) -> float:
        """Return the chance to find that the effect lies between two bounds.

        >>> round(Design(rows=20, deviation=2.6).power(3.0, seeds=12), 2)
        0.8
        """
        from scipy.special import chdtri, ndtr

        pooled = (self.rows - 1) * (seeds - 1)
        if pooled < 1:
            return 0.0
        of_runs = self.deviation**2 * self.weight / seeds
        error = sqrt(of_runs + self.queries)
        degrees = (
            pooled * (error**2 / of_runs) ** 2
        )  # Satterthwaite's; the part of queries is known
        probabilities = (np.arange(_POINTS) + 0.5) / _POINTS
        estimated = error * np.sqrt(chdtri(degrees, probabilities) / degrees)
        half = t_quantile(1 - (1 - level) / 2 / self.claims, degrees) * estimated
        chances = ndtr((high - half - true) / error) - ndtr((low + half - true) / error)
        return float(np.mean(np.maximum(chances, 0.0)))

    def seeds_for(
        self, true: float, *, low: float = 0.0, high: float = inf, power: float = POWER
    ) -> int | None:
        """Return the fewest seeds with this power; none if a hundred are not enough."""
        numbers = range(2, MOST_SEEDS + 1)
        enough = (n for n in numbers if self.power(true, seeds=n, low=low, high=high) >= power)
        return next(enough, None)

    def smallest_difference(self, *, seeds: int, power: float = POWER) -> float:
        """Return the smallest true difference that is found with this power; inf if none is."""
        return self._smallest(power, lambda size: self.power(size, seeds=seeds))

    def smallest_bound(self, *, seeds: int, power: float = POWER) -> float:
        """Return the smallest bound within which two equal rows are found to be."""
        return self._smallest(
            power, lambda size: self.power(0.0, seeds=seeds, low=-size, high=size)
        )

    def _smallest(self, power: float, chance: Callable[[float], float]) -> float:
        """Bisect; chances grow with the size."""
        high = self.deviation
        while chance(high) < power:
            high *= 2
            if high > 1e6 * self.deviation:
                return inf
        low = 0.0
        while high - low > 1e-3 * high:
            middle = (low + high) / 2
            low, high = (low, middle) if chance(middle) >= power else (middle, high)
        return high
