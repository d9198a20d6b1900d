"""The words of captions: an index of the photos that have some, ranked by BM25.

A photo's document is all its captions, one after the other. bm25s computes what each word adds to
the score of each document once, so that a query only adds up columns of a sparse matrix. These are
kept as arrays, which a search maps into memory and adds up itself: importing bm25s takes longer
than a search does.

Words are runs of letters and digits in lower case, in any script that separates words; none is left
out or cut to its stem, as that depends on the language.
"""

from __future__ import annotations

import json
import re
import secrets
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from aoq.errors import UserError, require_packages
from aoq.manifest import check_file
from aoq.retrieval.index import Index, damaged
from aoq.storage import atomic_folder, read_json, write_array, write_text
from aoq.types import Floats, Ids

_WORD = re.compile(r"\w+")
WORDS = "words.json"
_ARRAYS = ("photos", "starts", "documents", "scores")


def words_of(text: str) -> list[str]:
    """Split a text into words.

    >>> words_of("A dog's ball, Übung 2")
    ['a', 'dog', 's', 'ball', 'übung', '2']
    """
    return _WORD.findall(text.lower())


@dataclass(frozen=True, eq=False)
class CaptionSearch:
    """What each word adds to the score of each captioned photo: columns of a sparse matrix."""

    vocabulary: dict[str, int]
    saturation: float
    "k1 of BM25."
    normalisation: float
    "b of BM25."
    mean_length: float
    "Words of a document."
    photos: Ids
    "Number of the image of each document. (D,)"
    starts: Ids
    "Where the column of each word starts. (words + 1,)"
    documents: Ids
    "Of each entry of the matrix. (entries,)"
    scores: Floats
    "(entries,)"

    @classmethod
    def build(cls, captions: Sequence[str], photos: Sequence[int]) -> Self:
        """Index the captions of photos, joined for each photo."""
        require_packages("bm25s", extra="search")
        import bm25s

        documents = [words_of(caption) for caption in captions]
        ranker = bm25s.BM25(method="lucene")
        ranker.index(documents, create_empty_token=False, show_progress=False)
        matrix = ranker.scores
        return cls(
            ranker.vocab_dict,
            ranker.k1,
            ranker.b,
            float(np.mean([len(words) for words in documents])),
            np.array(photos, np.int64),
            matrix["indptr"],
            matrix["indices"],
            matrix["data"],
        )

    def save(self, folder: Path) -> None:
        """Write all files, whole or not at all."""
        with atomic_folder(folder, what="part of an index") as temporary:
            for name in _ARRAYS:
                write_array(temporary / f"{name}.npy", getattr(self, name))
            fields = {
                "saturation": self.saturation,
                "normalisation": self.normalisation,
                "mean_length": self.mean_length,
                "vocabulary": self.vocabulary,
            }
            write_text(temporary / WORDS, json.dumps(fields, ensure_ascii=False))

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Read the vocabulary, and map the matrix into memory."""
        try:
            fields: dict[str, Any] = read_json(folder / WORDS)
            arrays = {}
            for name in _ARRAYS:
                check_file(folder / f"{name}.npy")
                arrays[name] = np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False)
            return cls(**fields, **arrays)
        except (UserError, OSError, ValueError, TypeError) as error:
            raise damaged(folder, f"its captions cannot be read: {error}") from None

    def rank_all(self, text: str, *, n_images: int) -> Floats:
        """Score every image of the index; 0 without any of the words. (n_images,)"""
        found = np.zeros(len(self.photos), np.float32)
        for word in words_of(text):
            column = self._column(word)
            found[self.documents[column]] += self.scores[column]  # a document is there once
        scores = np.zeros(n_images, np.float32)
        scores[self.photos] = found
        return scores

    def score_document(self, text: str, captions: Sequence[str]) -> float:
        """Score a document that is not indexed, among those that are.

        The captions of a photo without one of them, which is the query, are such a document.
        """
        counts = Counter(word for caption in captions for word in words_of(caption))
        length = counts.total() / self.mean_length
        dampened = self.saturation * (1 - self.normalisation + self.normalisation * length)
        return sum(
            self.rarity(word) * counts[word] / (counts[word] + dampened) for word in words_of(text)
        )

    def rarity(self, word: str) -> float:
        """Return the inverse document frequency of a word; 0 for one that no caption has."""
        column = self._column(word)
        having = column.stop - column.start
        return float(np.log1p((len(self.photos) - having + 0.5) / (having + 0.5))) if having else 0

    def closest(self, text: str, captions: Sequence[str]) -> int:
        """Return the position of the caption that shares most with a text; else the first."""
        wanted = {word: self.rarity(word) for word in words_of(text)}
        shared = [sum(wanted.get(word, 0) for word in set(words_of(each))) for each in captions]
        return int(np.argmax(shared))

    def _column(self, word: str) -> slice:
        place = self.vocabulary.get(word)
        if place is None:
            return slice(0, 0)
        return slice(int(self.starts[place]), int(self.starts[place + 1]))


def caption_search(index: Index) -> CaptionSearch | None:
    """Index the captions of all photos that have some; None if none has."""
    photos = [image for image in index.images if image.texts]
    captions = [" ".join(index.texts[text].text for text in image.texts) for image in photos]
    if not any(map(words_of, captions)):
        return None
    return CaptionSearch.build(captions, [image.number for image in photos])


def write_captions(index: Index) -> str | None:
    """Write the search of an index' captions into its folder; return its name, if there is any."""
    search = caption_search(index)
    if search is None:
        return None
    name = f"captions-{secrets.token_hex(4)}"
    search.save(index.folder / name)
    return name
