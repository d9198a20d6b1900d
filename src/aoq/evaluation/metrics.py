"""R@1, R@5, R@10, median and mean rank in both directions, and their sum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields

import numpy as np

from aoq.evaluation.ranks import Ranks
from aoq.types import Ids

RECALLS = tuple(f"{side}_{name}" for side in ("i2t", "t2i") for name in ("r1", "r5", "r10"))
FIGURES = (
    *(f"{side}_{field}" for side in ("i2t", "t2i") for field in ("median_rank", "mean_rank")),
    *RECALLS,
    "rsum",
)
PAPER_FIGURES = (*RECALLS, "rsum")  # of its tables; higher is better


@dataclass(frozen=True)
class DirectionMetrics:
    """Recalls in percent, and the median and mean rank; ranks count from 1."""

    r1: float
    r5: float
    r10: float
    median_rank: float
    mean_rank: float

    @classmethod
    def from_ranks(cls, ranks: Ids) -> DirectionMetrics:
        """Compute the metrics of `ranks`, which count from 0, as in `Ranks`.

        >>> DirectionMetrics.from_ranks(np.array([0, 0, 3, 20]))
        DirectionMetrics(r1=50.0, r5=75.0, r10=75.0, median_rank=2.0, mean_rank=6.75)
        """

        def recall(k: int) -> float:
            return 100 * int(np.count_nonzero(ranks < k)) / len(ranks)

        return cls(
            r1=recall(1),
            r5=recall(5),
            r10=recall(10),
            median_rank=float(np.floor(np.median(ranks)) + 1),
            mean_rank=float(np.mean(ranks) + 1),
        )

    @classmethod
    def mean(cls, parts: Sequence[DirectionMetrics]) -> DirectionMetrics:
        """Average every figure, with equal weight for each part."""
        names = [field.name for field in fields(cls)]
        return cls(**{n: float(np.mean([getattr(part, n) for part in parts])) for n in names})


@dataclass(frozen=True)
class Metrics:
    """Metrics of both directions: i2t retrieves texts for an image, t2i images for a text."""

    i2t: DirectionMetrics
    t2i: DirectionMetrics

    @classmethod
    def from_ranks(cls, ranks: Ranks) -> Metrics:
        return cls(
            i2t=DirectionMetrics.from_ranks(ranks.i2t), t2i=DirectionMetrics.from_ranks(ranks.t2i)
        )

    @classmethod
    def mean(cls, parts: Sequence[Metrics]) -> Metrics:
        """Average the figures of folds, as reported for COCO 1K."""
        return cls(
            i2t=DirectionMetrics.mean([part.i2t for part in parts]),
            t2i=DirectionMetrics.mean([part.t2i for part in parts]),
        )

    @property
    def rsum(self) -> float:
        """The sum of the six recalls."""
        return sum(side.r1 + side.r5 + side.r10 for side in (self.i2t, self.t2i))

    @property
    def r1_r5(self) -> float:
        """R@1 + R@5 of both directions, by which the published program selects."""
        return sum(side.r1 + side.r5 for side in (self.i2t, self.t2i))

    def figures(self) -> dict[str, float]:
        """Return all figures in a flat dict: `i2t_r1`, ..., `rsum`."""
        flat = {
            f"{name}_{key}": value
            for name, side in (("i2t", self.i2t), ("t2i", self.t2i))
            for key, value in asdict(side).items()
        }
        return flat | {"rsum": self.rsum}

    def as_dict(self) -> dict[str, float]:
        """Return all figures flat and rounded, as results are stored and displayed."""
        return {key: round(value, 3) for key, value in self.figures().items()}
