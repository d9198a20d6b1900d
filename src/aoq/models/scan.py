"""SCAN (Lee et al., ECCV 2018): stacked cross attention of words and regions.

One direction a model, t2i or i2t; the published result averages one of each (`Ensemble`).
"""

from __future__ import annotations

from aoq.config import Direction, ModelConfig
from aoq.models.encoders import RegionsAndWords
from aoq.scoring.cross_attention import Attention

_TEMPERATURE: dict[Direction, float] = {"t2i": 9.0, "i2t": 4.0}
_AGGREGATE_TEMPERATURE: dict[Direction, float] = {"t2i": 6.0, "i2t": 5.0}


class SCAN(RegionsAndWords):
    """Regions and words in the joint space, compared through attention one way."""

    def __init__(self, config: ModelConfig, *, feature_width: int, vocabulary_size: int) -> None:
        super().__init__(
            config,
            feature_width=feature_width,
            vocabulary_size=vocabulary_size,
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
