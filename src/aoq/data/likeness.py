"""How alike captions are, by their words: what semantic margins shrink with.

Where a text says nearly what a caption of an image says, the two may well belong together though
the data set does not say so. Case, punctuation, repeats and the order of words do not matter.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from aoq.data.checks.resemblance import words_of
from aoq.types import Ids, Positives


class CaptionLikeness:
    """Compares texts with the captions of images: words in both over words in either (Jaccard).

    Of several captions of an image the one most like the text counts.

    >>> pairs = Positives.from_pairs([(0, 0), (1, 1), (1, 2)], n_images=2, n_texts=3)
    >>> likeness = CaptionLikeness(pairs, ["A big dog runs.", "Two cats", "a dog runs"])
    >>> likeness.between(np.array([0, 1]), np.array([0, 1]))
    tensor([[1.0000, 0.0000],
            [0.7500, 1.0000]])
    """

    def __init__(self, positives: Positives, captions: Sequence[str]) -> None:
        self.positives = positives
        numbers: dict[str, int] = {}
        self._words = [
            np.array(sorted({numbers.setdefault(word, len(numbers)) for word in words_of(caption)}))
            for caption in captions
        ]
        self._n_words = len(numbers)

    def between(self, image_ids: Ids, text_ids: Ids) -> Tensor:
        """Compare every image with every text: 0 without a common word, 1 if all are. (N, M)"""
        images, places = np.unique(image_ids, return_inverse=True)
        captions = [self.positives.texts_of(image) for image in images]
        said, asked = self._word_sets(np.concatenate(captions)), self._word_sets(text_ids)
        common = torch.sparse.mm(said, asked.to_dense().T)  # (captions, M)
        sizes = torch.sparse.sum(said, dim=1).to_dense()
        either = sizes[:, None] + torch.sparse.sum(asked, dim=1).to_dense() - common
        shares = (common / either.clamp(min=1)).split([len(texts) for texts in captions])
        best = torch.stack([of_image.amax(dim=0) for of_image in shares])
        return best[torch.from_numpy(places)]

    def _word_sets(self, text_ids: Ids) -> Tensor:
        """One where a text has a word of the data set, as a sparse matrix. (texts, words)"""
        words = [self._words[text] for text in text_ids]
        rows = np.repeat(np.arange(len(words)), [len(row) for row in words])
        places = torch.from_numpy(np.stack([rows, np.concatenate(words).astype(np.int64)]))
        shape = len(words), self._n_words
        return torch.sparse_coo_tensor(
            places, torch.ones(len(rows)), shape, is_coalesced=True, check_invariants=False
        )
