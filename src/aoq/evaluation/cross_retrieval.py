"""The cross-retrieval rank: how well a positive pair is found in both directions at once.

A pair may be easy to find from its text and hard from its image. The paper's supplement takes, for
each pair, the worse of its two ranks: r_i, the image's among the images for the text, and r_t, the
text's among the texts for the image, both from 1. COCO has five texts per image, so r_t has a range
five times as large; the paper compensates for that with max(5 r_i - 4, r_t).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from aoq.evaluation.protocols import JudgedFold
from aoq.evaluation.ranks import PairRanks
from aoq.types import Positives

Doubles = npt.NDArray[np.float64]
# The paper mentions ranks of 1 and ranks above 200; the steps between are ours.
LAST_RANKS = (1, 5, 10, 20, 50, 100, 200)


def cross_retrieval_ranks(ranks: PairRanks, positives: Positives) -> Doubles:
    """Compute max(1 + c (r_i - 1), r_t) of every positive pair, from 1. (P,)

    c is the number of wrong texts for the image divided by the number of wrong images for the
    text, so that the worst r_i weighs as much as the worst r_t. With k texts for every image it
    is exactly k, (k N - k) / (N - 1), so on COCO this is the paper's max(5 r_i - 4, r_t); with
    uneven numbers of texts it differs slightly between pairs, and ranks may be fractions.

    >>> positives = Positives.from_pairs([(0, 0), (0, 1), (1, 2), (1, 3)], n_images=2, n_texts=4)
    >>> ranks = PairRanks(images=np.array([0, 1, 0, 1]), texts=np.array([0, 0, 1, 2]))
    >>> cross_retrieval_ranks(ranks, positives).tolist()
    [1.0, 3.0, 2.0, 3.0]
    """
    images, texts = positives.pairs.T
    wrong_texts = positives.n_texts - positives.texts_per_image()[images]
    wrong_images = positives.n_images - positives.swapped.texts_per_image()[texts]
    of_images: Doubles = ranks.images * wrong_texts / np.maximum(wrong_images, 1)
    return np.maximum(of_images, ranks.texts) + 1.0


@dataclass(frozen=True)
class Bin:
    """Pairs with a cross-retrieval rank above that of the previous bin, up to `last`."""

    name: str
    last: float
    count: int
    share: float
    "In percent."


@dataclass(frozen=True, eq=False)
class CrossRetrieval:
    """The cross-retrieval ranks of all positive pairs, one fold after the other."""

    ranks: Doubles  # (P,)

    @classmethod
    def of(cls, folds: Sequence[JudgedFold]) -> CrossRetrieval:
        parts = [cross_retrieval_ranks(fold.pair_ranks, fold.positives) for fold in folds]
        return cls(np.concatenate(parts))

    @property
    def median(self) -> float:
        return float(np.median(self.ranks))

    def histogram(self, last_ranks: Sequence[int] = LAST_RANKS) -> list[Bin]:
        """Count the pairs in each range of ranks: the data of the supplement's figure.

        Every range ends at one of `last_ranks`; a last one holds all higher ranks.

        >>> ranks = CrossRetrieval(np.array([1.0, 1.0, 2.0, 300.0]))
        >>> [(part.name, part.count) for part in ranks.histogram([1, 5, 200])]
        [('1', 2), ('2-5', 1), ('6-200', 0), ('>200', 1)]
        """
        edges = [0, *last_ranks]
        counts = np.bincount(np.searchsorted(last_ranks, self.ranks), minlength=len(edges))
        names = [
            str(last) if last == before + 1 else f"{before + 1}-{last}"
            for before, last in zip(edges, last_ranks, strict=False)
        ]
        return [
            Bin(name, last, int(count), 100 * int(count) / len(self.ranks))
            for name, last, count in zip(
                [*names, f">{edges[-1]}"], [*last_ranks, np.inf], counts, strict=True
            )
        ]
