"""Captions and pictures that are nearly the same, found among all without comparing all pairs.

Two captions are near where their sets of words differ in one word, more, fewer or other, and have
four in five words in common. Every set has a number, that of a set without one of its words follows
from it, and near captions are those that have such a number in common: to look among COCO's 600,000
captions takes a few sorts of ten numbers a caption.

Two pictures are near where the means of their regions point in one direction, seen from the mean
of all pictures, each feature in its own unit. Which copies that finds depends on what was done to
them: docs/own-data.md has measured shares.
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
# Words in both of two captions, if these are to be four in five of the words in either:
_SHARED_IF_ONE_MORE = 4
_SHARED_IF_ONE_OTHER = 8
_ROWS_AT_ONCE = 512
_WORD = re.compile(rf"[^\s{re.escape(string.punctuation)}]+")


def words_of(caption: str) -> list[str]:
    """What lies between spaces and punctuation, without regard to case.

    >>> words_of("A dog, in snow .")
    ['a', 'dog', 'in', 'snow']
    """
    return _WORD.findall(caption.casefold())


class WordSets:
    """Captions by the numbers of their sets of words.

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
        """For every caption one that is near it and has another owner, or -1. (M,)

        Captions that are not `among` those to look at have none and are none.
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
    """Sets of words, each of a caption, in the order of their keys."""

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
        """For every set a candidate with its key, but other words and another owner, or -1.

        Of all owners of a key the least and the greatest will do: if neither is another, none is.
        Where that caption has the very words of a set, the next that has others stands in.
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
    """Pictures that are near one of the others, with the nearest; both are means of regions.

    Fewer features or pictures than the likeness needs to mean something give none.
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
