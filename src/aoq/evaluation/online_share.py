"""Measures how the hardest negative of a batch ranks in the whole training set.

The paper's first point: of N texts, the hardest among the B - 1 negatives of a random batch has a
rank of about N / B in the whole set, and is in the top 100 with probability 1 - (1 - 100/N)^(B-1):
2.2 % on COCO with batches of 128. That holds if batches are drawn at random and every negative has
its own score. This module measures it for random batches of a training set and a trained model:
the rank of each anchor's hardest in-batch negative among all negatives of the anchor, from 1, in
both directions. Negatives with equal scores share the better rank.

Every anchor is scored against everything, in blocks; batches of all sizes consist of the same
anchors, so that one pass is enough for all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from aoq.config import Direction
from aoq.errors import UserError
from aoq.evaluation.bootstrap import RESAMPLES, Interval, percentiles
from aoq.progress import progress_bar
from aoq.randomness import epoch_order
from aoq.scoring.blocks import BLOCK_SIZE, ranges
from aoq.scoring.encoded import EncodedDataset
from aoq.scoring.precision import as_single
from aoq.scoring.protocol import Scorer
from aoq.types import Floats, Ids, Positives

E = TypeVar("E")
BATCH_SIZES = (16, 32, 64, 128)
TOP = 100
PAIRS = 8192
_SCORES_AT_ONCE = 2**24


@dataclass(frozen=True)
class OnlineShare:
    """Ranks of the hardest in-batch negatives of one batch size and direction."""

    direction: Direction
    batch_size: int
    top: int
    candidates: int
    "Number of candidates: texts of the training set for i2t, its images for t2i: N."
    anchors: int
    share: Interval
    "Share of ranks up to `top`, in percent."
    mean_rank: Interval

    @property
    def share_by_formula(self) -> float:
        """The expected share: 1 - (1 - top/N)^(B-1), in percent."""
        return 100 * (1 - (1 - min(self.top / self.candidates, 1)) ** (self.batch_size - 1))

    @property
    def rank_by_formula(self) -> float:
        """The expected mean rank: N / B."""
        return self.candidates / self.batch_size

    @property
    def shown(self) -> dict[str, str]:
        """Return a table row, by the headings of its columns."""
        share, rank = self.share, self.mean_rank
        return {
            "": self.direction,
            "batch B": str(self.batch_size),
            "N": f"{self.candidates:,}",
            f"in the top {self.top}": f"{share.value:.1f} % [{share.low:.1f}, {share.high:.1f}]",
            "by formula": f"{self.share_by_formula:.1f} %",
            "mean rank": f"{rank.value:,.0f} [{rank.low:,.0f}, {rank.high:,.0f}]",
            "N/B": f"{self.rank_by_formula:,.0f}",
        }

    def as_dict(self) -> dict[str, Any]:
        """Return all values flat, with the formulas, for programs."""
        flat: dict[str, Any] = {}
        for name, value in asdict(self).items():
            inner = isinstance(value, dict)
            flat[name] = value["value"] if inner else value
            flat |= {f"{name}_{end}": value[end] for end in ("low", "high") if inner}
        formulas = {"share": self.share_by_formula, "rank": self.rank_by_formula}
        return flat | {f"{name}_by_formula": value for name, value in formulas.items()}


def online_shares(
    scorer: Scorer[E],
    encoded: EncodedDataset[E],
    positives: Positives,
    *,
    batch_sizes: Sequence[int] = BATCH_SIZES,
    top: int = TOP,
    pairs: int = PAIRS,
    seed: int = 0,
) -> list[OnlineShare]:
    """Measure both directions for every batch size, over batches of `n_pairs` pairs in total."""
    n_pairs = min(pairs, len(positives.pairs))
    if not batch_sizes or min(batch_sizes) < 2 or max(batch_sizes) > n_pairs:
        raise UserError(
            f"batch sizes are {list(batch_sizes)}; expected from 2 to {n_pairs:,}, the number of "
            "pairs to measure."
        )
    drawn = positives.pairs[epoch_order(len(positives.pairs), seed=seed, epoch=0)[:n_pairs]]
    found = []
    for direction in ("i2t", "t2i"):
        hardest = _Hardest(scorer, encoded, positives, direction, drawn)
        for size, ranks in hardest.ranks(batch_sizes).items():
            found.append(
                OnlineShare(
                    direction=direction,
                    batch_size=size,
                    top=top,
                    candidates=hardest.n_candidates,
                    anchors=ranks.size,
                    share=_over_batches(np.where(ranks <= top, 100.0, 0.0), seed=seed),
                    mean_rank=_over_batches(ranks.astype(np.float64), seed=seed),
                )
            )
    return sorted(found, key=lambda share: (share.direction, share.batch_size))


@dataclass(frozen=True, eq=False)
class _Hardest(Generic[E]):
    """Finds the hardest in-batch negatives of one direction."""

    scorer: Scorer[E]
    encoded: EncodedDataset[E]
    positives: Positives
    direction: Direction
    pairs: Ids  # (P, 2), in the order of the batches

    @property
    def n_candidates(self) -> int:
        positives = self.positives
        return positives.n_texts if self.direction == "i2t" else positives.n_images

    def ranks(self, batch_sizes: Sequence[int]) -> dict[int, Ids]:
        """Return, by batch size, the ranks of the anchors of every whole batch. (batches, B)

        An anchor without a negative in its batch ranks after all of its negatives.
        """
        anchors, others = self.pairs.T if self.direction == "i2t" else self.pairs.T[::-1]
        found = {size: np.empty(len(anchors), np.int64) for size in batch_sizes}
        for part, scores in self._rows(anchors):
            for size, ranks in found.items():
                hardest = np.empty((len(scores), 1), scores.dtype)
                for row, place in enumerate(range(part.start, part.stop)):
                    start = place - place % size  # where its batch begins
                    hardest[row] = scores[row, others[start : start + size]].max()
                ranks[part] = 1 + (scores > hardest).sum(axis=1)
        return {
            size: ranks[: len(ranks) // size * size].reshape(-1, size)
            for size, ranks in found.items()
        }

    def _rows(self, anchors: Ids) -> Iterator[tuple[slice, Floats]]:
        """Yield the scores of some anchors against everything; positives have -inf. (b, N)"""
        parts = ranges(len(anchors), max(1, _SCORES_AT_ONCE // self.n_candidates))
        relation = self.positives if self.direction == "i2t" else self.positives.swapped
        with progress_bar(f"rank {self.direction}", total=len(parts), unit="blocks") as update:
            for part in parts:
                scores = np.concatenate(
                    [
                        self._block(torch.from_numpy(anchors[part]), candidates)
                        for candidates in ranges(self.n_candidates, BLOCK_SIZE)
                    ],
                    axis=1,
                )
                rows, columns = relation.of_images(anchors[part]).pairs.T
                scores[rows, columns] = -np.inf
                yield part, scores
                update()

    def _block(self, anchors: torch.Tensor, candidates: slice) -> Floats:
        images, texts = self.encoded.images, self.encoded.texts
        with torch.no_grad():
            if self.direction == "i2t":
                scores = self.scorer.score_matrix(images[anchors], texts[candidates])
            else:
                scores = self.scorer.score_matrix(images[candidates], texts[anchors]).T
        return np.asarray(as_single(scores).cpu().numpy())


def _over_batches(values: npt.NDArray[np.float64], *, seed: int) -> Interval:
    """Return the mean and its interval; whole batches are drawn, as anchors share negatives."""
    means = values.mean(axis=1)
    draws = np.random.default_rng(seed).integers(len(means), size=(RESAMPLES, len(means)))
    return Interval(float(means.mean()), *percentiles(means[draws].mean(axis=1)))
