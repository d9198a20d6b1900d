"""Images and texts as users see them: on pages, in print and on the terminal."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from aoq.data.dataset import PairDataset


@dataclass(frozen=True)
class Item:
    """An image or a text of a data set; an image comes with one of its own texts."""

    number: int
    "Its position in the data set."
    name: str
    text: str
    picture: Path | None = None
    "The path of the picture, if this is an image and the path is known."
    score: float | None = None
    right: bool = False
    note: str = ""

    @classmethod
    def of_image(cls, dataset: PairDataset, number: int, /, *, score: float | None = None) -> Item:
        """Describe an image by the first of its texts."""
        return cls(
            number,
            dataset.image_ids[number],
            dataset.captions[dataset.positives.texts_of(number)[0]],
            dataset.pictures[number],
            score,
        )

    @classmethod
    def of_text(cls, dataset: PairDataset, number: int, /, *, score: float | None = None) -> Item:
        name, text = dataset.caption_ids[number], dataset.captions[number]
        return cls(number, name, text, score=score)
