"""Equations 1 to 5 of the paper and the variants of its table 3, on scores alone.

A loss never sees an encoding or a model: any model that can score a batch can be trained with
it. Sums over the batch, as in the paper (its learning rates assume that). `[x]+` of the paper is
`hinge`; the two halves of each equation are the two anchors, the image (`i2t`) and the text
(`t2i`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import relu

from aoq.config import LossConfig, LossName
from aoq.errors import UserError
from aoq.types import require_tensor

Hinges = dict[str, Tensor]


def _no_negative(scores: Tensor) -> float:
    """Stands in for "no negative here": far below any score, finite so that 0 * it stays 0."""
    return -(2.0**13) if scores.dtype == torch.float16 else -(2.0**100)


@dataclass(frozen=True)
class OfflineScores:
    """Scores of the offline hard negatives and of the pairs derived from them. All (B,)."""

    i2t: Tensor  # S(i, t_off)
    t2i: Tensor  # S(i_off, t)
    derived: Tensor | None = None  # S(i_off, t_off)
    partners: Tensor | None = None  # S(i~_off, t~_off)
    derived_mask: Tensor | None = None  # true where both derived pairs are negatives

    def __post_init__(self) -> None:
        require_tensor("i2t", self.i2t, ("B",), of="fraction")
        for name in ("t2i", "derived", "partners"):
            value = getattr(self, name)
            if value is not None or name == "t2i":
                require_tensor(name, value, (len(self.i2t),), of="fraction")
        if self.derived_mask is not None:
            require_tensor("derived_mask", self.derived_mask, (len(self.i2t),), of="bool")


@dataclass(frozen=True)
class BatchScores:
    """Scores of a batch: every image against every text, and in round two the offline ones.

    `negatives` is true where an image and a text do not belong together; without it everything
    off the diagonal counts as negative.
    """

    matrix: Tensor  # (B, B)
    negatives: Tensor | None = None  # (B, B)
    offline: OfflineScores | None = None

    def __post_init__(self) -> None:
        require_tensor("matrix", self.matrix, ("B", "B"), of="fraction")
        pairs = len(self.matrix)
        if self.negatives is not None:
            require_tensor("negatives", self.negatives, (pairs, pairs), of="bool")
        if not isinstance(self.offline, OfflineScores | None):
            raise UserError(
                f"offline is a {type(self.offline).__name__}; expected OfflineScores: "
                "aoq.OfflineScores(i2t=..., t2i=...)."
            )
        if self.offline is not None and len(self.offline.i2t) != pairs:
            raise UserError(
                f"offline holds the scores of {len(self.offline.i2t)} pairs and matrix those of "
                f"{pairs}; expected one of each kind for every pair of the batch."
            )

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
    def _online(self) -> tuple[torch.return_types.max, torch.return_types.max]:
        """Each image's hardest text of the batch and each text's hardest image: score and place."""
        negatives = self.matrix.masked_fill(~self.negative_mask, _no_negative(self.matrix))
        return negatives.max(dim=1), negatives.max(dim=0)

    @property
    def i2t_online(self) -> Tensor:
        """S(i, t_on): the hardest text of the batch for each image. (B,)"""
        return self._online[0].values

    @property
    def t2i_online(self) -> Tensor:
        """S(i_on, t): the hardest image of the batch for each text. (B,)"""
        return self._online[1].values

    @cached_property
    def derived_online(self) -> tuple[Tensor, Tensor, Tensor]:
        """S(i_on, t_on), S(i~_on, t~_on), and where both pairs are negatives. (B,)

        The image that goes with t_on has its place in the batch, the text that goes with i_on
        that of i_on.
        """
        (text_scores, texts), (image_scores, images) = self._online
        mask = self.negative_mask[images, texts] & self.negative_mask[texts, images]
        mask &= torch.minimum(text_scores, image_scores) > _no_negative(self.matrix)
        return self.matrix[images, texts], self.matrix[texts, images], mask

    def require_offline(self) -> OfflineScores:
        if self.offline is None:
            raise UserError("this loss needs the scores of offline negatives; mine them first.")
        return self.offline


@dataclass(frozen=True)
class LossTerms:
    """The terms of a loss: hinges by name, each summed over the batch, and what is added to them.

    A hinge may have a weight. It is there for every anchor, or for every negative of one (Eq. 1).
    """

    hinges: dict[str, Tensor]
    weights: dict[str, Tensor] = field(default_factory=dict)
    auxiliary: dict[str, Tensor] = field(default_factory=dict)

    @cached_property
    def terms(self) -> dict[str, Tensor]:
        weighted = self.hinges | {name: w * self.hinges[name] for name, w in self.weights.items()}
        return {name: values.sum() for name, values in weighted.items()} | self.auxiliary

    @property
    def total(self) -> Tensor:
        return torch.stack(list(self.terms.values())).sum()


def hinge(values: Tensor, config: LossConfig) -> Tensor:
    """[x]+, squared where the config says so."""
    return relu(values).square() if config.squared else relu(values)


def standard_triplet(scores: BatchScores, config: LossConfig) -> LossTerms:
    """Eq. 1: every negative of the batch."""
    positive, matrix, mask = scores.positive, scores.matrix, scores.negative_mask
    i2t = hinge(config.margin_online - positive[:, None] + matrix, config) * mask
    t2i = hinge(config.margin_online - positive[None, :] + matrix, config) * mask
    return LossTerms({"i2t_all": i2t, "t2i_all": t2i})


def _online_hinges(scores: BatchScores, config: LossConfig) -> Hinges:
    """The hardest negatives of the batch."""
    positive, margin = scores.positive, config.margin_online
    return {
        "i2t_online": hinge(margin - positive + scores.i2t_online, config),
        "t2i_online": hinge(margin - positive + scores.t2i_online, config),
    }


def _offline_hinges(scores: BatchScores, config: LossConfig) -> Hinges:
    """The offline negatives of the pair, which share an anchor with it: added by Eq. 3."""
    offline, positive, margin = scores.require_offline(), scores.positive, config.margin_offline
    return {
        "i2t_offline": hinge(margin - positive + offline.i2t, config),
        "t2i_offline": hinge(margin - positive + offline.t2i, config),
    }


def _derived_hinges(scores: BatchScores, config: LossConfig) -> Hinges:
    """The pairs of offline negatives, which share no anchor with the pair: added by Eq. 4."""
    offline = scores.require_offline()
    if offline.derived is None or offline.partners is None:
        raise UserError(
            "this loss needs the scores of the derived pairs; pass OfflineScores with derived and "
            "partners."
        )
    return _hinges_of_pairs(scores, offline.derived, offline.partners, offline.derived_mask, config)


def _hinges_of_pairs(
    scores: BatchScores,
    derived: Tensor,
    partners: Tensor,
    mask: Tensor | None,
    config: LossConfig,
) -> Hinges:
    positive, margin = scores.positive, config.margin_offline
    hinges = {
        "i2t_derived": hinge(margin - positive + derived, config),
        "t2i_derived": hinge(margin - positive + partners, config),
    }
    return hinges if mask is None else {name: value * mask for name, value in hinges.items()}


def online_triplet(scores: BatchScores, config: LossConfig) -> LossTerms:
    """Eq. 2: the hardest negative of the batch."""
    return LossTerms(_online_hinges(scores, config))


def offline_triplet(scores: BatchScores, config: LossConfig) -> LossTerms:
    """Eq. 3: Eq. 2 and the offline hard negatives."""
    return LossTerms(_online_hinges(scores, config) | _offline_hinges(scores, config))


def offline_quintuplet(scores: BatchScores, config: LossConfig) -> LossTerms:
    """Eq. 4: Eq. 3 and the derived pairs."""
    online, offline = _online_hinges(scores, config), _offline_hinges(scores, config)
    return LossTerms(online | offline | _derived_hinges(scores, config))


def only_offline(scores: BatchScores, config: LossConfig) -> LossTerms:
    """Table 3, OnlyOffline: Eq. 4 without its online terms."""
    return LossTerms(_offline_hinges(scores, config) | _derived_hinges(scores, config))


def online_quintuplet(scores: BatchScores, config: LossConfig) -> LossTerms:
    """Table 3, OnlineQuin: Eq. 4 with derived pairs of the online negatives."""
    online, offline = _online_hinges(scores, config), _offline_hinges(scores, config)
    derived = _hinges_of_pairs(scores, *scores.derived_online, config)
    return LossTerms(online | offline | derived)


def adaptive_weights(scores: BatchScores, config: LossConfig) -> tuple[Tensor, Tensor]:
    """Eq. 5: beta - (S_off - S_on) / alpha, for image and text anchors; gradients flow. (B,)"""
    if config.adapt_to == "positive":  # table 3, w/o OfflineAdap
        i2t_by = t2i_by = scores.positive
    else:
        offline = scores.require_offline()
        i2t_by, t2i_by = offline.i2t, offline.t2i
    i2t = config.beta - (i2t_by - scores.i2t_online) / config.alpha
    t2i = config.beta - (t2i_by - scores.t2i_online) / config.alpha
    return (i2t.relu(), t2i.relu()) if config.clamp_weights else (i2t, t2i)


def adaptive_offline_quintuplet(scores: BatchScores, config: LossConfig) -> LossTerms:
    """Eq. 5: Eq. 4 with the online hinges weighted by how hard their negatives are."""
    i2t_weight, t2i_weight = adaptive_weights(scores, config)
    return LossTerms(
        offline_quintuplet(scores, config).hinges,
        weights={"i2t_online": i2t_weight, "t2i_online": t2i_weight},
    )


LOSSES: dict[LossName, Callable[[BatchScores, LossConfig], LossTerms]] = {
    "standard": standard_triplet,
    "online": online_triplet,
    "off_tri": offline_triplet,
    "off_quin": offline_quintuplet,
    "adap_off_quin": adaptive_offline_quintuplet,
    "only_offline": only_offline,
    "online_quin": online_quintuplet,
}


def compute_loss(scores: BatchScores, config: LossConfig) -> LossTerms:
    """The loss that `config` names.

    The second text is 0.1 too close to the first image and 0.3 too close for its own:

    >>> scores = BatchScores(torch.tensor([[0.9, 0.8], [0.2, 0.7]]))
    >>> terms = compute_loss(scores, LossConfig(name="online", margin_online=0.2)).terms
    >>> {name: round(float(value), 3) for name, value in terms.items()}
    {'i2t_online': 0.1, 't2i_online': 0.3}
    """
    if not isinstance(scores, BatchScores) or not isinstance(config, LossConfig):
        raise UserError(
            f"compute_loss takes BatchScores and a LossConfig, not a {type(scores).__name__} and a "
            f"{type(config).__name__}; write compute_loss(BatchScores(matrix), LossConfig())."
        )
    return LOSSES[config.name](scores, config)
