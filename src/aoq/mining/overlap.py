"""How much of its words a text has in common with captions of an image, for many pairs.

Captions of one image are alike to a known degree, so the likeness of a candidate says how far it
could be one of them. Millions of pairs are compared, so the loop is compiled.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from aoq.compiling import compiled
from aoq.mining.captions import words_of
from aoq.types import Floats, Ids, Positives


class WordOverlap:
    """Compares texts with the captions of images: words in both over words in either (Jaccard).

    Of several captions of an image the one most like the text counts, and never the text itself,
    so a caption of the image is compared with its others. Without any the likeness is NaN.

    >>> pairs = Positives.from_pairs([(0, 0), (1, 1), (1, 2)], n_images=2, n_texts=3)
    >>> overlap = WordOverlap(pairs, ["A dog", "a dog runs", "two cats"])
    >>> print(overlap.of(np.array([0, 1, 1]), np.array([1, 0, 1])).round(2))
    [0.67 0.67 0.  ]
    """

    def __init__(self, positives: Positives, captions: Sequence[str]) -> None:
        numbers: dict[str, int] = {}
        words = [
            sorted({numbers.setdefault(word, len(numbers)) for word in words_of(caption)})
            for caption in captions
        ]
        self._ends = np.cumsum([0, *map(len, words)])
        self._words = np.array([word for row in words for word in row], np.int64)
        self._positives = positives

    def of(self, image_ids: Ids, text_ids: Ids) -> Floats:
        """Compare images and texts pair by pair."""
        own = self._positives
        return _likeness(
            image_ids, text_ids, own.starts, own.pairs[:, 1].copy(), self._ends, self._words
        )


@compiled
def _likeness(
    image_ids: Ids, text_ids: Ids, starts: Ids, captions: Ids, ends: Ids, words: Ids
) -> Floats:
    found = np.full(len(image_ids), np.nan, np.float32)
    for pair in range(len(image_ids)):
        image, text = image_ids[pair], text_ids[pair]
        best = -1.0
        for place in range(starts[image], starts[image + 1]):
            caption = captions[place]
            if caption == text:
                continue
            one, other, common = ends[caption], ends[text], 0
            while one < ends[caption + 1] and other < ends[text + 1]:
                if words[one] == words[other]:
                    common += 1
                    one += 1
                    other += 1
                elif words[one] < words[other]:
                    one += 1
                else:
                    other += 1
            sizes = ends[caption + 1] - ends[caption] + ends[text + 1] - ends[text]
            best = max(best, common / max(sizes - common, 1))
        if best >= 0:
            found[pair] = best
    return found
