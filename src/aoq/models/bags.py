"""Texts as bags of words: which words a text has, and how much each of them tells.

A bag is the row of a matrix of texts and words, of which only the words that a text has are kept:
with the unit-length weights w_1 ... w_T of its words, a linear map of the bag is the sum of
w_k M[word_k], and no row as wide as the vocabulary is ever made.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding_bag

from aoq.config import WordWeights
from aoq.data.vocabulary import SPECIAL_WORDS
from aoq.types import Texts

_SHORTEST = 1e-8


class BagOfWords(nn.Module):
    """Weighs the words of a text, so that its bag has unit length; unknown words count nothing.

    tfidf: a word that d of M texts have counts ln((1 + M) / (1 + d)) + 1. counts: all count alike.
    """

    rarity: Tensor

    def __init__(self, vocabulary_size: int, *, weights: WordWeights) -> None:
        super().__init__()
        self.is_weighted = weights == "tfidf"
        rarity = torch.ones(vocabulary_size)
        rarity[: len(SPECIAL_WORDS)] = 0.0
        self.register_buffer("rarity", rarity)

    def fit(self, texts: Texts) -> None:
        """Count in how many of some texts each word is."""
        if not self.is_weighted:
            return
        words = texts.tokens.sort(dim=1).values
        first = torch.ones_like(words, dtype=torch.bool)
        first[:, 1:] = words[:, 1:] != words[:, :-1]
        counts = torch.bincount(words[first], minlength=len(self.rarity))
        rarity = torch.log((1 + len(words)) / (1 + counts)) + 1
        self.rarity.copy_(torch.where(self.rarity > 0, rarity, 0.0))

    def forward(self, texts: Texts) -> Tensor:
        """Return the weight of each word; a word that is there twice has half of it twice. (B, T)

        |bag|^2 is the sum of w_k w_l over all places k and l with the same word.
        """
        tokens = texts.tokens
        weights = self.rarity[tokens] * texts.mask
        same = tokens[:, :, None] == tokens[:, None, :]  # (B, T, T)
        squares = torch.einsum("bk,bl,bkl->b", weights, weights, same.to(weights.dtype))
        return weights / squares.sqrt().clamp(min=_SHORTEST)[:, None]


def map_bags(tokens: Tensor, weights: Tensor, matrix: Tensor) -> Tensor:
    """Multiply bags by a matrix (V, D) of their words. (B, D)"""
    weights = weights.to(matrix.dtype)
    return embedding_bag(tokens, matrix, per_sample_weights=weights, mode="sum")
