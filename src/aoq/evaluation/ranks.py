"""The ranks of right answers, from blocks of the score matrix.

Ranks count from 0: the number of wrong answers that are not below the right one. So ties and NaN
scores count against the model; another positive of the query never does. Right and wrong scores
both come from `score_matrix`: `score_pairs` may be slightly higher, which would make a collapsed
model (all scores equal) look perfect. Scores computed in different blocks may still differ in the
last digits; wrong answers within `TIE` of the right one are therefore ties too, and in half
precision those within its last digit.

Where a processor multiplies rounded numbers much faster, large sets are ranked by those products:
an answer whose approximate score is surely above, or below, is counted without its float32 score
(`aoq.scoring.approximation`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from aoq.config import FastProduct, Product
from aoq.progress import progress_bar
from aoq.scoring.approximation import (
    WORTH_MEASURING,
    RoundedBlocks,
    approximable,
    highest_products,
    lowest_products,
    machine_speeds,
    score_pairs,
)
from aoq.scoring.blocks import BLOCK_SIZE, evenly_spread, ranges
from aoq.scoring.encoded import EncodedDataset
from aoq.scoring.precision import as_single
from aoq.scoring.protocol import Scorer
from aoq.threads import worker_threads
from aoq.types import Ids, Positives, require_tensor

E = TypeVar("E")
TIE = 1e-6
_MATRIX = "score_matrix(images, texts)"
_DOUBTFUL = 16  # of so many scores of a block, one may need float32
_WORTH_IT = 0.7  # of the time of float32: a rounded product must be much faster
_PAIRS_AT_ONCE = 256  # pairs whose right scores come from one small block


@dataclass(frozen=True)
class Ranks:
    """0-based ranks for every image query (i2t) and every text query (t2i)."""

    i2t: Ids  # (N,)
    t2i: Ids  # (M,)


@dataclass(frozen=True)
class PairRanks:
    """0-based ranks of both members of every positive pair, in the order of `Positives.pairs`.

    The image is ranked for the text among the images that are not the text's, the text for the
    image among the texts that are not the image's.
    """

    images: Ids  # (P,)
    texts: Ids  # (P,)

    def best(self, positives: Positives) -> Ranks:
        """Return the rank of the best right answer of every query; without one, it ranks last."""
        i2t = np.full(positives.n_images, positives.n_texts)
        t2i = np.full(positives.n_texts, positives.n_images)
        np.minimum.at(i2t, positives.pairs[:, 0], self.texts)
        np.minimum.at(t2i, positives.pairs[:, 1], self.images)
        return Ranks(i2t=i2t, t2i=t2i)


def pair_ranks_in_blocks(
    scorer: Scorer[E],
    encoded: EncodedDataset[E],
    positives: Positives,
    *,
    block_size: int = BLOCK_SIZE,
    product: Product = "auto",
) -> PairRanks:
    """Compute ranks for every positive pair without holding the score matrix.

    Each thread scores a block by itself, as in mining, and counts within it. `product` says how
    scores are compared: in float32, or rounded first; by default, what is faster. The ranks are
    the same.
    """
    by_text = np.lexsort(positives.pairs.T)  # the pairs, ordered by text
    floors = _floors(_positive_scores(scorer, encoded, positives))
    fast = _fast_product(scorer, encoded, product)
    count = _Count(scorer, encoded, positives, floors, floors[by_text], fast)
    texts, images = np.zeros((2, len(positives.pairs)), np.int64)
    blocks = [
        (rows, columns)
        for rows in ranges(positives.n_images, block_size)
        for columns in ranges(positives.n_texts, block_size)
    ]
    with (
        progress_bar("rank", total=len(blocks), unit="blocks") as update,
        worker_threads(encoded.device) as workers,
    ):
        for counted in workers.map(count.block, *zip(*blocks, strict=True)):
            texts[counted.of_images] += counted.texts
            images[by_text[counted.of_texts]] += counted.images
            update()
    of_image, of_text = positives.pairs.T
    return PairRanks(  # with a NaN right score, positives were counted too
        images=np.minimum(images, _wrong_texts(positives.swapped)[of_text]),
        texts=np.minimum(texts, _wrong_texts(positives)[of_image]),
    )


@dataclass(frozen=True)
class _Counted:
    """What one block adds to the ranks, and the pairs it adds them to."""

    of_images: slice
    texts: npt.NDArray[np.int32]
    of_texts: slice
    images: npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class _Count(Generic[E]):
    """Counts the wrong answers in a block that are not below the right ones."""

    scorer: Scorer[E]
    encoded: EncodedDataset[E]
    positives: Positives
    floors: npt.NDArray[np.float64]  # (P,), ordered by image
    floors_by_text: npt.NDArray[np.float64]  # (P,)
    fast: FastProduct | None = None
    _rounded_images: RoundedBlocks = field(default_factory=RoundedBlocks)
    _rounded_texts: RoundedBlocks = field(default_factory=RoundedBlocks)

    def block(self, images: slice, texts: slice) -> _Counted:
        """Count in a block, by a rounded product if that leaves few doubts."""
        counted = None if self.fast is None else self._by_rounded_product(images, texts, self.fast)
        return counted or self._by_scores(images, texts)

    def _new(self, images: slice, texts: slice) -> _Counted:
        of_images = _pairs_of(self.positives, images)
        of_texts = _pairs_of(self.positives.swapped, texts)
        return _Counted(
            of_images,
            np.zeros(of_images.stop - of_images.start, np.int32),
            of_texts,
            np.zeros(of_texts.stop - of_texts.start, np.int32),
        )

    def _by_rounded_product(
        self, images: slice, texts: slice, kind: FastProduct
    ) -> _Counted | None:
        """Count by approximate scores, and float32 scores where those leave a doubt."""
        from aoq.evaluation.kernels import Doubts, RoundedBlock, count_rounded

        vectors: list[Any] = [self.encoded.images[images], self.encoded.texts[texts]]
        image_vectors, text_vectors = (part.vectors.contiguous() for part in vectors)
        rows = self._rounded_images.of(image_vectors, images, kind)
        columns = self._rounded_texts.of(text_vectors, texts, kind)
        counted, starts = self._new(images, texts), self.positives.starts
        inside = counted.of_images, counted.of_texts
        starts = starts[images.start : images.stop + 1] - inside[0].start
        of_rows = np.repeat(np.arange(len(image_vectors)), np.diff(starts))
        of_columns = self.positives.swapped.pairs[inside[1], 0] - texts.start
        floors = self.floors[inside[0]], self.floors_by_text[inside[1]]
        errors = rows.errors(columns)[of_rows], columns.errors(rows)[of_columns]
        if not all(np.isfinite(each).all() for each in errors):  # nothing is bounded
            return None
        own = self.positives.within(images, texts)
        own_starts = np.searchsorted(own[0], np.arange(len(image_vectors) + 1))
        block = RoundedBlock(
            rows.products(columns),
            rows.scales,
            columns.scales,
            own_starts,
            np.ascontiguousarray(own[1]),
            starts,
            lowest_products(kind, floors[0], errors[0]),
            highest_products(kind, floors[0], errors[0]),
            of_columns,
            lowest_products(kind, floors[1], errors[1]),
            highest_products(kind, floors[1], errors[1]),
        )
        room = len(image_vectors) * len(text_vectors) // _DOUBTFUL
        doubts = [Doubts(*np.empty((3, room), np.int32)) for _ in inside]
        numbers = count_rounded(block, counted.texts, counted.images, *doubts)
        if min(numbers) < 0:
            return None
        for doubt, number, right, counts in zip(
            doubts, numbers, floors, (counted.texts, counted.images), strict=True
        ):
            at_rows, at_columns, pairs = (part[:number] for part in doubt)
            scores = score_pairs(image_vectors.numpy(), text_vectors.numpy(), at_rows, at_columns)
            np.add.at(counts, pairs, ~(scores < right[pairs].astype(np.float32)))
        return counted

    def _by_scores(self, images: slice, texts: slice) -> _Counted:
        from aoq.evaluation.kernels import count_not_below  # compiled, or read from a cache

        with torch.no_grad():
            matrix = self.scorer.score_matrix(
                self.encoded.images[images], self.encoded.texts[texts]
            )
        sizes = images.stop - images.start, texts.stop - texts.start
        require_tensor(_MATRIX, matrix, sizes, of="fraction")
        scores = np.ascontiguousarray(as_single(matrix).cpu().numpy())
        scores[self.positives.within(images, texts)] = -np.inf
        counted, swapped = self._new(images, texts), self.positives.swapped
        of_images, of_texts = counted.of_images, counted.of_texts
        count_not_below(
            scores,
            self.positives.starts[images.start : images.stop + 1] - of_images.start,
            self.floors[of_images].astype(scores.dtype),
            swapped.pairs[of_texts, 0] - texts.start,
            self.floors_by_text[of_texts].astype(scores.dtype),
            counted.texts,
            counted.images,
        )
        return counted


def ranks_of_matrix(scores: npt.ArrayLike, positives: Positives) -> Ranks:
    """Compute ranks from a given score matrix; only equal scores are ties."""
    matrix = np.array(scores, dtype=np.float64)
    rows, columns = positives.pairs.T
    right = matrix[rows, columns]
    best_i2t = np.full(positives.n_images, -np.inf)
    best_t2i = np.full(positives.n_texts, -np.inf)
    np.fmax.at(best_i2t, rows, right)
    np.fmax.at(best_t2i, columns, right)
    matrix[rows, columns] = -np.inf
    i2t = (~(matrix < best_i2t[:, None])).sum(axis=1)
    t2i = (~(matrix < best_t2i)).sum(axis=0)
    return Ranks(
        i2t=np.minimum(i2t, _wrong_texts(positives)),
        t2i=np.minimum(t2i, _wrong_texts(positives.swapped)),
    )


def _positive_scores(scorer: Scorer[E], encoded: EncodedDataset[E], positives: Positives) -> Tensor:
    """Return the score of every positive pair, taken from small blocks. (P,)

    Pairs of one image are together, so that a block has few images and few unused scores.
    """

    def score(piece: slice) -> Tensor:
        pairs = torch.from_numpy(positives.pairs[piece])
        (images, rows), (texts, columns) = (
            ids.unique(return_inverse=True) for ids in pairs.unbind(dim=1)
        )
        with torch.no_grad():
            block = scorer.score_matrix(encoded.images[images], encoded.texts[texts])
            require_tensor(_MATRIX, block, (len(images), len(texts)), of="fraction")
        return block.cpu()[rows, columns]

    with worker_threads(encoded.device) as workers:
        return torch.cat(list(workers.map(score, ranges(len(positives.pairs), _PAIRS_AT_ONCE))))


def _floors(right: Tensor) -> npt.NDArray[np.float64]:
    """Return the limits that wrong answers must stay below: right scores minus the tie margin."""
    tie = max(TIE, torch.finfo(right.dtype).eps)
    right = right.double()
    return (right - tie * right.abs().clamp(min=1.0)).numpy()


def _wrong_texts(positives: Positives) -> Ids:
    """Return the number of wrong texts of each image: its worst rank. (N,)"""
    return positives.n_texts - positives.texts_per_image()


def _fast_product(
    scorer: Scorer[E], encoded: EncodedDataset[E], wanted: Product
) -> FastProduct | None:
    """Choose the product that is fastest on some images and texts; none: float32."""
    sizes = len(encoded.images), len(encoded.texts)
    is_small = wanted == "auto" and sizes[0] * sizes[1] < WORTH_MEASURING
    if wanted == "float32" or is_small or not approximable(scorer, encoded):
        return None
    if wanted != "auto":
        return wanted
    images, texts = (
        rows[torch.from_numpy(evenly_spread(len(rows), BLOCK_SIZE))]
        for rows in (encoded.images, encoded.texts)
    )
    vectors: list[Any] = [images, texts]
    speeds = machine_speeds(vectors[0].vectors, vectors[1].vectors)
    best = min(speeds.fast, key=speeds.fast.__getitem__, default=None)
    return best if best and speeds.fast[best] < _WORTH_IT * speeds.float32 else None


def _pairs_of(positives: Positives, images: slice) -> slice:
    """Return where the pairs of consecutive images are."""
    return slice(int(positives.starts[images.start]), int(positives.starts[images.stop]))
