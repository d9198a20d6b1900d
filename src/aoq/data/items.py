"""Images and texts as users see them: on pages, in print and on the terminal."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from aoq.config import Direction
from aoq.data.dataset import PairDataset
from aoq.types import EntryKind

KINDS: dict[Direction, tuple[EntryKind, EntryKind]] = {
    "i2t": ("image", "text"),
    "t2i": ("text", "image"),
}
"What is asked for, and what is found, in each direction."
DIRECTIONS = {query: direction for direction, (query, _) in KINDS.items()}


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
    def of(
        cls, dataset: PairDataset, kind: EntryKind, number: int, /, *, score: float | None = None
    ) -> Item:
        """Describe a text, or an image by the first of its texts."""
        if kind == "text":
            return cls(number, dataset.caption_ids[number], dataset.captions[number], score=score)
        text = dataset.captions[dataset.positives.texts_of(number)[0]]
        return cls(number, dataset.image_ids[number], text, dataset.pictures[number], score)
