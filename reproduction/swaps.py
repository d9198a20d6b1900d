"""Captions with one word swapped, made by rule: a colour, a number, a side, an object.

A swap replaces the first word of a kind that can be swapped by a word of the same group, so that
the caption no longer describes the photo. The rules are in docs/details.md.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from aoq.data.dataset import PairDataset

_WORDS = re.compile(r"[a-z0-9]+")
_SIDE_BEFORE = re.compile(r"\b(the|his|her|its|their|'s) $", re.IGNORECASE)
_ARTICLE_BEFORE = re.compile(r"\b(a)n? $", re.IGNORECASE)


@dataclass(frozen=True)
class Sense:
    """Words for one thing.

    `forms` are swapped with those of other senses, singular with singular. `others` are never
    swapped, but a caption with one of them names the thing too.
    """

    forms: tuple[str, ...]
    others: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, text: str) -> Sense:
        """Read the forms, and after a bar the other words.

        >>> Sense.parse("dog dogs | puppy").forms
        ('dog', 'dogs')
        """
        forms, _, others = text.partition("|")
        return cls(tuple(forms.split()), frozenset(others.split()))

    def is_named(self, words: frozenset[str]) -> bool:
        return not words.isdisjoint((*self.forms, *self.others))


Group = tuple[Sense, ...]


def _group(*senses: str) -> Group:
    return tuple(map(Sense.parse, senses))


_MALE = "guy guys male males gentleman gentlemen"
_FEMALE = "lady ladies female females"
KINDS: Mapping[str, tuple[Group, ...]] = {
    "colour": (
        _group(
            *("black", "white", "red | maroon", "blue | navy", "green", "pink", "orange"),
            *("yellow | gold golden blond blonde", "brown | tan beige", "purple | violet"),
            "gray | grey silver",
        ),
    ),
    "number": (
        _group(
            "two | 2 both couple pair twins", "three | 3 trio", "four | 4", "five | 5", "six | 6"
        ),
    ),
    "side": (_group("left", "right"),),
    "object": (
        _group(f"man men | boy boys {_MALE}", f"woman women | girl girls {_FEMALE}"),
        _group(f"boy boys | man men {_MALE}", f"girl girls | woman women {_FEMALE}"),
        _group(
            "dog dogs | puppy puppies pup",
            "cat cats | kitten kittens",
            "horse horses | pony ponies",
            "bird birds | duck ducks seagull seagulls",
            "cow cows | bull bulls",
        ),
        _group(
            "car cars | truck trucks van vehicle vehicles jeep",
            "boat boats | canoe kayak raft ship sailboat",
            "bike bikes | bicycle bicycles motorcycle motorcycles biker bikers bicyclist",
            "skateboard skateboards | skateboarder skateboarders",
        ),
        _group(
            "snow | snowy ice",
            "grass | grassy lawn field",
            "sand | sandy beach",
            "water | ocean sea lake river stream pond pool wave waves",
        ),
    ),
}


@dataclass(frozen=True)
class Swap:
    """A caption, and the same with another word."""

    image: int
    caption: int
    kind: str
    word: str
    other: str
    text: str
    "The caption with the other word."
    to_rarer: bool
    "Whether the true word is more frequent on train than the other one."


def find_swaps(dataset: PairDataset, counts: Counter[str]) -> list[Swap]:
    """Make at most one swap of each kind from each caption; `counts` are those of `count_words`."""
    captions = dataset.captions
    found = []
    pairs, starts = dataset.positives.pairs, dataset.positives.starts
    for image in range(len(dataset)):
        own = [int(text) for text in pairs[starts[image] : starts[image + 1], 1]]
        named = frozenset(word for text in own for word in words_in(captions[text]))
        for text in own:
            for kind in KINDS:
                swapped = swap(captions[text], kind, named=named, counts=counts)
                if swapped is not None:
                    word, other, _ = swapped
                    to_rarer = counts[word] > counts[other]
                    found.append(Swap(image, text, kind, *swapped, to_rarer))
    return found


def swap(
    caption: str, kind: str, *, named: frozenset[str], counts: Mapping[str, int]
) -> tuple[str, str, str] | None:
    """Return the first word of a kind that can be swapped, the other word, and the new caption.

    `named` are the words of all captions of the photo. Words that are more frequent in training are
    drawn more often, as they also occur more often; the draw depends on the caption alone.

    >>> swap("A little boy runs", "object", named=frozenset({"boy"}), counts={})
    ('boy', 'girl', 'A little girl runs')
    """
    for start, word, others in _candidates(caption, kind, named):
        if others:
            weights = [counts.get(other, 0) + 1 for other in others]
            other = random.Random(f"{kind}: {caption}").choices(others, weights)[0]
            return word, other, _replaced(caption, start, word, other)
    return None


def count_words(captions: Iterable[str]) -> Counter[str]:
    return Counter(word for caption in captions for word in words_in(caption))


def words_in(caption: str) -> list[str]:
    """Return the words of a caption; hyphens divide them.

    >>> words_in("A black-and-white dog 's toy")
    ['a', 'black', 'and', 'white', 'dog', 's', 'toy']
    """
    return _WORDS.findall(caption.lower())


def _candidates(
    caption: str, kind: str, named: frozenset[str]
) -> Iterator[tuple[int, str, Sequence[str]]]:
    """Yield the words of a kind with their places, and the words that could stand there."""
    for found in re.finditer(r"(?<![\w'-])[a-z]+(?![\w'-])", caption, re.IGNORECASE):
        word = found[0].lower()
        if kind == "side" and not _SIDE_BEFORE.search(caption[: found.start()]):
            continue  # as in "right behind", "has left"
        for group in KINDS[kind]:
            for form in (sense.forms.index(word) for sense in group if word in sense.forms):
                free = [sense for sense in group if not sense.is_named(named)]
                yield found.start(), word, [sense.forms[form] for sense in free]


def _replaced(caption: str, start: int, word: str, other: str) -> str:
    """Put a word in the place of another; the article before it and a capital letter follow."""
    before, after = caption[:start], caption[start + len(word) :]
    ending = "n " if other[0] in "aeiou" else " "
    before = _ARTICLE_BEFORE.sub(lambda article: article[1] + ending, before)
    return before + (other.capitalize() if caption[start].isupper() else other) + after
