"""Captions that say the same: false negatives.

Where two images share a caption, or nearly so, the caption of one is right for the other too, and
a model that ranks it high makes no mistake. Words are those of the vocabulary's tokenizer,
lower-case, without punctuation; a caption without any word is like no other.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from aoq.data.vocabulary import tokenize
from aoq.errors import UserError
from aoq.scoring.blocks import evenly_spread
from aoq.types import Bools, Ids, Positives

_MOST_PAIRS = 20_000_000  # of the enlarged relation: 0.3 GB, and 1.2 GB on the way
_PAIRS_AT_ONCE = 1 << 16  # compared at a time: their arrays stay in the cache
_PAIRS_COMPARED = 20_000  # of a data set: some seconds
_BITS_OF = np.array([number.bit_count() for number in range(1 << 16)], np.uint8)


def words_of(caption: str) -> list[str]:
    """Split a caption into words, without punctuation.

    >>> words_of("A dog's ball , on grass .")
    ['a', 'dog', "'s", 'ball', 'on', 'grass']
    """
    return [word for word in tokenize(caption) if any(map(str.isalnum, word))]


def with_equal_captions(positives: Positives, captions: Sequence[str]) -> Positives:
    """Enlarge the relation: an image also gets every text with the words of one of its own.

    The words have to be the same in the same order. A caption of many images becomes a positive
    of each of them: their number squared in pairs, refused where memory could not hold them.

    >>> pairs = Positives.from_pairs([(0, 0), (1, 1), (1, 2)], n_images=2, n_texts=3)
    >>> with_equal_captions(pairs, ["A dog.", "Two cats", "a dog"]).pairs.tolist()
    [[0, 0], [0, 2], [1, 0], [1, 1], [1, 2]]
    """
    numbers: dict[str | int, int] = {}  # of distinct sentences; one without words is its own
    sentence_of = np.array(
        [
            numbers.setdefault(" ".join(words_of(caption)) or text_id, len(numbers))
            for text_id, caption in enumerate(captions)
        ],
        dtype=np.int64,
    )
    sizes = np.bincount(sentence_of, minlength=len(numbers))
    by_sentence = np.argsort(sentence_of, kind="stable")
    starts = np.cumsum(sizes) - sizes

    image_ids, text_ids = positives.pairs.T
    said = np.unique(image_ids * len(numbers) + sentence_of[text_ids])
    images, sentences = np.divmod(said, len(numbers))
    counts = sizes[sentences]
    if counts.sum() > _MOST_PAIRS:
        text_id = by_sentence[starts[sizes.argmax()]]
        raise UserError(
            f"equal captions would make {counts.sum():,} positive pairs; expected at most "
            f"{_MOST_PAIRS:,}. {captions[text_id]!r} alone is there {sizes.max():,} times: "
            "remove captions that say nothing about their image, or mine without this rule."
        )
    first = np.repeat(starts[sentences] - (np.cumsum(counts) - counts), counts)
    texts = by_sentence[first + np.arange(counts.sum())]
    keys = np.sort(np.repeat(images, counts) * positives.n_texts + texts)
    pairs = np.stack(np.divmod(keys, positives.n_texts), axis=1)
    return Positives(pairs, n_images=positives.n_images, n_texts=positives.n_texts)


def same_in_batch(positives: Positives, captions: Sequence[str], *, batch_size: int) -> float:
    """Return how many other pairs of a random batch have a caption with the words of one's own.

    Captions of one image do not count: they are no negatives of each other. Of a large set a sample
    of pairs, evenly spread, is looked at.

    >>> pairs = Positives.from_pairs([(0, 0), (1, 1), (2, 2)], n_images=3, n_texts=3)
    >>> round(same_in_batch(pairs, ["red dress", "Dress, red", "blue hat"], batch_size=4), 2)
    1.0
    """
    numbers: dict[frozenset[str], int] = {}
    images, texts = positives.pairs[evenly_spread(len(positives.pairs), _PAIRS_COMPARED)].T
    words = (frozenset(words_of(captions[text])) for text in texts)
    said = np.array([numbers.setdefault(each, len(numbers)) for each in words], np.int64)
    of_image = np.unique(images * len(numbers) + said, return_counts=True)[1]
    n_same = (np.bincount(said) ** 2).sum() - (of_image**2).sum()
    return float((batch_size - 1) * n_same / max(len(texts) * (len(texts) - 1), 1))


class NearCaptions:
    """Finds texts that nearly equal a caption of an image.

    Two captions are near where their sets of words overlap enough: words in both, over words in
    either (Jaccard), at least `share`. Order and repeats of words do not matter; at a share of 1
    the sets are the same.

    >>> pairs = Positives.from_pairs([(0, 0), (1, 1), (1, 2)], n_images=2, n_texts=3)
    >>> captions = ["A big dog runs.", "Two cats", "a dog runs"]
    >>> NearCaptions(pairs, captions, share=0.7).contains([0, 0], [1, 2]).tolist()
    [False, True]
    """

    def __init__(self, positives: Positives, captions: Sequence[str], *, share: float) -> None:
        self.positives = positives
        self.share = share
        numbers: dict[str, int] = {}
        words = [
            sorted({numbers.setdefault(word, len(numbers)) for word in words_of(caption)})
            for caption in captions
        ]
        self._n_words = len(numbers)
        self._sizes = np.array([len(row) for row in words], np.int64)
        self._starts = np.cumsum(self._sizes) - self._sizes
        self._words = np.array([word for row in words for word in row], np.int64)
        # A bit counts, modulo two, the words that fall on it. Where the bits of two captions
        # differ, at least one of the words there is in one of the two only.
        self._bits = np.zeros(len(words), np.uint64)
        bits = np.left_shift(np.uint64(1), (self._words % 64).astype(np.uint64))
        np.bitwise_xor.at(self._bits, np.repeat(np.arange(len(words)), self._sizes), bits)

    def contains(self, image_ids: npt.ArrayLike, text_ids: npt.ArrayLike) -> Bools:
        """Return whether each text nearly equals a caption of the image; the two broadcast.

        So `contains(anchors[:, None], lists)` serves the images' lists of texts, and
        `contains(lists, anchors[:, None])` the texts' lists of images. An image's own captions
        are near it.
        """
        pieces = np.nditer(
            [np.asarray(image_ids), np.asarray(text_ids), None],
            flags=["external_loop", "buffered", "zerosize_ok"],
            op_flags=[["readonly"], ["readonly"], ["writeonly", "allocate"]],
            op_dtypes=[np.int64, np.int64, np.bool_],
            order="C",
            buffersize=_PAIRS_AT_ONCE,
        )
        with pieces:
            for images, texts, near in pieces:
                near[...] = self._contains(images, texts)
            found: Bools = pieces.operands[2]
        return found

    def _contains(self, images: Ids, texts: Ids) -> Bools:
        """Compare two arrays of equal length, one caption of every image after the other."""
        counts, first = self.positives.texts_per_image()[images], self.positives.starts[images]
        near = np.zeros(len(images), dtype=bool)
        rows = np.arange(len(images))
        for nth in range(counts.max(initial=0)):
            rows = rows[(counts[rows] > nth) & ~near[rows]]
            captions = self.positives.pairs[first[rows] + nth, 1]
            near[rows] = self._are_near(captions, texts[rows])
        return near

    def _are_near(self, one: Ids, other: Ids) -> Bools:
        """Compare captions pair by pair: all by their bits, and those that may be near by words."""
        totals = self._sizes[one] + self._sizes[other]
        differing = (self._bits[one] ^ self._bits[other]).view(np.uint16)
        apart = _BITS_OF[differing].reshape(-1, 4).sum(axis=1)
        near = self._reaches_share(totals, apart)
        rows = np.flatnonzero(near)
        apart = self._words_apart(one[rows], other[rows])
        near[rows] = self._reaches_share(totals[rows], apart)
        return near

    def _reaches_share(self, totals: Ids, apart: npt.NDArray[np.integer]) -> Bools:
        """Compare by the sizes of two sets added, and the words in one of the two only.

        Twice the words in both are totals - apart, twice those in either totals + apart.
        """
        return np.asarray((totals - apart) / np.maximum(totals + apart, 1) >= self.share)

    def _words_apart(self, one: Ids, other: Ids) -> Ids:
        """Count the words in one of two captions only, pair by pair."""
        captions = np.stack([one, other], axis=1).ravel()
        counts = self._sizes[captions]
        first = np.repeat(self._starts[captions] - (np.cumsum(counts) - counts), counts)
        words = self._words[first + np.arange(len(first))]
        pair = np.repeat(np.arange(len(captions)) // 2, counts)
        keys = np.sort(pair * self._n_words + words)
        twice = keys[1:][keys[1:] == keys[:-1]] // self._n_words
        shared = np.bincount(twice, minlength=len(one))
        return np.asarray(self._sizes[one] + self._sizes[other] - 2 * shared)
