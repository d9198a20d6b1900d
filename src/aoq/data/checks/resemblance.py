"""Finds near-duplicate captions and pictures without comparing all pairs.

Two captions are near if their sets of words differ in one word (added, removed or replaced) and
have four in five words in common. Every set has a number (key), from which the key of the set
without one of its words follows, and near captions share such a key: checking COCO's 600,000
captions takes a few sorts of ten keys per caption.

Two pictures are near if the means of their regions point in one direction, relative to the mean of
all pictures, with each feature standardised. Which copies this finds depends on how they were made:
docs/own-data.md has measured shares.
"""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from aoq.types import Bools, Ids

Keys = npt.NDArray[np.uint64]
Vectors = npt.NDArray[np.float32]

LIKENESS = 0.9  # cosine; different photos of Flickr8k stay below 0.88
# Common words of two captions if they are to be four in five of the words in either:
_SHARED_IF_ONE_MORE = 4
_SHARED_IF_ONE_OTHER = 8
_ROWS_AT_ONCE = 512
_WORD = re.compile(rf"[^\s{re.escape(string.punctuation)}]+")


def words_of(caption: str) -> list[str]:
    """Split a caption at spaces and punctuation, ignoring case.

    >>> words_of("A dog, in snow .")
    ['a', 'dog', 'in', 'snow']
    """
    return _WORD.findall(caption.casefold())


class WordSets:
    """Captions by the keys of their word sets.

    >>> captions = WordSets(["A man on a red bike.", "a man on a bike", "two men"])
    >>> captions.partners(np.array([0, 1, 2])).tolist()
    [1, 0, -1]
    """

    def __init__(self, captions: Sequence[str]) -> None:
        numbers: dict[str, int] = {}
        words = [
            sorted({numbers.setdefault(word, len(numbers)) for word in words_of(caption)})
            for caption in captions
        ]
        sizes = np.array([len(row) for row in words], np.int64)
        captions_of_words = np.repeat(np.arange(len(words)), sizes)
        random = np.random.default_rng(0)
        codes = random.integers(1 << 64, size=len(numbers), dtype=np.uint64)
        codes = codes[np.array([word for row in words for word in row], np.int64)]
        keys = np.zeros(len(words), np.uint64)
        np.bitwise_xor.at(keys, captions_of_words, codes)
        self._sets = keys
        self._whole = _KeyedSets.sorted(np.flatnonzero(sizes), keys[sizes > 0], sizes[sizes > 0])
        self._without_one = _KeyedSets.sorted(
            captions_of_words, keys[captions_of_words] ^ codes, sizes[captions_of_words] - 1
        )

    def partners(self, owners: Ids, *, among: Bools | None = None) -> Ids:
        """Return for every caption a near one with another owner, or -1. (M,)

        Captions that are not in `among` get no partner and are not the partner of others.
        """
        everything = np.ones(len(self._sets), dtype=bool)
        looked_at = everything if among is None else among
        whole = self._whole.where(looked_at[self._whole.captions])
        rest = self._without_one.where(looked_at[self._without_one.captions])
        larger = rest.where(rest.sizes >= _SHARED_IF_ONE_MORE)
        other = rest.where(rest.sizes >= _SHARED_IF_ONE_OTHER)
        partner = np.full(len(self._sets), -1)
        for sets, candidates in ((other, other), (whole, larger), (larger, whole)):
            found = sets.partners(candidates, owners=owners, sets=self._sets)
            partner[sets.captions[found >= 0]] = found[found >= 0]
        return partner


@dataclass(frozen=True, eq=False)
class _KeyedSets:
    """Word sets of captions, sorted by their keys."""

    captions: Ids
    keys: Keys
    sizes: Ids

    @classmethod
    def sorted(cls, captions: Ids, keys: Keys, sizes: Ids) -> _KeyedSets:
        order = np.argsort(keys, kind="stable")
        return cls(captions[order], keys[order], sizes[order])

    def where(self, mask: Bools) -> _KeyedSets:
        return _KeyedSets(self.captions[mask], self.keys[mask], self.sizes[mask])

    def partners(self, candidates: _KeyedSets, *, owners: Ids, sets: Keys) -> Ids:
        """Return for every set a candidate with its key, other words and another owner, or -1.

        Checking the lowest and highest owner of a key is enough: if neither is another, none is.
        If that caption has the same words as the set, the next one with other words is used.
        """
        found = np.full(len(self.keys), -1)
        if not len(candidates.keys):
            return found
        starts = np.flatnonzero(np.diff(candidates.keys, prepend=~candidates.keys[:1]))
        keys = candidates.keys[starts]
        place = np.searchsorted(keys, self.keys).clip(max=len(keys) - 1)
        is_there = keys[place] == self.keys
        n_alike = np.diff(starts, append=len(candidates.keys))
        tags = owners[candidates.captions] * len(owners) + candidates.captions
        for extreme, nothing in ((np.maximum, -1), (np.minimum, np.iinfo(np.int64).max)):
            best = extreme.reduceat(tags, starts)
            words = sets[best % len(owners)]
            has_others = sets[candidates.captions] != np.repeat(words, n_alike)
            second = extreme.reduceat(np.where(has_others, tags, nothing), starts)
            tag = np.where(sets[self.captions] != words[place], best[place], second[place])
            owner, caption = np.divmod(tag, len(owners))
            differs = is_there & (tag != nothing) & (owner != owners[self.captions])
            found[differs] = caption[differs]
        return found


def look_alikes(pictures: Vectors, others: Vectors) -> list[tuple[int, int]]:
    """Return pairs of a picture and its nearest other one, if near; both are means of regions.

    Returns none if there are too few features or pictures for a meaningful likeness.
    """
    both = np.concatenate([pictures, others])
    if both.shape[1] < 64 or len(both) < 64:
        return []
    centre, unit = both.mean(axis=0), both.std(axis=0)
    unit[unit == 0] = 1
    one, other = (_directions((vectors - centre) / unit) for vectors in (pictures, others))
    found: list[tuple[int, int]] = []
    for start in range(0, len(one), _ROWS_AT_ONCE):
        likeness = one[start : start + _ROWS_AT_ONCE] @ other.T
        nearest = likeness.argmax(axis=1)
        rows = np.flatnonzero(likeness[np.arange(len(nearest)), nearest] >= LIKENESS)
        found += [(start + int(row), int(nearest[row])) for row in rows]
    return found


def _directions(vectors: Vectors) -> Vectors:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.maximum(lengths, np.finfo(np.float32).tiny), np.float32)
