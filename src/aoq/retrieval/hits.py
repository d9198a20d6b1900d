"""Hits: what a matcher finds, and where the words of a text attend."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from aoq.retrieval.calibration import Calibration

if TYPE_CHECKING:
    from aoq.features.regions import Boxes

RankedBy = Literal["model", "words", "merged"]
Weights = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Hit:
    """An image or a text that was found."""

    number: int
    id: str
    score: float
    "What ranks it: the model's score, that of its captions, or both merged."
    text: str
    "Words of a text; of an image the caption that fits, else the first one, or empty."
    picture: Path | None
    correct: bool | None
    "Whether it belongs to the query; known only if the query is an entry of the index."
    probability: float | None = None
    "That it belongs to the query, as dev has shown or a SigLIP that was imported gives it."
    model_score: float | None = None
    "None if the model was not asked."
    words_score: float | None = None
    "BM25 of its captions; None if they were not searched."
    duplicates: tuple[int, ...] = ()
    "Numbers of worse hits that show the same."

    @property
    def count(self) -> int:
        """Number of photos that this hit stands for."""
        return 1 + len(self.duplicates)

    @property
    def picture_gone(self) -> bool:
        """Whether the picture is no longer where it was indexed."""
        return self.picture is not None and not self.picture.is_file()


@dataclass(frozen=True)
class Answer:
    """The hits of a query, best first; equal scores by the lower number."""

    hits: tuple[Hit, ...]
    unknown_words: tuple[str, ...]
    "Words of the query that the model does not know and treats all alike."
    exact: bool
    "Whether everything was scored, not only what a teacher proposed."
    ranked_by: RankedBy = "model"
    calibration: Calibration | None = None
    "Where probabilities come from; None: from the model itself, or there are none."
    bar: float | None = None
    "Lowest score of a hit, if one was asked for."

    @property
    def nothing_fits(self) -> bool:
        """Whether everything that was found is below the bar."""
        return self.bar is not None and not self.hits


@dataclass(frozen=True)
class AttentionMap:
    """The attention of words to regions and of regions to words; None if a model has no such.

    The marks for the start and the end of a text take part in attention but are not words. They are
    omitted without rescaling, so the weights of a region that attends to them sum to less than 1.
    """

    score: float
    "Higher is closer."
    words: tuple[str, ...]
    known: tuple[bool, ...]
    boxes: Boxes | None
    "Left, top, right, bottom of each region, as shares of width and height. (R, 4)"
    by_word: Weights | None
    "Weights of the regions for each word; they sum to 1. (T, R)"
    by_region: Weights | None
    "Weights of the words for each region. (R, T)"
