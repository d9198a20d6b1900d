"""SCAN (Lee et al., ECCV 2018): stacked cross attention of words and regions.

Each model attends in one direction, t2i or i2t; the published result averages both (`Ensemble`).
"""

from __future__ import annotations

from aoq.config import Direction, ModelConfig
from aoq.models.encoders import RegionsAndWords
from aoq.scoring.cross_attention import Attention

_TEMPERATURE: dict[Direction, float] = {"t2i": 9.0, "i2t": 4.0}
_AGGREGATE_TEMPERATURE: dict[Direction, float] = {"t2i": 6.0, "i2t": 5.0}


class SCAN(RegionsAndWords):
    """Compares regions and words in the joint space through attention in one direction."""

    def __init__(
        self, config: ModelConfig, *, feature_width: int, vocabulary_size: int, text_width: int = 0
    ) -> None:
        super().__init__(
            config,
            feature_width=feature_width,
            vocabulary_size=vocabulary_size,
            text_width=text_width,
            bidirectional=config.bidirectional,
            weight_normed=config.weight_norm,
        )
        direction = config.direction
        temperature = config.temperature or _TEMPERATURE[direction]
        self.attentions = {direction: Attention(temperature=temperature, raw_norm=config.raw_norm)}
        self.aggregate = config.aggregate
        self.aggregate_temperature = (
            config.aggregate_temperature or _AGGREGATE_TEMPERATURE[direction]
        )
