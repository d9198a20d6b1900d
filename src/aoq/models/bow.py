"""A bag-of-words VSE: the mean region and the words of a text, each through a head.

It knows neither the order of words nor where anything is, trains in a minute or two on one core,
and is hard to beat on small sets: what another model has learned is what it has above this one and
CCA.
"""

from __future__ import annotations

from torch import Tensor, nn

from aoq.config import ModelConfig
from aoq.models.bags import BagOfWords, map_bags
from aoq.models.encoders import Thinning, unit, word_embedding
from aoq.models.heads import Head, Standardised
from aoq.scoring.inner_product import InnerProduct
from aoq.types import Encoding, Texts


class BOW(InnerProduct, nn.Module):
    """Encodes an image by its mean region and a text by its bag; the score is the cosine."""

    def __init__(
        self, config: ModelConfig, *, feature_width: int, vocabulary_size: int, text_width: int = 0
    ) -> None:
        super().__init__()
        self.scaled = Standardised(feature_width)
        self.image_head = Head(config, feature_width, dropout=config.feature_dropout)
        self.bag = BagOfWords(vocabulary_size, weights=config.word_weights)
        self.word_thinning = Thinning(features=0.0, vectors=config.drop_words)
        self.embedding = word_embedding(vocabulary_size, config.word_width)
        self.text_head = Head(config, config.word_width, dropout=config.word_dropout)

    def encode_images(self, regions: Tensor) -> Encoding:
        return Encoding(unit(self.image_head(self.scaled(regions.mean(dim=1)))))

    def encode_texts(self, texts: Texts) -> Encoding:
        weights = self.word_thinning(self.bag(texts)[..., None])[..., 0]
        vectors = map_bags(texts.tokens, weights, self.embedding.weight)
        return Encoding(unit(self.text_head(vectors)))

    def fit_inputs(self, regions: Tensor, texts: Texts) -> None:
        """Standardise the mean regions, and count words, by some of the training data."""
        self.scaled.standardise(regions.mean(dim=1))
        self.bag.fit(texts)
