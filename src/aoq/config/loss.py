"""Settings of the loss: its equation, and the constants of that."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from aoq.config.checks import require
from aoq.field_types import settle_types

LossName = Literal[
    "standard",
    "online",
    "off_tri",
    "off_quin",
    "adap_off_quin",
    "only_offline",
    "online_quin",
    "infonce",
    "softmax_offline",
    "siglip",
]
Weights = Literal["adaptive", "constant", "detached", "shuffled"]


LEARNED_TEMPERATURES = (0.01, 1.0)  # CLIP's bounds: the scale is 1 to 100


@dataclass(frozen=True, kw_only=True)
class LossConfig:
    """The equation of the paper, and its constants."""

    name: LossName = "online"
    """Eq. 1-5: standard, online, off_tri, off_quin, adap_off_quin; table 3's variants of Eq. 4; and
    infonce, softmax_offline (infonce with offline negatives), siglip (sigmoids)."""
    margin_online: float = 0.2
    "Margin of the online terms (gamma 1)."
    margin_offline: float = 0.0
    "Margin of the offline terms (gamma 2)."
    alpha: float = 0.3
    "Smaller values make the adaptive weight react more strongly to S_off - S_on."
    beta: float = 1.5
    "The adaptive weight at S_off = S_on."
    adapt_to: Literal["offline", "positive"] = "offline"
    "Reference for S_on in the adaptive weight: S_off, or S(i, t) (table 3, w/o OfflineAdap)."
    weights: Weights = "adaptive"
    """Controls of Eq. 5: adaptive weights, or constant (all their mean), detached (without
    gradient), shuffled (by S_off of another anchor)."""
    clamp_weights: bool = False
    "Keep adaptive weights from falling below zero."
    redraw_online: bool = True
    """online_quin: take the next hardest image or text where the hardest belong together; without,
    their derived pairs are left out."""
    selective: float | None = None
    """Learn from the mean of all negatives where the hardest scores within this of the positive
    (SelHN, published with 0.01); none: always from the hardest."""
    semantic_margin: float = 0.0
    "Taken off the margin of a negative of the batch, times its likeness to the positive (0 to 1)."
    squared: bool = False
    "Square every hinge."
    temperature: float | None = None
    "Softmax and sigmoid: what scores are divided by; none: 0.07, or for siglip 0.1."
    bias: float = -10.0
    "siglip: what is added to the divided scores; learned along with the temperature."
    learn_temperature: bool | None = None
    "Learn the temperature, and siglip's bias, from these values on; none: for siglip only."
    offline_weight: float = 1.0
    "softmax_offline: as how many negatives of the batch the offline negative of an anchor counts."
    weigh_matches: bool = False
    """Weigh the terms of S(i, t_off) and S(i_off, t) by 1 - p, the probability that the offline
    negative is truly wrong; the lists need mining.estimate_matches."""

    def __post_init__(self) -> None:
        settle_types(self)
        require(self.alpha > 0, f"loss.alpha is {self.alpha}; it has to be positive.")
        for name in ("margin_online", "margin_offline", "semantic_margin", "selective"):
            value = getattr(self, name)
            require(
                value is None or 0 <= value < math.inf,
                f"loss.{name} is {value}; it has to be finite and at least 0.",
            )
        for name in ("alpha", "beta", "bias"):
            value = getattr(self, name)
            require(math.isfinite(value), f"loss.{name} is {value}; it has to be a number.")
        for name in ("temperature", "offline_weight"):
            value = getattr(self, name)
            require(
                value is None or 0 < value < math.inf,
                f"loss.{name} is {value}; it has to be a positive number.",
            )
        lowest, highest = LEARNED_TEMPERATURES
        require(
            not self.learns_temperature or lowest <= self.initial_temperature <= highest,
            f"loss.temperature is {self.temperature}; one that is learned stays within {lowest} to"
            f" {highest}, and has to start there.",
        )

    @property
    def reads_matches(self) -> bool:
        """Whether offline terms are weighted by the probability that they are no match."""
        return self.weigh_matches and self.needs_candidates

    @property
    def initial_temperature(self) -> float:
        """The temperature, or what it is learned from."""
        return self.temperature or (0.1 if self.name == "siglip" else 0.07)

    @property
    def learns_temperature(self) -> bool:
        if self.name not in ("infonce", "softmax_offline", "siglip"):
            return False
        return self.name == "siglip" if self.learn_temperature is None else self.learn_temperature

    @property
    def needs_candidates(self) -> bool:
        return self.name not in ("standard", "online", "infonce", "siglip")

    @property
    def needs_derived_pairs(self) -> bool:
        return self.name in ("off_quin", "adap_off_quin", "only_offline")
