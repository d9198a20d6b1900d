"""Queries: everything that can be asked of an index at once, as one value.

A query adds up sentences and photos, takes words away, and says which entries may answer it and how
good an answer has to be. It is checked when it is made, so what asks it can rely on it.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, SupportsIndex, get_args

from aoq.errors import QueryError
from aoq.parsing import shown
from aoq.retrieval.duplicates import SAME
from aoq.retrieval.encoder import ReadPicture
from aoq.retrieval.filters import Filter
from aoq.scoring.encoded import Modality

Given = Path | bytes | ReadPicture
Image = Given | SupportsIndex  # or the number of one in the index
Text = str | SupportsIndex
Words = Literal["auto", "only", "off"]

WITHOUT_WEIGHT = 0.5


@dataclass(frozen=True, kw_only=True)
class Query:
    """What is asked; at least one text or image is needed."""

    texts: Sequence[Text] = ()
    "Sentences, or numbers of texts of the index."
    images: Sequence[Image] = ()
    "Photos that the answer should be like: files, their bytes, or numbers of images of the index."
    without: Sequence[str] = ()
    "Words for what should not be there."
    weights: Sequence[float] = ()
    "One per text, then one per image; default: 1 each."
    without_weight: float = WITHOUT_WEIGHT
    "How much each of `without` counts against the answer."
    find: Modality = "images"
    where: Filter | str | None = None
    "Which photos may be found, or the texts of these."
    top: int = 10
    min_score: float | None = None
    "Lowest score of a hit."
    min_precision: float | None = None
    "Share of the hits above the lowest score that is right, on the data that calibrated scores."
    words: Words = "auto"
    "Whether captions are searched for the words of the texts: if there are any, only, or never."
    collapse: bool = False
    "Show near-duplicates as one hit."
    same: float = SAME
    "Cosine from which two photos are near-duplicates."

    def __post_init__(self) -> None:
        for name in ("texts", "images", "without", "weights"):
            object.__setattr__(self, name, _items(name, getattr(self, name)))
        object.__setattr__(self, "top", _count(self.top))
        if isinstance(self.where, str):
            object.__setattr__(self, "where", Filter.parse(self.where))
        if not self.texts and not self.images:
            raise QueryError("the query is empty; give at least one sentence or one photo.")
        self._check_choices()
        self._check_weights()
        self._check_bars()

    def _check_choices(self) -> None:
        for name, choices in (("find", Modality), ("words", Words)):
            allowed = get_args(choices)
            if getattr(self, name) not in allowed:
                raise QueryError(
                    f"{name} is {shown(getattr(self, name))}; expected {' or '.join(allowed)}."
                )
        if self.words == "only" and (self.find != "images" or not self.texts or self.images):
            raise QueryError(
                "only words are to be searched, which finds photos by their captions; give "
                "sentences and no photo, or leave that out."
            )
        if self.collapse and self.find != "images":
            raise QueryError("only photos have duplicates that could be collapsed.")
        for text in self.without:
            if not isinstance(text, str):
                raise QueryError(f"{shown(text)} cannot be excluded; expected words.")

    def _check_weights(self) -> None:
        terms = len(self.texts) + len(self.images)
        if self.weights and len(self.weights) != terms:
            raise QueryError(
                f"{len(self.weights)} weights are given for {terms} texts and photos; give one "
                "each, first those of the texts, or none."
            )
        for weight in (*self.weights, self.without_weight):
            if not _is_number(weight) or weight <= 0:
                raise QueryError(f"{shown(weight)} is not a weight; expected a number above 0.")

    def _check_bars(self) -> None:
        if self.min_score is not None and not _is_number(self.min_score):
            raise QueryError(f"{shown(self.min_score)} is not a score; expected a number.")
        if not _is_number(self.same) or not 0 < self.same <= 1:
            raise QueryError(f"{shown(self.same)} is not a cosine; expected one between 0 and 1.")
        share = self.min_precision
        if share is not None and not (_is_number(share) and 0 < share < 1):
            raise QueryError(
                f"{shown(share)} is not a precision; expected a share between 0 and 1, such as 0.8."
            )

    @property
    def weight_of_each(self) -> Sequence[float]:
        """The weights of the texts, then those of the images."""
        return self.weights or (1.0,) * (len(self.texts) + len(self.images))

    @property
    def asks_across(self) -> bool:
        """Whether one text alone asks for images, or one image alone for texts."""
        n_texts, n_images = (1, 0) if self.find == "images" else (0, 1)
        is_single = len(self.texts) == n_texts and len(self.images) == n_images
        return is_single and not self.without

    @property
    def searches_captions(self) -> bool:
        """Whether captions are searched, if there are any: a photo beside texts has no words."""
        return self.words != "off" and self.find == "images" and not self.images


def _items(name: str, values: object) -> tuple[Any, ...]:
    if isinstance(values, str | bytes | Path) or not isinstance(values, Sequence):
        raise QueryError(f"{name} is {shown(values)}; expected a list.")
    return tuple(values)


def _count(top: object) -> int:
    if isinstance(top, bool) or not isinstance(top, SupportsIndex):
        raise QueryError(f"top is {shown(top)}, which is not a number; expected how many.")
    count = operator.index(top)
    if count < 1:
        raise QueryError(f"the first {count} cannot be found; ask for 1 or more.")
    return count


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
