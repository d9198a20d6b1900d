"""A trained model that encodes what it has never seen: sentences, and pictures from files.

A sentence goes through the run's tokenizer, a picture through the network that made the regions of
the training set, or through the model's own. All methods may be called from several threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from threading import RLock

import torch

from aoq.config import RoundName
from aoq.data.collate import Collator
from aoq.data.dataset import PairDataset
from aoq.data.splits import region_source
from aoq.distributed import default_device
from aoq.errors import UserError
from aoq.features.backbones import Regions
from aoq.features.pictures import Picture, Pixels
from aoq.features.regions import PictureReader, RegionSource
from aoq.features.tokenizers import Tokenizer
from aoq.parsing import is_text, shown
from aoq.runs.best_round import best_round
from aoq.runs.checkpoint import TrainedRun, load_run
from aoq.types import Encoding


class QueryError(UserError):
    """A question that has no answer because of what it asks; any visitor may read why."""


@dataclass(frozen=True)
class ReadText:
    """A text as the model's tokenizer sees it: its words, and which of them are known."""

    words: tuple[str, ...]
    known: tuple[bool, ...]
    places: tuple[tuple[int, ...], ...]
    "Of each word, among the ids of the text: several where a word is split into pieces."

    @classmethod
    def of(cls, text: str, tokenizer: Tokenizer) -> ReadText:
        words = tokenizer.words_of(text) if is_text(text) else ()
        return cls(
            tuple(word.text for word in words),
            tuple(word.is_known for word in words),
            tuple(word.places for word in words),
        )

    @property
    def unknown_words(self) -> tuple[str, ...]:
        """Words that the model treats all alike, each once."""
        pairs = zip(self.words, self.known, strict=True)
        return tuple(dict.fromkeys(word for word, known in pairs if not known))


def _is_word(word: str) -> bool:
    return any(character.isalnum() for character in word)


@dataclass(frozen=True, eq=False)
class ReadPicture:
    """The regions of a picture, extracted once so that asking more about it costs little."""

    regions: Regions
    "(R, F)"
    source: RegionSource


class QueryEncoder:
    """The model of a run, with what it needs to encode texts and pictures."""

    def __init__(self, run: Path, trained: TrainedRun, *, source: RegionSource | None) -> None:
        self.run = run
        self.trained = trained
        self.model = trained.model
        self.model_hash = trained.model_hash
        self.tokenizer = trained.tokenizer
        self.device = default_device()
        self._source = trained.inputs.images or source
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
        """Load the best round of a run, or the one that is named.

        `source` is what made its regions; default: what the run or its data set says.
        """
        folder = best_round(run, round).path
        return cls(folder, load_run(folder, device=default_device()), source=source)

    @cached_property
    def known_source(self) -> RegionSource | None:
        """What made the regions that the model was trained on, if that is known."""
        data = self.trained.recipe.data
        if self._source is not None or not data:
            return self._source
        return region_source(Path(data))

    @property
    def source(self) -> RegionSource:
        """What made those regions; a `UserError` says why that is not known."""
        data = self.trained.recipe.data
        if self.known_source is None and data and not Path(data).exists():
            raise UserError(
                f"{self.run} cannot read pictures, because its data set {data} is not there, which "
                "names the network that made the regions; bring it back, or put a link in its "
                "place."
            )
        if self.known_source is None:
            raise UserError(
                f"{self.run} cannot read pictures, because nothing says which network made the "
                f"regions of its data set {data}; use texts, or a run that was trained on a data "
                "set of `aoq data build`."
            )
        return self.known_source

    def read_query(self, text: str) -> ReadText:
        """Split a sentence into words; reject one in which the model knows no word."""
        read = ReadText.of(text, self.tokenizer)
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
        """Make a reader of a data set for the model, if it can read its images."""
        return self.trained.collator(dataset, device=self.device)

    def encode_texts(self, texts: Sequence[str]) -> Encoding:
        """Encode sentences, whatever their words; padded to the longest."""
        with torch.no_grad():
            read = self.trained.read_texts(texts).to(self.device)
            return self.model.encode_texts(read).without_context()

    def score(self, image: Encoding, texts: Sequence[str]) -> list[float]:
        """Score one image against some sentences; higher is closer."""
        if not texts:
            return []
        with torch.no_grad():
            scores = self.model.score_matrix(image, self.encode_texts(texts))[0]
        return [float(score) for score in scores.tolist()]

    def encode_picture(self, picture: Picture | ReadPicture) -> Encoding:
        """Encode one picture: a file, its bytes, or its regions, which a teacher can share."""
        read = picture if isinstance(picture, ReadPicture) else self.read_picture(picture)
        if read.source != self.source:
            raise UserError(
                f"the picture was read as {read.source}, and {self.run} was trained on "
                f"{self.source}; let this run read it."
            )
        self.trained.require_width(read.regions.shape[1], source="the picture")
        regions = torch.from_numpy(read.regions[None]).to(self.device)  # (1, R, F), (1, 3, S, S)
        regions = regions.float() if regions.is_floating_point() else regions
        with torch.no_grad():
            return self.model.encode_images(regions).without_context()

    def read_picture(self, picture: Picture | Pixels) -> ReadPicture:
        """Extract the regions of a picture: a file, the bytes of one, or its decoded pixels."""
        return ReadPicture(self.reader.regions(picture), self.source)

    def prepare_pictures(self, *, threads: int | None = None) -> PictureReader:
        """Load the network that reads pictures before the first picture comes.

        `threads` is how many pictures it reads at once; default: one a core. A server calls this
        on its main thread, because its other threads see one core only.
        """
        with self._lock:
            self._reader = PictureReader(self.source, threads=threads)
            return self._reader

    @property
    def reader(self) -> PictureReader:
        """The network that reads pictures; loaded when first needed, unless prepared."""
        with self._lock:
            return self._reader or self.prepare_pictures()
