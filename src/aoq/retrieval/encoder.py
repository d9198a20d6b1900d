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
from aoq.errors import QueryError as QueryError
from aoq.errors import UserError
from aoq.features.backbones import Regions
from aoq.features.pictures import Picture, Pixels
from aoq.features.regions import PictureReader, RegionSource
from aoq.features.tokenizers import PieceTokenizer, Tokenizer
from aoq.parsing import is_text, shown
from aoq.runs.best_round import best_round
from aoq.runs.checkpoint import MakeModel, TrainedRun, load_run
from aoq.runs.query_reader import (
    FunctionTokenizer,
    NoTokenizer,
    OwnPictureReader,
    OwnPictures,
    PictureSource,
)
from aoq.types import Encoding


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
    source: PictureSource


class QueryEncoder:
    """The model of a run, with what it needs to encode texts and pictures."""

    def __init__(self, run: Path, trained: TrainedRun, *, source: RegionSource | None) -> None:
        self.run = run
        self.trained = trained
        self.model = trained.model
        self.model_hash = trained.model_hash
        self.tokenizer = trained.tokenizer
        self.device = default_device()
        self._source: PictureSource | None = trained.inputs.images or trained.pictures or source
        self._lock = RLock()
        self._reader: PictureReader | OwnPictureReader | None = None

    @classmethod
    def load(
        cls,
        run: Path | str,
        *,
        source: RegionSource | None = None,
        round: RoundName | None = None,  # noqa: A002
        make_model: MakeModel | None = None,
        for_queries: bool = False,
    ) -> QueryEncoder:
        """Load the best round of a run, or the one that is named.

        `source` is what made its regions; default: what the run or its data set says. `make_model`
        builds a model of your own, which may have a `query_reader`. An encoder `for_queries` starts
        faster, if its text tower is kept in the form for it.
        """
        folder = best_round(run, round).path
        trained = load_run(
            folder, device=default_device(), make_model=make_model, for_queries=for_queries
        )
        return cls(folder, trained, source=source)

    @cached_property
    def known_source(self) -> PictureSource | None:
        """What makes of pictures what the model was trained on, if that is known."""
        data = self.trained.recipe.data
        if self._source is not None or not data or self.trained.feature_width is None:
            return self._source
        return region_source(Path(data))

    @property
    def region_source(self) -> RegionSource | None:
        """The network that made the regions that the model was trained on, if it is known."""
        known = self.known_source
        return known if isinstance(known, RegionSource) else None

    @property
    def source(self) -> PictureSource:
        """What reads pictures; a `UserError` says why that is not known."""
        data = self.trained.recipe.data
        if self.known_source is None and self.trained.recipe.model.name == "own":
            raise UserError(
                f"{self.run} cannot read pictures, because its model does not say how; give the "
                "model a query_reader that returns an aoq.QueryReader with read_picture, or use "
                "texts."
            )
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

    @property
    def knows_places(self) -> bool:
        """Whether the tokenizer says which ids stand for a word."""
        if isinstance(self.tokenizer, PieceTokenizer):
            return self.tokenizer.knows_places
        return not isinstance(self.tokenizer, FunctionTokenizer | NoTokenizer)

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

    def probability(self, score: float) -> float | None:
        """Return the probability that a pair of this score belongs together, if it is known."""
        logits = self.trained.logits
        return None if logits is None else logits.of_pair(score)

    def encode_picture(self, picture: Picture | ReadPicture) -> Encoding:
        """Encode one picture: a file, its bytes, or its regions, which a teacher can share."""
        read = picture if isinstance(picture, ReadPicture) else self.read_picture(picture)
        if read.source != self.source:
            raise UserError(
                f"the picture was read as {read.source}, and {self.run} was trained on "
                f"{self.source}; let this run read it."
            )
        self.trained.require_width(read.regions.shape[-1], source="the picture")
        regions = torch.from_numpy(read.regions[None]).to(self.device)  # (1, R, F), (1, 3, S, S)
        regions = regions.float() if regions.is_floating_point() else regions
        with torch.no_grad():
            return self.model.encode_images(regions).without_context()

    def keep_for_queries(self) -> None:
        """Keep the text tower in the form that starts fastest, if there is one."""
        from aoq.features.traced_texts import keep_traced

        source = self.trained.inputs.texts
        if source is not None:
            keep_traced(source)

    def read_picture(self, picture: Picture | Pixels) -> ReadPicture:
        """Extract the regions of a picture: a file, the bytes of one, or its decoded pixels."""
        return ReadPicture(self.reader.regions(picture), self.source)

    def prepare_pictures(self, *, threads: int | None = None) -> PictureReader | OwnPictureReader:
        """Load the network that reads pictures before the first picture comes.

        `threads` is how many pictures it reads at once; default: one a core. A server calls this
        on its main thread, because its other threads see one core only.
        """
        with self._lock:
            source = self.source
            if isinstance(source, OwnPictures):
                self._reader = OwnPictureReader(source)
            else:
                self._reader = PictureReader(source, threads=threads)
            return self._reader

    @property
    def reader(self) -> PictureReader | OwnPictureReader:
        """The network that reads pictures; loaded when first needed, unless prepared."""
        with self._lock:
            return self._reader or self.prepare_pictures()
