"""BFAN (Liu et al., ACM MM 2019): attention in both directions that drops what does not matter.

BFAN uses SCAN's encoders; the score is the mean cosine over words plus the mean cosine over
regions, up to 2. The published result averages a model with equal and one with prob focus
(`Ensemble`).
"""

from __future__ import annotations

from aoq.config import ModelConfig
from aoq.models.encoders import RegionsAndWords
from aoq.scoring.cross_attention import Attention

_TEMPERATURE = 20.0


class BFAN(RegionsAndWords):
    """Compares regions and words in the joint space through focal attention in both directions."""

    def __init__(
        self, config: ModelConfig, *, feature_width: int, vocabulary_size: int, text_width: int = 0
    ) -> None:
        super().__init__(
            config,
            feature_width=feature_width,
            vocabulary_size=vocabulary_size,
            text_width=text_width,
            bidirectional=True,
            weight_normed=False,
        )
        attention = Attention(temperature=config.temperature or _TEMPERATURE, focal=config.focal)
        self.attentions = {"t2i": attention, "i2t": attention}
