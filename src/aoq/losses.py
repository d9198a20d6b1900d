"""Equations 1 to 5 of the paper, on scores alone.

A loss never sees an encoding or a model: any model that can score a batch can be trained with
it. Sums over the batch, as in the paper (its learning rates assume that). `[x]+` of the paper is
`relu`; the two halves of each equation are the two anchors, the image (`i2t`) and the text
(`t2i`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import relu

from aoq.config import LossConfig, LossName
from aoq.errors import UserError

# Stands in for "no negative here": far below any score, finite so that 0 * it stays 0.
_NO_NEGATIVE = -1e4


@dataclass(frozen=True)
class OfflineScores:
    """Scores of the offline hard negatives and of the pairs derived from them. All (B,)."""

    i2t: Tensor  # S(i, t_off)
    t2i: Tensor  # S(i_off, t)
    derived: Tensor | None = None  # S(i_off, t_off)
    partners: Tensor | None = None  # S(i~_off, t~_off)
    derived_mask: Tensor | None = None  # true where both derived pairs are negatives


@dataclass(frozen=True)
class BatchScores:
    """Scores of a batch: every image against every text, and in round two the offline ones.

    `negatives` is true where an image and a text do not belong together; without it everything
    off the diagonal counts as negative.
    """

    matrix: Tensor  # (B, B)
    negatives: Tensor | None = None  # (B, B)
    offline: OfflineScores | None = None

    @property
    def positive(self) -> Tensor:
        """S(i, t). (B,)"""
        return self.matrix.diagonal()

    @cached_property
    def negative_mask(self) -> Tensor:
        if self.negatives is not None:
            return self.negatives
        return ~torch.eye(len(self.matrix), dtype=torch.bool, device=self.matrix.device)

    @cached_property
    def i2t_online(self) -> Tensor:
        """S(i, t_on): the hardest text of the batch for each image. (B,)"""
        return self.matrix.masked_fill(~self.negative_mask, _NO_NEGATIVE).max(dim=1).values

    @cached_property
    def t2i_online(self) -> Tensor:
        """S(i_on, t): the hardest image of the batch for each text. (B,)"""
        return self.matrix.masked_fill(~self.negative_mask, _NO_NEGATIVE).max(dim=0).values

    def require_offline(self) -> OfflineScores:
        if self.offline is None:
            raise UserError("this loss needs the scores of offline negatives; mine them first.")
        return self.offline


@dataclass(frozen=True)
class LossTerms:
    """The named terms of a loss, each summed over the batch."""

    terms: dict[str, Tensor]

    @property
    def total(self) -> Tensor:
        return torch.stack(list(self.terms.values())).sum()


def standard_triplet(scores: BatchScores, config: LossConfig) -> LossTerms:
    """Eq. 1: every negative of the batch."""
    positive, matrix = scores.positive, scores.matrix
    i2t = relu(config.margin_online - positive[:, None] + matrix)
    t2i = relu(config.margin_online - positive[None, :] + matrix)
    mask = scores.negative_mask
    return LossTerms({"i2t_all": (i2t * mask).sum(), "t2i_all": (t2i * mask).sum()})


def online_triplet(scores: BatchScores, config: LossConfig) -> LossTerms:
    """Eq. 2: the hardest negative of the batch."""
    i2t = relu(config.margin_online - scores.positive + scores.i2t_online)
    t2i = relu(config.margin_online - scores.positive + scores.t2i_online)
    return LossTerms({"i2t_online": i2t.sum(), "t2i_online": t2i.sum()})


def _offline_terms(scores: BatchScores, config: LossConfig) -> dict[str, Tensor]:
    """The offline terms with a common anchor, added by Eq. 3."""
    offline, positive = scores.require_offline(), scores.positive
    return {
        "i2t_offline": relu(config.margin_offline - positive + offline.i2t).sum(),
        "t2i_offline": relu(config.margin_offline - positive + offline.t2i).sum(),
    }


def _derived_terms(scores: BatchScores, config: LossConfig) -> dict[str, Tensor]:
    """The offline terms without a common anchor, added by Eq. 4."""
    offline, positive = scores.require_offline(), scores.positive
    if offline.derived is None or offline.partners is None:
        raise UserError("this loss needs the scores of the derived pairs.")
    derived = relu(config.margin_offline - positive + offline.derived)
    partners = relu(config.margin_offline - positive + offline.partners)
    if offline.derived_mask is not None:
        derived, partners = derived * offline.derived_mask, partners * offline.derived_mask
    return {"i2t_derived": derived.sum(), "t2i_derived": partners.sum()}


def offline_triplet(scores: BatchScores, config: LossConfig) -> LossTerms:
    """Eq. 3: Eq. 2 and the offline hard negatives."""
    return LossTerms(online_triplet(scores, config).terms | _offline_terms(scores, config))


def offline_quintuplet(scores: BatchScores, config: LossConfig) -> LossTerms:
    """Eq. 4: Eq. 3 and the derived pairs."""
    return LossTerms(offline_triplet(scores, config).terms | _derived_terms(scores, config))


def adaptive_weights(scores: BatchScores, config: LossConfig) -> tuple[Tensor, Tensor]:
    """Eq. 5: beta - (S_off - S_on) / alpha, for image and text anchors; gradients flow. (B,)"""
    offline = scores.require_offline()
    i2t = config.beta - (offline.i2t - scores.i2t_online) / config.alpha
    t2i = config.beta - (offline.t2i - scores.t2i_online) / config.alpha
    return i2t, t2i


def adaptive_offline_quintuplet(scores: BatchScores, config: LossConfig) -> LossTerms:
    """Eq. 5: Eq. 4 with the online hinges weighted by how hard their negatives are."""
    i2t_weight, t2i_weight = adaptive_weights(scores, config)
    i2t = i2t_weight * relu(config.margin_online - scores.positive + scores.i2t_online)
    t2i = t2i_weight * relu(config.margin_online - scores.positive + scores.t2i_online)
    online = {"i2t_online": i2t.sum(), "t2i_online": t2i.sum()}
    return LossTerms(online | _offline_terms(scores, config) | _derived_terms(scores, config))


LOSSES: dict[LossName, Callable[[BatchScores, LossConfig], LossTerms]] = {
    "standard": standard_triplet,
    "online": online_triplet,
    "off_tri": offline_triplet,
    "off_quin": offline_quintuplet,
    "adap_off_quin": adaptive_offline_quintuplet,
}


def compute_loss(scores: BatchScores, config: LossConfig) -> LossTerms:
    """The loss that `config` names.

    The second text is 0.1 too close to the first image and 0.3 too close for its own:

    >>> scores = BatchScores(torch.tensor([[0.9, 0.8], [0.2, 0.7]]))
    >>> terms = compute_loss(scores, LossConfig(name="online", margin_online=0.2)).terms
    >>> {name: round(float(value), 3) for name, value in terms.items()}
    {'i2t_online': 0.1, 't2i_online': 0.3}
    """
    return LOSSES[config.name](scores, config)
