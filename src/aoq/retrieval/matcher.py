"""The matcher: ask for images in words, for texts with a picture, and see why they fit.

It holds a trained model and its index. A query is a sentence or a picture from outside, or an
entry of the index by its number; of an entry it is known which answers are right. All methods may
be called from several threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch

from aoq.data.pictures import Picture
from aoq.data.regions import Boxes
from aoq.errors import UserError
from aoq.retrieval.encoder import QueryEncoder, trained_round
from aoq.retrieval.index import ImageEntry, Index, TextEntry
from aoq.retrieval.ranking import Candidates, Query, Ranker, Ranking, make_ranker
from aoq.scoring.cross_attention import CrossAttention
from aoq.scoring.encoded import Kind
from aoq.scoring.stored import StoredRows
from aoq.storage import ROUND_ONE, ROUND_TWO
from aoq.types import Encoding

INDEX_FOLDER = "index"
E = TypeVar("E")
Weights = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Hit:
    """An image or a text that was found."""

    number: int
    id: str
    score: float
    text: str
    "Of a text its words; of an image its first caption, or nothing."
    picture: Path | None
    correct: bool | None
    "Whether it belongs to the query; known only where the query is an entry of the index."


@dataclass(frozen=True)
class Answer:
    """What was found, best first; equal scores by the lower number."""

    hits: tuple[Hit, ...]
    unknown_words: tuple[str, ...]
    "Words of the query that the model does not know, and so did not see."
    exact: bool
    "Whether everything was scored, or only what a teacher proposed."


@dataclass(frozen=True)
class AttentionMap:
    """Which region each word looked at, and which word each region; none where a model does not.

    The marks for the start and the end of a text take part in attention but are no words. They are
    left out and nothing is scaled up for it: a region's weights add up to less than 1 where it
    looked at them.
    """

    words: tuple[str, ...]
    known: tuple[bool, ...]
    boxes: Boxes | None
    "Left, top, right, bottom of each region, as shares of width and height. (R, 4)"
    by_word: Weights | None
    "Weights of the regions for each word; they add up to 1. (T, R)"
    by_region: Weights | None
    "Weights of the words for each region. (R, T)"


class Matcher:
    """A trained model and its index."""

    def __init__(
        self, encoder: QueryEncoder, index: Index, *, proposer: QueryEncoder | None = None
    ) -> None:
        self.encoder = encoder
        self.index = index
        self.run = encoder.run
        self.name = _name_of(encoder.run)
        self.model_name = encoder.trained.recipe.model.name
        self.has_attention = isinstance(encoder.model, CrossAttention)
        self.proposer = proposer
        self._lock = Lock()
        self._rankers: dict[Kind, Ranker] = {}
        self._opened: dict[tuple[Kind, bool], StoredRows | None] = {}

    @classmethod
    def load(cls, run: Path, *, index: Path | None = None) -> Matcher:
        """The last trained round of a run and its index, which `aoq index` makes."""
        folder = index_folder(run, index)
        if not folder.exists():
            raise UserError(f"{folder} does not exist; make the index with `aoq index {run}`.")
        opened = Index.open(folder)
        encoder = QueryEncoder.load(run, source=opened.manifest.source)
        opened.require_model(encoder.model_hash, run=run)
        return cls(encoder, opened, proposer=load_teacher(opened))

    @property
    def teacher(self) -> Path | None:
        """The run whose model proposes what this one then scores, if there is one."""
        return None if self.proposer is None else self.proposer.run

    @property
    def attention_reason(self) -> str | None:
        """Why there is no attention to show; none where there is."""
        return None if self.has_attention else _no_attention(self.model_name)

    def search(self, query: str | Path, *, top: int = 10) -> Answer:
        """Images for a sentence, or texts for a picture file."""
        if isinstance(query, Path):
            return self.texts_for(query, top=top)
        return self.images_for(query, top=top)

    def images_for(self, text: str | int, *, top: int = 10) -> Answer:
        """The closest images of a sentence, or of a text of the index by its number."""
        unknown: tuple[str, ...] = ()
        if isinstance(text, str):
            unknown = self.encoder.read(text).require_known().unknown_words
        ranking = self.ranker("images").rank(self._text_query(text), top=top)
        own = None if isinstance(text, str) else self._text(text).images
        return self._answer("images", ranking, own=own, unknown_words=unknown)

    def texts_for(self, image: Picture | int, *, top: int = 10) -> Answer:
        """The closest texts of a picture, or of an image of the index by its number."""
        ranking = self.ranker("texts").rank(self._image_query(image), top=top)
        own = self._image(image).texts if isinstance(image, int) else None
        return self._answer("texts", ranking, own=own)

    def score(self, image: Picture | int, texts: Sequence[str]) -> list[float]:
        """How well an image fits each of some sentences; higher is closer."""
        for text in texts:
            self.encoder.read(text).require_known()
        return self.encoder.score(self._image_query(image).own, texts)

    def attention(self, image: Picture | int, text: str | int) -> AttentionMap:
        """What looked at what when this image and this text are compared."""
        model = self.encoder.model
        if not isinstance(model, CrossAttention):
            raise UserError(_no_attention(self.model_name))
        words = self.encoder.read(self._text(text).text if isinstance(text, int) else text)
        own_image, own_text = self._image_query(image).own, self._text_query(text).own
        with torch.no_grad():
            maps = model.attention_maps(own_image, own_text)
        inside = slice(1, -1)  # between the marks of start and end
        t2i, i2t = maps.get("t2i"), maps.get("i2t")
        return AttentionMap(
            words=words.words,
            known=words.known,
            boxes=self.index.boxes(image) if isinstance(image, int) else self.index.grid_boxes,
            by_word=None if t2i is None else t2i[0, inside].cpu().numpy(),
            by_region=None if i2t is None else i2t[0, :, inside].cpu().numpy(),
        )

    def encode_texts(self, texts: Sequence[str]) -> Encoding:
        """Sentences as the model sees them."""
        return self.encoder.encode_texts(texts)

    def encode_pictures(self, pictures: Sequence[Picture]) -> Encoding:
        """Pictures as the model sees them."""
        return self.encoder.encode_pictures(pictures)

    # How they are answered

    def ranker(self, kind: Kind) -> Ranker:
        """What finds images or texts; made when it is first needed."""
        with self._lock:
            if kind not in self._rankers:
                record = self.index.manifest.teacher
                self._rankers[kind] = make_ranker(
                    Candidates(self.encoder.model, self._rows(kind), kind),
                    None if record is None else self._rows(kind, by_teacher=True),
                    proposals=0 if record is None else record.proposals,
                )
            return self._rankers[kind]

    def entry_query(self, kind: Kind, numbers: Sequence[int]) -> Query:
        """Entries of the index, as they are encoded there, as queries."""
        rows = torch.tensor(numbers)
        teacher = None if self.proposer is None else self._rows(kind, by_teacher=True)[rows]
        return Query(self._rows(kind)[rows], teacher)

    def _text_query(self, text: str | int) -> Query:
        if isinstance(text, int):
            return self.entry_query("texts", [self._text(text).number])
        teacher = None if self.proposer is None else self.proposer.encode_texts([text])
        return Query(self.encoder.encode_texts([text]), teacher)

    def _image_query(self, image: Picture | int) -> Query:
        if isinstance(image, int):
            return self.entry_query("images", [self._image(image).number])
        regions = self.encoder.read_pictures([image])
        teacher = None if self.proposer is None else self.proposer.encode_regions(regions)
        return Query(self.encoder.encode_regions(regions), teacher)

    def _rows(self, kind: Kind, *, by_teacher: bool = False) -> StoredRows:
        key = (kind, by_teacher)
        if key not in self._opened:
            self._opened[key] = self.index.rows(kind, by_teacher=by_teacher)
        rows = self._opened[key]
        if rows is None:
            raise UserError(
                f"{self.index.folder} holds no {kind}; index a data set that has some, with "
                "`aoq index RUN --data FOLDER --force`."
            )
        return rows

    def _image(self, number: int) -> ImageEntry:
        return _entry(self.index.images, number, "image", self.index)

    def _text(self, number: int) -> TextEntry:
        return _entry(self.index.texts, number, "text", self.index)

    def _answer(
        self,
        kind: Kind,
        ranking: Ranking,
        *,
        own: tuple[int, ...] | None,
        unknown_words: tuple[str, ...] = (),
    ) -> Answer:
        """The first query's ranking as people see it."""
        make = self._image_hit if kind == "images" else self._text_hit
        found = zip(ranking.ids[0].tolist(), ranking.scores[0].tolist(), strict=True)
        hits = tuple(make(n, score, None if own is None else n in own) for n, score in found)
        return Answer(hits, unknown_words, exact=self.ranker(kind).exact)

    def _image_hit(self, number: int, score: float, correct: bool | None) -> Hit:
        image = self.index.images[number]
        text = self.index.texts[image.texts[0]].text if image.texts else ""
        return Hit(number, image.id, score, text, image.picture, correct)

    def _text_hit(self, number: int, score: float, correct: bool | None) -> Hit:
        text = self.index.texts[number]
        return Hit(number, text.id, score, text.text, None, correct)


