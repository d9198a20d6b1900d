"""SCAN (Lee et al., ECCV 2018): stacked cross attention of words and regions.

One direction a model, t2i or i2t; the published result averages one of each (`Ensemble`).
"""

from __future__ import annotations

from torch import Tensor, nn

from aoq.config import Direction, ModelConfig
from aoq.models.encoders import RegionEncoder, WordEncoder
from aoq.scoring.cross_attention import Attention, CrossAttention
from aoq.types import Encoding, Texts

_TEMPERATURE: dict[Direction, float] = {"t2i": 9.0, "i2t": 4.0}
_AGGREGATE_TEMPERATURE: dict[Direction, float] = {"t2i": 6.0, "i2t": 5.0}


class SCAN(CrossAttention, nn.Module):
    """Regions and words in the joint space, compared through attention one way."""

    def __init__(self, config: ModelConfig, *, feature_width: int, vocabulary_size: int) -> None:
        super().__init__()
        self.image_encoder = RegionEncoder(
            feature_width=feature_width,
            joint_width=config.joint_width,
            weight_normed=config.weight_norm,
        )
        self.text_encoder = WordEncoder(
            vocabulary_size=vocabulary_size,
            word_width=config.word_width,
            joint_width=config.joint_width,
            bidirectional=config.bidirectional,
        )
        direction = config.direction
        self.attentions = {
            direction: Attention(
                temperature=config.temperature or _TEMPERATURE[direction], raw_norm=config.raw_norm
            )
        }
        self.aggregate = config.aggregate
        self.aggregate_temperature = (
            config.aggregate_temperature or _AGGREGATE_TEMPERATURE[direction]
        )

    def encode_images(self, regions: Tensor) -> Encoding:
        encoding: Encoding = self.image_encoder(regions)
        return encoding

    def encode_texts(self, texts: Texts) -> Encoding:
        encoding: Encoding = self.text_encoder(texts)
        return encoding
