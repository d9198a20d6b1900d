"""BFAN (Liu et al., ACM MM 2019): attention both ways that keeps only what matters.

SCAN's encoders; the score is the mean cosine over words plus the mean cosine over regions, up to 2.
The published result averages a model with equal and one with prob focus (`Ensemble`).
"""

from __future__ import annotations

from torch import Tensor, nn

from aoq.config import ModelConfig
from aoq.models.encoders import RegionEncoder, WordEncoder
from aoq.scoring.cross_attention import Attention, CrossAttention
from aoq.types import Encoding, Texts

_TEMPERATURE = 20.0


class BFAN(CrossAttention, nn.Module):
    """Regions and words in the joint space, compared through focal attention both ways."""

    def __init__(self, config: ModelConfig, *, feature_width: int, vocabulary_size: int) -> None:
        super().__init__()
        self.image_encoder = RegionEncoder(
            feature_width=feature_width, joint_width=config.joint_width
        )
        self.text_encoder = WordEncoder(
            vocabulary_size=vocabulary_size,
            word_width=config.word_width,
            joint_width=config.joint_width,
            bidirectional=True,
        )
        attention = Attention(temperature=config.temperature or _TEMPERATURE, focal=config.focal)
        self.attentions = {"t2i": attention, "i2t": attention}

    def encode_images(self, regions: Tensor) -> Encoding:
        encoding: Encoding = self.image_encoder(regions)
        return encoding

    def encode_texts(self, texts: Texts) -> Encoding:
        encoding: Encoding = self.text_encoder(texts)
        return encoding
