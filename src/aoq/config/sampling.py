"""Settings of the draws from candidate lists."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from aoq.config.checks import require, require_counts
from aoq.field_types import settle_types


@dataclass(frozen=True, kw_only=True)
class SamplingConfig:
    """How offline hard negatives are drawn from the candidate lists."""

    depth_texts: int = 300
    "Texts are drawn from the first N of an image's list (h)."
    depth_images: int = 60
    "Images are drawn from the first N of a text's list."
    draws: Literal["uniform", "normal"] = "uniform"
    "Uniform over the list, or normal around its middle: sigma is a sixth of it, cut to the list."
    ranks: Literal["independent", "coupled"] = "independent"
    "Draw text and image separately, or one rank n for the text and n // 5 for the image."
    avoid_matches: bool = False
    """Draw candidates in proportion to 1 - p, the probability that they are no match; the lists
    need mining.estimate_matches."""
    redraw: bool = True
    "Draw again if the drawn image and text belong together."
    tries: int = 10
    "Number of redraws before the exhaustive search for a pair that does not belong together."

    def __post_init__(self) -> None:
        settle_types(self)
        require_counts(self, "depth_texts", "depth_images", "tries")
        require(
            not self.avoid_matches or self.ranks == "independent",
            "sampling.avoid_matches draws text and image by their own probabilities, and ranks are "
            "coupled; set sampling.ranks to independent.",
        )
