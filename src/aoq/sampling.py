"""Offline hard negatives of a batch, and the partners that make the derived pairs.

For a positive pair (i, t): a text t_off from the image's list, an image i_off from the text's
list, the image i~_off of t_off and a text t~_off of i_off. Every draw follows from
(seed, epoch, step) alone, so a continued run makes the draws of an uninterrupted one, and
processes that share a step each know all its draws. Lists may be deeper than the draws, so the
depth of training can be changed without mining again.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from aoq.config import SamplingConfig
from aoq.errors import UserError
from aoq.mining.candidates import CandidateLists
from aoq.progress import warn
from aoq.randomness import generator
from aoq.types import Bools, Floats, Ids, Int32s, Positives

# The published program stores five texts for every image: rank n of one is n // 5 of the other.
_TEXTS_PER_IMAGE = 5


@dataclass(frozen=True)
class OfflineNegatives:
    """Ids of the offline hard negatives and their partners, one each for every pair. (B,)"""

    images: Ids  # i_off
    texts: Ids  # t_off
    partner_images: Ids  # i~_off
    partner_texts: Ids  # t~_off
    valid: Bools  # whether both derived pairs, (i_off, t_off) and the partners, are negatives
    image_matches: Floats | None = None  # probability that i_off belongs to t all the same
    text_matches: Floats | None = None  # that t_off belongs to i

    def __getitem__(self, rows: slice) -> OfflineNegatives:
        """Return those of some of the pairs."""
        arrays = {part.name: getattr(self, part.name) for part in fields(self)}
        cut = {name: array[rows] for name, array in arrays.items() if array is not None}
        return OfflineNegatives(**cut)


@cache
def _normal_weights(length: int) -> npt.NDArray[np.float64]:
    """Return how often each rank of a list is drawn from a normal around its middle.

    Sigma is a sixth of the length, so the list ends three sigma from its middle. Ranks beyond the
    list are left out, not moved to its ends: the hardest candidate would get sixteen times its
    share of a list of 300.
    """
    below = [NormalDist().cdf(edge) for edge in np.linspace(-3, 3, length + 1)]
    weights = np.diff(below)
    return np.asarray(weights / weights.sum())


class OfflineSampler:
    """Draws offline negatives from the first `depth` candidates of every list."""

    def __init__(
        self,
        lists: CandidateLists,
        positives: Positives,
        *,
        config: SamplingConfig,
        seed: int,
    ) -> None:
        lists.check_form(source="these lists")
        if (len(lists.i2t), len(lists.t2i)) != (positives.n_images, positives.n_texts):
            raise UserError(
                f"the lists are of {len(lists.i2t):,} images and {len(lists.t2i):,} texts, and "
                f"positives is about {positives.n_images:,} and {positives.n_texts:,}; expected "
                "the data set that the lists were mined on."
            )
        self.lists = lists
        self.positives = positives
        self.config = config
        self.seed = seed
        self.texts = lists.i2t[:, : config.depth_texts]  # (N, h)
        self.images = lists.t2i[:, : config.depth_images]  # (M, h)
        self.text_matches, self.image_matches = lists.i2t_matches, lists.t2i_matches
        if config.avoid_matches:
            self.require_matches("sampling.avoid_matches")
        if lists.depth_texts < config.depth_texts or lists.depth_images < config.depth_images:
            warn(
                f"negatives are drawn from {self.texts.shape[1]} texts and "
                f"{self.images.shape[1]} images instead of {config.depth_texts} and "
                f"{config.depth_images}: the lists are not deeper."
            )

    def with_lists(self, lists: CandidateLists) -> OfflineSampler:
        """Return a sampler that draws from other lists, by the same settings and seed."""
        return OfflineSampler(lists, self.positives, config=self.config, seed=self.seed)

    def require_matches(self, setting: str) -> tuple[Floats, Floats]:
        """Return the probabilities that texts and images of the lists are matches."""
        if self.text_matches is None or self.image_matches is None:
            raise UserError(
                f"{setting} reads the probabilities that candidates are matches, which these lists "
                "do not hold; mine them with --estimate-matches."
            )
        return self.text_matches, self.image_matches

    def draw(self, image_ids: Ids, text_ids: Ids, *, epoch: int, step: int) -> OfflineNegatives:
        """Return the offline negatives of the pairs of one step."""
        _require_ids("image_ids", image_ids, len(text_ids), stop=self.positives.n_images)
        _require_ids("text_ids", text_ids, len(image_ids), stop=self.positives.n_texts)
        random = generator(self.seed, epoch=epoch, step=step)
        texts, images = self._draw(image_ids, text_ids, random)
        if self.config.redraw:
            for _ in range(self.config.tries):
                again = np.flatnonzero(self.positives.contains(images, texts))
                if not len(again):
                    break
                texts[again], images[again] = self._draw(image_ids[again], text_ids[again], random)
            for row in np.flatnonzero(self.positives.contains(images, texts)):
                texts[row], images[row] = self._search(image_ids[row], text_ids[row], random)
        partner_images = self._partners(self.positives.swapped, texts, random)
        partner_texts = self._partners(self.positives, images, random)
        true_pair = self.positives.contains(images, texts) | self.positives.contains(
            partner_images, partner_texts
        )
        valid = ~true_pair if self.config.redraw else np.ones(len(images), dtype=bool)
        return OfflineNegatives(
            images,
            texts,
            partner_images,
            partner_texts,
            valid,
            image_matches=_found(self.image_matches, self.images, text_ids, images),
            text_matches=_found(self.text_matches, self.texts, image_ids, texts),
        )

    def _draw(self, image_ids: Ids, text_ids: Ids, random: np.random.Generator) -> tuple[Ids, Ids]:
        """Draw one text and one image for each pair."""
        if self.config.avoid_matches:
            of_texts, of_images = self.require_matches("sampling.avoid_matches")
            n_texts, n_images = self.texts.shape[1], self.images.shape[1]
            text_ranks = self._draw_likely(of_texts[image_ids, :n_texts], random)
            image_ranks = self._draw_likely(of_images[text_ids, :n_images], random)
        else:
            text_ranks, image_ranks = self.draw_ranks(len(image_ids), random)
        texts = self.texts[image_ids, text_ranks].astype(np.int64)
        images = self.images[text_ids, image_ranks].astype(np.int64)
        return texts, images

    def draw_ranks(self, size: int, random: np.random.Generator) -> tuple[Ids, Ids]:
        """Draw ranks in the lists of images, which hold texts, and in those of texts."""
        n_texts, n_images = self.texts.shape[1], self.images.shape[1]
        text_ranks = self._draw_ranks_below(n_texts, size, random)
        if self.config.ranks == "coupled":
            return text_ranks, np.minimum(text_ranks // _TEXTS_PER_IMAGE, n_images - 1)
        return text_ranks, self._draw_ranks_below(n_images, size, random)

    def _draw_ranks_below(self, length: int, size: int, random: np.random.Generator) -> Ids:
        """Draw ranks in lists of one length."""
        if self.config.draws == "normal":
            return random.choice(length, size=size, p=_normal_weights(length))
        return random.integers(length, size=size)

    def _draw_likely(self, matches: Floats, random: np.random.Generator) -> Ids:
        """Draw a rank in each list, in proportion to 1 - p and to the weight of the rank.

        Where every candidate is a match for sure, only the weights of the ranks count.
        """
        usual = np.ones(matches.shape[1])
        if self.config.draws == "normal":
            usual = _normal_weights(matches.shape[1])
        weights = usual * (1 - matches.astype(np.float64))
        weights[weights.sum(axis=1) <= 0] = usual
        totals = weights.cumsum(axis=1)
        wanted = random.random(len(totals)) * totals[:, -1]
        return np.asarray((totals <= wanted[:, None]).sum(axis=1).clip(max=totals.shape[1] - 1))

    def _search(self, image_id: int, text_id: int, random: np.random.Generator) -> tuple[int, int]:
        """Draw uniformly from all combinations that do not belong together.

        `draws`, `ranks` and `avoid_matches` have no effect here. If no combination is left, the
        hardest one is returned, and the derived pairs of this pair are marked as invalid.
        """
        texts, images = self.texts[image_id], self.images[text_id]
        wrong = np.argwhere(~self.positives.contains(images[None, :], texts[:, None]))
        text_rank, image_rank = random.choice(wrong) if len(wrong) else (0, 0)
        return int(texts[text_rank]), int(images[image_rank])

    @staticmethod
    def _partners(positives: Positives, anchors: Ids, random: np.random.Generator) -> Ids:
        """Draw one positive of each anchor, uniformly."""
        starts, counts = positives.starts[anchors], positives.texts_per_image()[anchors]
        chosen = starts + random.integers(counts)
        partners: Ids = positives.pairs[chosen, 1]
        return partners


def _found(matches: Floats | None, lists: Int32s, anchors: Ids, drawn: Ids) -> Floats | None:
    """Look up the probabilities of candidates that were drawn, one of the list of each anchor."""
    if matches is None:
        return None
    places = (lists[anchors] == drawn[:, None]).argmax(axis=1)
    return np.asarray(matches[anchors, places])


def _require_ids(name: str, ids: Ids, count: int, *, stop: int) -> None:
    """Raise a `UserError` unless `ids` holds one id for each pair of the step."""
    array = np.asarray(ids)
    if array.dtype.kind not in "iu" or array.shape != (count,):
        raise UserError(
            f"{name} has the shape {array.shape} and the dtype {array.dtype}; expected ({count},) "
            "whole numbers, one for each pair."
        )
    if count and not 0 <= array.min() <= array.max() < stop:
        raise UserError(f"{name} holds ids outside 0 to {stop - 1}; expected those of the data.")
