"""Captions that the rules are about, and a plain loop that applies them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np

from aoq.config import MiningConfig
from aoq.mining.captions import words_of
from aoq.mining.mine import mine_in_processes
from aoq.scoring.inner_product import InnerProduct
from aoq.types import Positives
from tests.mining.cases import NOWHERE, encoded_from, five_texts_an_image

RULES = {
    "equal_captions": ("equal captions", True),
    "score_share": ("score share 0.6", 0.6),
    "near_captions": ("near captions 0.7", 0.7),
    "skip_first": ("skip first 3", 3),
}


COMBINATIONS = [
    tuple(name for name, chosen in zip(RULES, wanted, strict=True) if chosen)
    for wanted in product([False, True], repeat=len(RULES))
]


@dataclass(frozen=True)
class Case:
    """A score matrix with captions of few words, so that many are alike."""

    matrix: np.ndarray
    positives: Positives
    captions: list[str]

    def mined(self, *, block_size=24, **settings):
        return mine_in_processes(
            InnerProduct(),
            encoded_from(self.matrix),
            self.positives,
            config=MiningConfig(**settings),
            provenance=NOWHERE,
            captions=self.captions,
            block_size=block_size,
        )

    @cached_property
    def words(self):
        return [words_of(caption) for caption in self.captions]

    def alike(self, same):
        """Whether a text is the `same` as a caption of an image, for all of both. (N, M)"""
        return np.array(
            [
                [
                    any(same(self.words[own], words) for own in self.positives.texts_of(image))
                    for words in self.words
                ]
                for image in range(self.positives.n_images)
            ]
        )


def case_of(n_images, n_texts, *, seed=0):
    random = np.random.default_rng(seed)
    words = ["red", "blue", "green", "ball", "cup", "tree", "left", "right"]
    return Case(
        matrix=random.normal(size=(n_images, n_texts)).astype(np.float32),
        positives=five_texts_an_image(n_images, n_texts),
        captions=[" ".join(random.choice(words, size=3)) for _ in range(n_texts)],
    )


LARGE, SMALL = case_of(60, 300), case_of(12, 60)


def are_equal(one, other):
    return one == other != []


def are_near(share):
    def near(one, other):
        return len({*one} & {*other}) / max(len({*one, *other}), 1) >= share

    return near


class Reference:
    """Every rule applied to all candidates of an anchor, in the order of the documentation."""

    def __init__(self, case, *, texts_are_anchors, config):
        def seen(matrix):
            return matrix.T if texts_are_anchors else matrix

        self.config = config
        self.matrix = seen(case.matrix)
        positives = case.positives.swapped if texts_are_anchors else case.positives
        n_anchors, self.n_candidates = self.matrix.shape
        self.own = [positives.texts_of(anchor).tolist() for anchor in range(n_anchors)]
        if config.equal_captions:
            self.equal = seen(case.alike(are_equal))
        if config.near_captions is not None:
            self.near = seen(case.alike(are_near(config.near_captions)))
        self.negatives = [self._negatives(anchor) for anchor in range(n_anchors)]

    def _negatives(self, anchor):
        """What is left when positives, and by rule equal captions, are struck out; best first."""
        left = [other for other in range(self.n_candidates) if other not in self.own[anchor]]
        if self.config.equal_captions:
            left = [other for other in left if not self.equal[anchor, other]]
        return sorted(left, key=lambda other: (-self.matrix[anchor, other], other))

    @property
    def n_equal(self):
        return sum(
            self.n_candidates - len(own) - len(left)
            for own, left in zip(self.own, self.negatives, strict=True)
        )

    def usable_depth(self, wanted):
        return min(wanted, min(map(len, self.negatives)) - self.config.skip_first)

    def lists(self, depth):
        """Ids, how many were too high and how many near, and how many anchors are excused."""
        skip, rows = self.config.skip_first, []
        n_high = n_near = n_excused = 0
        for anchor, negatives in enumerate(self.negatives):
            low = [other for other in negatives if not self._is_high(anchor, other)]
            kept = [other for other in low if not self._is_near(anchor, other)]
            if len(kept) < skip + depth:
                n_excused += 1
                rows.append(negatives[skip : skip + depth])
                continue
            rows.append(kept[skip : skip + depth])
            n_high += len(negatives) - len(low)
            before = low[: low.index(rows[-1][-1])]
            n_near += sum(self._is_near(anchor, other) for other in before)
        return np.array(rows), n_high, n_near, n_excused

    def _is_high(self, anchor, other):
        if self.config.score_share is None or not self.own[anchor]:
            return False
        best = self.matrix[anchor, self.own[anchor]].max()
        ceiling = best - np.float32(1 - self.config.score_share) * abs(best)
        return self.matrix[anchor, other] > ceiling

    def _is_near(self, anchor, other):
        return self.config.near_captions is not None and self.near[anchor, other]
