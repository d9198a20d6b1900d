"""From ids of a data set to the tensors of a batch."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from aoq.data.dataset import PairDataset
from aoq.data.vocabulary import PAD, UNKNOWN, Vocabulary
from aoq.types import Ids, Texts


class Collator:
    """Reads rows of one data set as tensors; captions are tokenised once, when first needed."""

    def __init__(
        self, dataset: PairDataset, vocabulary: Vocabulary, *, device: str | torch.device = "cpu"
    ) -> None:
        self.dataset = dataset
        self.vocabulary = vocabulary
        self.device = torch.device(device)

    @cached_property
    def _tokens(self) -> list[Ids]:
        return [
            np.asarray(self.vocabulary.encode(caption), dtype=np.int64)
            for caption in self.dataset.captions
        ]

    @cached_property
    def text_lengths(self) -> Ids:
        """Words of each text, `<start>` and `<end>` included. (M,)"""
        return np.array([len(words) for words in self._tokens], dtype=np.int64)

    def unknown_texts(self) -> Ids:
        """The texts without a single word of the vocabulary."""
        return np.array(
            [i for i, words in enumerate(self._tokens) if (words[1:-1] == UNKNOWN).all()],
            dtype=np.int64,
        )

    def regions(self, image_ids: Ids) -> Tensor:
        """Features of some images, read from the memory-mapped file. (B, R, F)"""
        rows = np.asarray(self.dataset.features[image_ids])  # a copy: the file stays as it is
        return torch.from_numpy(rows).to(self.device, torch.float32)

    def texts(self, text_ids: Ids) -> Texts:
        """Word ids of some texts, padded to the longest of them."""
        rows = [self._tokens[text_id] for text_id in text_ids]
        lengths = np.array([len(row) for row in rows], dtype=np.int64)
        tokens = np.full((len(rows), lengths.max()), PAD, dtype=np.int64)
        for row, words in zip(tokens, rows, strict=True):
            row[: len(words)] = words
        return Texts(torch.from_numpy(tokens), torch.from_numpy(lengths)).to(self.device)
