"""A trained model that reads what it has never seen: sentences, and pictures from files.

A sentence goes through the run's vocabulary, a picture through the network that made the regions
of the training set; then both are what the images and texts of a data set are to the model.
Everything here may be called from several threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from threading import RLock

import numpy as np
import torch

from aoq.config import RoundName
from aoq.data.backbones import Regions
from aoq.data.brought import is_text, shown
from aoq.data.collate import Collator
from aoq.data.dataset import Features, PairDataset
from aoq.data.pictures import Picture, Pixels
from aoq.data.regions import PictureReader, RegionSource
from aoq.data.vocabulary import Vocabulary, tokenize
from aoq.errors import UserError
from aoq.scoring.encoded import Kind, PackedEncoding, encode_range
from aoq.training.best_round import best_round
from aoq.training.checkpoint import TrainedRun, load_run
from aoq.training.inputs import default_device
from aoq.types import Encoding, Positives


class QueryError(UserError):
    """A question that cannot be answered, because of what it asks; any visitor may read why."""


@dataclass(frozen=True)
class ReadText:
    """A text as the vocabulary sees it: its words, and which of them are known."""

    words: tuple[str, ...]
    known: tuple[bool, ...]

    @classmethod
    def of(cls, text: str, vocabulary: Vocabulary) -> ReadText:
        words = tuple(tokenize(text)) if is_text(text) else ()
        return cls(words, tuple(word in vocabulary.ids for word in words))

    @property
    def unknown_words(self) -> tuple[str, ...]:
        """Words that are all one and the same word to the model, each once."""
        pairs = zip(self.words, self.known, strict=True)
        return tuple(dict.fromkeys(word for word, known in pairs if not known))


def _is_word(word: str) -> bool:
    return any(character.isalnum() for character in word)


@dataclass(frozen=True, eq=False)
class ReadPicture:
    """A picture that the network has read, so that asking more about it costs little."""

    regions: Regions
    "As every picture of the source has them. (R, F)"
    source: RegionSource


class QueryEncoder:
    """The model of a run, with what it needs to read texts and pictures."""

    def __init__(self, run: Path, trained: TrainedRun, *, source: RegionSource | None) -> None:
        self.run = run
        self.trained = trained
        self.model = trained.model
        self.model_hash = trained.model_hash
        self.vocabulary = trained.vocabulary
        self.device = default_device()
        self._source = source
        self._lock = RLock()
        self._reader: PictureReader | None = None

    @classmethod
    def load(
        cls,
        run: Path | str,
        *,
        source: RegionSource | None = None,
        round: RoundName | None = None,  # noqa: A002
    ) -> QueryEncoder:
        """The best round of a run, or the one that is named; `source` is what made its regions.

        Where that is not given, the data set that the run was trained on tells it.
        """
        folder = best_round(run, round).path
        return cls(folder, load_run(folder, device=default_device()), source=source)

    @cached_property
    def known_source(self) -> RegionSource | None:
        """What turned pictures into the regions that the model was trained on, if that is known."""
        data = self.trained.recipe.data
        if self._source is not None or not data:
            return self._source
        return RegionSource.of_dataset(Path(data))

    @property
    def source(self) -> RegionSource:
        """The same where pictures are to be read."""
        data = self.trained.recipe.data
        if self.known_source is None and data and not Path(data).exists():
            raise UserError(
                f"{self.run} cannot read pictures, because its data set {data} is not there, which "
                "tells the network that made the regions; bring it back, or put a link in its "
                "place."
            )
        if self.known_source is None:
            raise UserError(
                f"{self.run} cannot read pictures, because nothing tells which network made the "
                f"regions of its data set {data}; use texts, or a run that was trained on a data "
                "set of `aoq data build`."
            )
        return self.known_source

    def read_query(self, text: str) -> ReadText:
        """The words of a sentence; one that the model cannot tell from any other is refused."""
        read = ReadText.of(text, self.vocabulary)
        words = [pair for pair in zip(read.words, read.known, strict=True) if _is_word(pair[0])]
        if not words:
            raise QueryError(f"{shown(text)} has no words; expected a sentence.")
        if not any(known for _, known in words):
            names = ", ".join(dict.fromkeys(word for word, _ in words))
            raise QueryError(
                f"the model knows no word of this text ({names}); use words of the captions that "
                "it was trained on."
            )
        return read

    def collator(self, dataset: PairDataset) -> Collator:
        """Reads a data set for the model, if its features are as wide as they should be."""
        if len(dataset):
            self.trained.require_width(dataset.features.shape[2], source=dataset.name)
        return Collator(dataset, self.vocabulary, device=self.device)

    def encode(
        self, dataset: PairDataset, kind: Kind, *, update: Callable[..., None] | None = None
    ) -> Encoding | PackedEncoding:
        """All images or all texts of a data set, in memory; `update` is told of every batch."""
        ids = slice(0, len(dataset) if kind == "images" else dataset.n_texts)
        collator, update = self.collator(dataset), update or (lambda advance: None)
        with torch.no_grad():
            return encode_range(self.model, collator, kind, ids, batch_size=128, update=update)

    def encode_texts(self, texts: Sequence[str]) -> Encoding:
        """Sentences, whatever their words; padded to the longest."""
        return self.encode(only_texts(texts), "texts")[:]

    def score(self, image: Encoding, texts: Sequence[str]) -> list[float]:
        """One image against some sentences; higher is closer."""
        if not texts:
            return []
        with torch.no_grad():
            scores = self.model.score_matrix(image, self.encode_texts(texts))[0]
        return [float(score) for score in scores.tolist()]

    def encode_pictures(self, pictures: Sequence[Picture]) -> Encoding:
        """Pictures, each a file or the bytes of one."""
        return self.encode_read([self.read_picture(picture) for picture in pictures])

    def encode_read(self, pictures: Sequence[ReadPicture]) -> Encoding:
        """What `read_picture` makes of pictures, which a teacher can share."""
        for picture in pictures:
            if picture.source != self.source:
                raise UserError(
                    f"the picture was read as {picture.source}, and {self.run} was trained on "
                    f"{self.source}; let this run read it."
                )
        regions = np.stack([picture.regions for picture in pictures])
        return self.encode(only_images(regions, [""] * len(regions), name="pictures"), "images")[:]

    def read_picture(self, picture: Picture | Pixels) -> ReadPicture:
        """The regions of a picture: a file, the bytes of one, or its pixels as decoded."""
        return ReadPicture(self.reader.regions(picture), self.source)

    def prepare_pictures(self, *, threads: int | None = None) -> PictureReader:
        """Load the network that reads pictures, which the first picture would wait for otherwise.

        `threads` is how many pictures it reads at once; default: one a core. A server calls this
        on its main thread, because others see one core only.
        """
        with self._lock:
            self._reader = PictureReader(self.source, threads=threads)
            return self._reader

    @property
    def reader(self) -> PictureReader:
        """The network that reads pictures; loaded when it is first needed, or was prepared."""
        with self._lock:
            return self._reader or self.prepare_pictures()


def only_texts(texts: Sequence[str]) -> PairDataset:
    """Texts that belong to no image, as the encoders take them."""
    return PairDataset(
        name="texts",
        split="query",
        features=np.empty((0, 1, 1), np.float32),
        image_ids=(),
        captions=tuple(texts),
        caption_ids=tuple(map(str, range(len(texts)))),
        positives=Positives.from_pairs((), n_images=0, n_texts=len(texts)),
        pictures=(),
    )


def only_images(
    features: Features,
    ids: Sequence[str],
    *,
    name: str,
    pictures: Sequence[Path | None] | None = None,
) -> PairDataset:
    """Images that have no caption, as the encoders take them."""
    return PairDataset(
        name=name,
        split="pictures",
        features=features,
        image_ids=tuple(ids),
        captions=(),
        caption_ids=(),
        positives=Positives.from_pairs((), n_images=len(features), n_texts=0),
        pictures=tuple(pictures or [None] * len(features)),
    )
