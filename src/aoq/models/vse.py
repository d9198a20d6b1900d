"""VSE++ (Faghri et al., BMVC 2018): mean-pooled regions, a GRU and the inner product.

It is the cheapest model: a baseline, and a teacher that mines in a fraction of the others' time.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from aoq.config import ModelConfig
from aoq.models.encoders import (
    ReadsRegions,
    RegionInputs,
    make_text_encoder,
    region_projection,
    unit,
)
from aoq.models.heads import GeneralisedPooling
from aoq.scoring.inner_product import InnerProduct
from aoq.types import Encoding, Texts


class VSE(ReadsRegions, InnerProduct, nn.Module):
    """Encodes an image as the unit vector of its mean region, a text as that of its last state.

    With generalised pooling of the regions it is VSE-infinity (Chen et al., CVPR 2021).
    """

    def __init__(
        self, config: ModelConfig, *, feature_width: int, vocabulary_size: int, text_width: int = 0
    ) -> None:
        super().__init__()
        self.inputs = RegionInputs(config, feature_width)
        self.projection = region_projection(feature_width, config.joint_width)
        is_generalised = config.image_pooling == "generalised"
        self.pooling = GeneralisedPooling() if is_generalised else None
        self.text_encoder = make_text_encoder(
            config, vocabulary_size=vocabulary_size, text_width=text_width
        )

    def encode_images(self, regions: Tensor) -> Encoding:
        regions = self.inputs(regions)
        if self.pooling is None:
            return Encoding(unit(self.projection(regions.mean(dim=1))))
        everywhere = regions.new_ones(regions.shape[:2], dtype=torch.bool)
        return Encoding(unit(self.pooling(self.projection(regions), everywhere)))

    def encode_texts(self, texts: Texts) -> Encoding:
        vectors: Tensor = self.text_encoder(texts)
        return Encoding(vectors)