def index_folder(run: Path, index: Path | None = None) -> Path:
    """Where the index of a run is, unless it is elsewhere: beside the model."""
    return index or trained_round(run) / INDEX_FOLDER


def load_teacher(index: Index) -> QueryEncoder | None:
    """The model that proposes, as it was when the index was made."""
    record = index.manifest.teacher
    if record is None:
        return None
    teacher = QueryEncoder.load(Path(record.run))
    if teacher.model_hash != record.model_hash:
        raise UserError(
            f"{index.folder} was made with another teacher than what is in {record.run} now; make "
            "it again with `aoq index RUN --teacher RUN --force`."
        )
    return teacher


def _no_attention(model_name: str) -> str:
    return (
        f"{model_name} has no attention between words and regions: it makes one vector of the "
        "whole image and one of the whole text; train scan or bfan to see some."
    )


def _entry(entries: tuple[E, ...], number: int, noun: str, index: Index) -> E:
    if not 0 <= number < len(entries):
        raise UserError(
            f"{index.folder} has no {noun} {number}; it holds {len(entries):,}, from 0."
        )
    return entries[number]


def _name_of(run: Path) -> str:
    """What a run is called where others are beside it: a round with the run it is of."""
    folder = run.absolute()
    if folder.name in (ROUND_ONE, ROUND_TWO):
        return f"{folder.parent.name}-{folder.name}"
    return folder.name
