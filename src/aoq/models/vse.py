"""VSE++ (Faghri et al., BMVC 2018): mean-pooled regions, a GRU and the inner product.

It is the cheapest model: a baseline, and a teacher that mines in a fraction of the others' time.
"""

from __future__ import annotations

from torch import Tensor, nn

from aoq.config import ModelConfig
from aoq.models.encoders import LastStateTextEncoder, region_projection, unit
from aoq.scoring.inner_product import InnerProduct
from aoq.types import Encoding, Texts


class VSE(InnerProduct, nn.Module):
    """Encodes an image as the unit vector of its mean region, a text as that of its last state."""

    def __init__(self, config: ModelConfig, *, feature_width: int, vocabulary_size: int) -> None:
        super().__init__()
        self.projection = region_projection(feature_width, config.joint_width)
        self.text_encoder = LastStateTextEncoder(
            vocabulary_size=vocabulary_size,
            word_width=config.word_width,
            joint_width=config.joint_width,
        )

    def encode_images(self, regions: Tensor) -> Encoding:
        return Encoding(unit(self.projection(regions.mean(dim=1))))

    def encode_texts(self, texts: Texts) -> Encoding:
        return Encoding(self.text_encoder(texts))
