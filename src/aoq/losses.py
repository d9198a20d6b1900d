"""Equations 1 to 5 of the paper, variants of them, softmax and sigmoid losses, on scores alone.

A loss never sees an encoding or a model: any model that can score a batch can be trained with
it. Equations 2 to 5 build on each other, so one function, `quintuplet`, holds them all. Sums are
over the batch, as in the paper (its learning rates assume that). `[x]+` of the paper is `hinge`;
the two halves of each equation are the two anchors, the image (`i2t`) and the text (`t2i`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import relu, softplus

from aoq.config import LossConfig, LossName
from aoq.errors import UserError
from aoq.types import require_tensor


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
    i2t_matches: Tensor | None = None  # probability that t_off belongs to i all the same, 0 to 1
    t2i_matches: Tensor | None = None  # that i_off belongs to t

    def __post_init__(self) -> None:
        require_tensor("i2t", self.i2t, ("B",), of="fraction")
        require_tensor("t2i", self.t2i, (len(self.i2t),), of="fraction")
        for name in ("derived", "partners", "i2t_matches", "t2i_matches"):
            if (value := getattr(self, name)) is not None:
                require_tensor(name, value, (len(self.i2t),), of="fraction")
        if self.derived_mask is not None:
            require_tensor("derived_mask", self.derived_mask, (len(self.i2t),), of="bool")

    def require_weights(self) -> tuple[Tensor, Tensor]:
        """1 - p of the offline negatives of images and of texts; refuse a batch without. (B,)"""
        if self.i2t_matches is None or self.t2i_matches is None:
            raise UserError(
                "weigh_matches needs the probabilities that offline negatives are matches; mine "
                "lists with estimate_matches, or pass OfflineScores with i2t_matches and "
                "t2i_matches."
            )
        return 1 - self.i2t_matches, 1 - self.t2i_matches


@dataclass(frozen=True)
class BatchScores:
    """Scores of a batch: every image against every text, and in round two the offline ones.

    `negatives` is true where an image and a text do not belong together; without it everything
    off the diagonal counts as negative. `likeness` says how alike the text is to captions of the
    image, from 0 to 1, for semantic margins. Softmax and sigmoid losses use `scale` and `bias`
    where they are learned, and else those of the config.
    """

    matrix: Tensor  # (B, B)
    negatives: Tensor | None = None  # (B, B)
    offline: OfflineScores | None = None
    likeness: Tensor | None = None  # (B, B)
    scale: Tensor | None = None  # (), 1 / temperature
    bias: Tensor | None = None  # ()

    def __post_init__(self) -> None:
        require_tensor("matrix", self.matrix, ("B", "B"), of="fraction")
        pairs = len(self.matrix)
        if self.negatives is not None:
            require_tensor("negatives", self.negatives, (pairs, pairs), of="bool")
        if self.likeness is not None:
            require_tensor("likeness", self.likeness, (pairs, pairs), of="fraction")
        for name in ("scale", "bias"):
            if (value := getattr(self, name)) is not None:
                require_tensor(name, value, (), of="fraction")
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
    def has_negative(self) -> tuple[Tensor, Tensor]:
        """Where an image, and where a text, has a negative in the batch. (B,) each"""
        return self.negative_mask.any(dim=1), self.negative_mask.any(dim=0)

    @cached_property
    def _online(self) -> tuple[torch.return_types.max, torch.return_types.max]:
        """Each image's hardest text of the batch and each text's hardest image: score and place."""
        return self._hardest(self.negative_mask, dim=1), self._hardest(self.negative_mask, dim=0)

    def _hardest(self, mask: Tensor, *, dim: int) -> torch.return_types.max:
        """The highest score where the mask is true, and its place."""
        return self.matrix.masked_fill(~mask, _no_negative(self.matrix)).max(dim=dim)

    @property
    def i2t_online(self) -> Tensor:
        """S(i, t_on): the hardest text of the batch for each image. (B,)"""
        return self._online[0].values

    @property
    def t2i_online(self) -> Tensor:
        """S(i_on, t): the hardest image of the batch for each text. (B,)"""
        return self._online[1].values

    def derived_online(self, *, redraw: bool = True) -> tuple[Tensor, Tensor, Tensor]:
        """S(i_on, t_on), S(i~_on, t~_on), and where both pairs are negatives. (B,)

        The image that goes with t_on has its place in the batch, the text that goes with i_on
        that of i_on. With `redraw`, the next hardest image or text takes the place of one that
        belongs to the other; of the two, the one that leaves the harder negatives.
        """
        (text_scores, texts), (image_scores, images) = self._online
        apart = self.negative_mask & self.negative_mask.T  # by the places of image and text
        if redraw:
            next_image = self._hardest(self.negative_mask & apart[:, texts], dim=0)
            next_text = self._hardest(self.negative_mask & apart[images, :], dim=1)
            keeps_text = text_scores + next_image.values >= image_scores + next_text.values
            text_scores = torch.where(keeps_text, text_scores, next_text.values)
            image_scores = torch.where(keeps_text, next_image.values, image_scores)
            texts = torch.where(keeps_text, texts, next_text.indices)
            images = torch.where(keeps_text, next_image.indices, images)
        mask = apart[images, texts]
        mask &= torch.minimum(text_scores, image_scores) > _no_negative(self.matrix)
        return self.matrix[images, texts], self.matrix[texts, images], mask

    def with_semantic_margin(self, margin: float) -> BatchScores:
        """Take `margin` times the likeness off the score of every negative of the batch.

        A hinge's margin shrinks by as much: [m - S + (S_on - d)]+ = [(m - d) - S + S_on]+.
        """
        if self.likeness is None:
            raise UserError(
                "semantic margins need the likeness of images and texts; pass BatchScores with "
                "likeness."
            )
        return replace(self, matrix=self.matrix - margin * self.likeness * self.negative_mask)

    def require_offline(self) -> OfflineScores:
        """Return the offline scores; refuse a batch without."""
        if self.offline is None:
            raise UserError("this loss needs the scores of offline negatives; mine them first.")
        return self.offline

    def require_derived(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """S(i_off, t_off), S(i~_off, t~_off) and their mask; refuse a batch without. (B,)"""
        offline = self.require_offline()
        if offline.derived is None or offline.partners is None:
            raise UserError(
                "this loss needs the scores of the derived pairs; pass OfflineScores with derived "
                "and partners."
            )
        return offline.derived, offline.partners, offline.derived_mask


@dataclass(frozen=True)
class LossTerms:
    """The terms of a loss by name: hinges and log losses, summed up, and auxiliary losses.

    A hinge may have a weight. It has an entry for every anchor, or for every negative (Eq. 1), and
    a mask if some anchors have no derived pairs. A log loss is that of a softmax or sigmoid; it
    has no margin, and so is never quite zero.
    """

    hinges: dict[str, Tensor] = field(default_factory=dict)
    weights: dict[str, Tensor] = field(default_factory=dict)
    auxiliary: dict[str, Tensor] = field(default_factory=dict)
    log_losses: dict[str, Tensor] = field(default_factory=dict)
    masks: dict[str, Tensor] = field(default_factory=dict)

    @cached_property
    def terms(self) -> dict[str, Tensor]:
        weighted = self.hinges | {name: w * self.hinges[name] for name, w in self.weights.items()}
        summed = {name: values.sum() for name, values in (weighted | self.log_losses).items()}
        return summed | self.auxiliary

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


def quintuplet(
    scores: BatchScores,
    config: LossConfig,
    *,
    online: bool = False,
    offline: bool = False,
    derived: Literal["offline", "online"] | None = None,
    adaptive: bool = False,
) -> LossTerms:
    """Compute Eq. 5, or some of its terms, of every positive pair (i, t):

        w_i2t [m_on - S(i, t) + S(i, t_on)]+     + w_t2i [m_on - S(i, t) + S(i_on, t)]+
            + [m_off - S(i, t) + S(i, t_off)]+         + [m_off - S(i, t) + S(i_off, t)]+
            + [m_off - S(i, t) + S(i_off, t_off)]+     + [m_off - S(i, t) + S(i~_off, t~_off)]+

        w_i2t = beta - (S(i, t_off) - S(i, t_on)) / alpha
        w_t2i = beta - (S(i_off, t) - S(i_on, t)) / alpha

    The lines are `online`, `offline` and `derived`, whose pairs may be derived from online
    negatives instead. m_on and m_off are the margins. Without `adaptive` the weights are 1. With
    `weigh_matches` the terms of `offline` are weighted by 1 - p, the probability that the pair is
    no match.
    """
    m_on, m_off = config.margin_online, config.margin_offline
    weights: dict[str, Tensor] = {}
    hinges: dict[str, Tensor] = {}
    masks: dict[str, Tensor] = {}
    if adaptive:
        weights["i2t_online"], weights["t2i_online"] = adaptive_weights(scores, config)
    if online:
        positive = scores.positive  # read once a line, which fixes the order gradients add up in
        hinges["i2t_online"] = hinge(m_on - positive + scores.i2t_online, config)
        hinges["t2i_online"] = hinge(m_on - positive + scores.t2i_online, config)
        if config.selective is not None:
            hinges = _selective(hinges, scores, config, within=config.selective)
    if offline:
        positive, drawn = scores.positive, scores.require_offline()
        hinges["i2t_offline"] = hinge(m_off - positive + drawn.i2t, config)
        hinges["t2i_offline"] = hinge(m_off - positive + drawn.t2i, config)
        if config.weigh_matches:
            weights["i2t_offline"], weights["t2i_offline"] = drawn.require_weights()
    if derived:
        positive, found = scores.positive, None
        if derived == "online":
            found = scores.derived_online(redraw=config.redraw_online)
        pairs, partners, mask = found or scores.require_derived()
        hinges["i2t_derived"] = _masked(hinge(m_off - positive + pairs, config), mask)
        hinges["t2i_derived"] = _masked(hinge(m_off - positive + partners, config), mask)
        if mask is not None:
            masks = {"i2t_derived": mask, "t2i_derived": mask}
    return LossTerms(hinges, weights, masks=masks)


def _selective(
    hardest: dict[str, Tensor], scores: BatchScores, config: LossConfig, *, within: float
) -> dict[str, Tensor]:
    """Take the mean over all negatives where the hardest one scores like the positive (SelHN):

        [m_on - S(i, t) + S(i, t_on)]+                  where |S(i, t) - S(i, t_on)| >= within
        mean over t' of [m_on - S(i, t) + S(i, t')]+    elsewhere

    As the two scores approach each other, the gradients of one hardest negative vanish.
    """
    positive, negatives = scores.positive, scores.negative_mask
    every = standard_triplet(scores, config).hinges
    i2t_mean = every["i2t_all"].sum(dim=1) / negatives.sum(dim=1).clamp(min=1)
    t2i_mean = every["t2i_all"].sum(dim=0) / negatives.sum(dim=0).clamp(min=1)
    i2t_near = (positive - scores.i2t_online).abs() < within
    t2i_near = (positive - scores.t2i_online).abs() < within
    return {
        "i2t_online": torch.where(i2t_near, i2t_mean, hardest["i2t_online"]),
        "t2i_online": torch.where(t2i_near, t2i_mean, hardest["t2i_online"]),
    }


def adaptive_weights(scores: BatchScores, config: LossConfig) -> tuple[Tensor, Tensor]:
    """Compute the weights w_i2t and w_t2i of Eq. 5. (B,)

    Gradients flow through them. The controls leave one thing out each: `constant` that an anchor
    has a weight of its own, `detached` the gradient, `shuffled` that S_off is the anchor's own.
    """
    if config.adapt_to == "positive":  # table 3, w/o OfflineAdap
        i2t_by = t2i_by = scores.positive
    else:
        offline = scores.require_offline()
        i2t_by, t2i_by = offline.i2t, offline.t2i
    if config.weights == "shuffled":  # batches are shuffled: that of the pair before will do
        i2t_by, t2i_by = i2t_by.roll(1), t2i_by.roll(1)
    i2t = config.beta - (i2t_by - scores.i2t_online) / config.alpha
    t2i = config.beta - (t2i_by - scores.t2i_online) / config.alpha
    if config.clamp_weights:
        i2t, t2i = i2t.relu(), t2i.relu()
    if config.weights == "detached":
        i2t, t2i = i2t.detach(), t2i.detach()
    if config.weights == "constant":
        has_text, has_image = scores.has_negative
        i2t, t2i = _mean_of(i2t.detach(), has_text), _mean_of(t2i.detach(), has_image)
    return i2t, t2i


def _mean_of(weights: Tensor, has_negative: Tensor) -> Tensor:
    """The mean of the weights of anchors that have a negative, for every anchor. (B,)"""
    mean = (weights * has_negative).sum() / has_negative.sum().clamp(min=1)
    return mean.expand_as(weights)


def _masked(values: Tensor, mask: Tensor | None) -> Tensor:
    return values if mask is None else values * mask


def info_nce(scores: BatchScores, config: LossConfig) -> LossTerms:
    """Compute the cross entropy of finding t for i among the texts of the batch, and i for t:

    -log  exp(S(i, t) / tau) / (exp(S(i, t) / tau) + sum of exp(S(i, t') / tau))

    over the negatives t' of i. Other texts that belong to i are left out.
    """
    logits, _ = _softmax_logits(scores, config)
    positive = logits.diagonal()
    i2t, t2i = logits.logsumexp(dim=1) - positive, logits.logsumexp(dim=0) - positive
    return LossTerms(log_losses={"i2t_softmax": i2t, "t2i_softmax": t2i})


def softmax_offline(scores: BatchScores, config: LossConfig) -> LossTerms:
    """Compute InfoNCE with the offline negative of each anchor in its denominator:

    -log  exp(S(i, t) / tau)
          / (exp(S(i, t) / tau) + sum of exp(S(i, t') / tau) + w exp(S(i, t_off) / tau))

    w is `offline_weight`: a negative of weight w counts as w negatives of its score. With
    `weigh_matches` it is w (1 - p), and a match for sure counts as none.
    """
    logits, scale = _softmax_logits(scores, config)
    drawn, log_weight = scores.require_offline(), math.log(config.offline_weight)
    i2t_off, t2i_off = scale * drawn.i2t + log_weight, scale * drawn.t2i + log_weight
    if config.weigh_matches:
        i2t_weights, t2i_weights = drawn.require_weights()
        i2t_off, t2i_off = i2t_off + i2t_weights.log(), t2i_off + t2i_weights.log()
    i2t = torch.logaddexp(logits.logsumexp(dim=1), i2t_off) - logits.diagonal()
    t2i = torch.logaddexp(logits.logsumexp(dim=0), t2i_off) - logits.diagonal()
    return LossTerms(log_losses={"i2t_softmax": i2t, "t2i_softmax": t2i})


def _softmax_logits(scores: BatchScores, config: LossConfig) -> tuple[Tensor, Tensor | float]:
    """S / tau, with -inf where a text belongs to an image of another pair, and 1 / tau. (B, B)"""
    scale = _scale(scores, config)
    other_positives = ~scores.negative_mask
    other_positives.fill_diagonal_(False)
    return (scale * scores.matrix).masked_fill(other_positives, -math.inf), scale


def siglip(scores: BatchScores, config: LossConfig) -> LossTerms:
    """Compute the cross entropy of telling for each pair by itself whether it belongs together:

    -log sigmoid(S(i, t) / tau + b)  -  sum of log sigmoid(-S(i, t') / tau - b)

    over the pairs and their negatives t' in the batch, and b the bias. Each negative counts once,
    as both the image and the text have it.
    """
    bias = config.bias if scores.bias is None else scores.bias
    logits = _scale(scores, config) * scores.matrix + bias
    positive, negative = softplus(-logits.diagonal()), softplus(logits) * scores.negative_mask
    return LossTerms(log_losses={"positive_sigmoid": positive, "negative_sigmoid": negative})


def _scale(scores: BatchScores, config: LossConfig) -> Tensor | float:
    return 1 / config.initial_temperature if scores.scale is None else scores.scale


LOSSES: dict[LossName, Callable[[BatchScores, LossConfig], LossTerms]] = {
    "standard": standard_triplet,  # Eq. 1
    "online": partial(quintuplet, online=True),  # Eq. 2
    "off_tri": partial(quintuplet, online=True, offline=True),  # Eq. 3
    "off_quin": partial(quintuplet, online=True, offline=True, derived="offline"),  # Eq. 4
    "adap_off_quin": partial(  # Eq. 5
        quintuplet, online=True, offline=True, derived="offline", adaptive=True
    ),
    "only_offline": partial(quintuplet, offline=True, derived="offline"),  # table 3, OnlyOffline
    "online_quin": partial(  # table 3, OnlineQuin
        quintuplet, online=True, offline=True, derived="online"
    ),
    "infonce": info_nce,
    "softmax_offline": softmax_offline,
    "siglip": siglip,
}


def compute_loss(scores: BatchScores, config: LossConfig) -> LossTerms:
    """Compute the loss that `config` names.

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
    if config.semantic_margin:
        scores = scores.with_semantic_margin(config.semantic_margin)
    return LOSSES[config.name](scores, config)
