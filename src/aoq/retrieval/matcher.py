"""The matcher: finds images for sentences and texts for pictures, and shows why they fit.

It holds a trained model and its index. A query is a sentence, a picture, or the number of an entry
of the index, whose right answers are known. All methods may be called from several threads.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import SupportsIndex, TypeVar

import torch
from torch import Tensor

from aoq.config import RoundName
from aoq.errors import UserError
from aoq.features.pictures import Picture, Pixels
from aoq.features.regions import Boxes, PictureReader
from aoq.parsing import shown
from aoq.retrieval.calibration import Calibration
from aoq.retrieval.composition import Term
from aoq.retrieval.encoder import QueryEncoder, QueryError, ReadPicture, ReadText
from aoq.retrieval.find import Question
from aoq.retrieval.fusion import Fusion
from aoq.retrieval.hits import Answer, AttentionMap
from aoq.retrieval.index import ImageEntry, Index, TextEntry
from aoq.retrieval.location import existing_index, require_same_round
from aoq.retrieval.queries import Given, Image, Query, Text
from aoq.retrieval.ranking import Candidates, compares_vectors, make_ranker
from aoq.retrieval.text import CaptionSearch
from aoq.retrieval.vector_ranking import EncodedQuery, Ranker, VectorRanker
from aoq.runs.checkpoint import MakeModel
from aoq.runs.directory import ROUNDS
from aoq.runs.query_reader import OwnPictureReader
from aoq.scoring.cross_attention import CrossAttention
from aoq.scoring.encoded import Modality, Rows
from aoq.types import Encoding, Floats

E = TypeVar("E")


class Matcher:
    """A trained model and its index."""

    def __init__(
        self,
        encoder: QueryEncoder,
        index: Index,
        *,
        proposer: QueryEncoder | None = None,
        make_model: MakeModel | None = None,
    ) -> None:
        self.encoder = encoder
        self.index = index
        self.run = encoder.run
        self.name = _name_of(encoder.run)
        self.model_name = encoder.trained.recipe.model.name
        self.has_attention = isinstance(encoder.model, CrossAttention) and encoder.knows_places
        self.proposer = proposer
        self.make_model = make_model
        self._lock = Lock()
        self._rankers: dict[Modality, Ranker] = {}
        self._captions: CaptionSearch | None = None
        self._opened: dict[tuple[Modality, bool], Rows[Encoding] | None] = {}

    @classmethod
    def load(
        cls,
        run: Path | str,
        *,
        index: Path | str | None = None,
        round: RoundName | None = None,  # noqa: A002
        make_model: MakeModel | None = None,
    ) -> Matcher:
        """Load the best round of a run, or the one that is named, and its index.

        `make_model` builds a model of your own, which may have a `query_reader`.
        """
        opened = Index.open(existing_index(run, index, round=round))
        require_function(opened, run, make_model)
        encoder = QueryEncoder.load(
            run,
            source=opened.manifest.source,
            round=round,
            make_model=make_model,
            for_queries=True,
        )
        require_same_round(opened, encoder)
        opened.require_model(encoder.model_hash, run=encoder.run)
        proposer = load_teacher(opened, make_model)
        return cls(encoder, opened, proposer=proposer, make_model=make_model)

    def reopened(self) -> Matcher:
        """Open the index again, for the same model."""
        opened = Index.open(self.index.folder)
        opened.require_model(self.encoder.model_hash, run=self.run)
        record, own = opened.manifest.teacher, self.index.manifest.teacher
        is_same = record and own and (record.run, record.model_hash) == (own.run, own.model_hash)
        proposer = self.proposer if is_same else load_teacher(opened, self.make_model)
        return Matcher(self.encoder, opened, proposer=proposer, make_model=self.make_model)

    def with_index(self, index: Index) -> Matcher:
        """Make a matcher of the same model for another index."""
        return Matcher(self.encoder, index, proposer=self.proposer, make_model=self.make_model)

    @property
    def attention_reason(self) -> str | None:
        """Why the model has no attention to show; None if it has."""
        if self.has_attention:
            return None
        if isinstance(self.encoder.model, CrossAttention):
            return (
                "the tokenizer of the model does not say which of its pieces stand for a word, so "
                "attention to words cannot be shown; a fast tokenizer of transformers says so."
            )
        if self.model_name == "own":
            return (
                "the model has no attention between words and regions that could be shown; SCAN "
                "and BFAN have some."
            )
        model = "a model of two towers"
        if self.model_name != "towers":
            model = self.model_name.upper()
        return (
            f"{model} has no attention between words and regions: it makes one vector of the whole "
            "image and one of the whole text; train SCAN or BFAN to see some."
        )

    def search(self, query: str | Path, *, top: int = 10) -> Answer:
        """Find images for a sentence, or texts for a picture file."""
        if isinstance(query, Path):
            return self.texts_for(query, top=top)
        if not isinstance(query, str):
            raise QueryError(
                f"{shown(query)} is not a query; expected a sentence as str, or a picture file as "
                "a Path. images_for and texts_for take entries of the index by their numbers."
            )
        return self.images_for(query, top=top)

    def find(self, query: Query) -> Answer:
        """Answer a query: sentences, photos like others, words that are not wanted, and filters."""
        with self.index.unchanged():
            return Question(self, query).answer()

    def images_for(self, text: Text, *, top: int = 10) -> Answer:
        """Find the closest images of a sentence, or of a text of the index by its number."""
        return self.find(Query(texts=(text,), words="off", top=top))

    def texts_for(self, image: Image, *, top: int = 10) -> Answer:
        """Find the closest texts of a picture, or of an image of the index by its number."""
        return self.find(Query(images=(image,), find="texts", top=top))

    def score(self, image: Image, texts: Sequence[Text]) -> list[float]:
        """Score an image against sentences, or texts of the index; higher is closer.

        A sentence of unknown words only is rejected; such a text of the index is not.
        """
        if isinstance(texts, str) or not isinstance(texts, Sequence):
            raise QueryError(f"{shown(texts)} is not a list of texts; expected [text, ...].")
        words = [text if isinstance(text, str) else self.text(text).text for text in texts]
        for text in texts:
            if isinstance(text, str):
                self.encoder.read_query(text)
        with self.index.unchanged():
            own_image = self._image_query(image).own
        return self.encoder.score(own_image, words)

    def attention(self, image: Image, text: Text) -> AttentionMap:
        """Weigh the words and the regions that this image and this text attend to."""
        model = self.encoder.model
        if not isinstance(model, CrossAttention) or not self.has_attention:
            raise QueryError(self.attention_reason or "")
        if isinstance(text, str):
            words = self.encoder.read_query(text)
        else:
            words = ReadText.of(self.text(text).text, self.encoder.tokenizer)
        with self.index.unchanged():
            own_image, own_text = self._image_query(image).own, self._text_query(text).own
            boxes = self._boxes(image)
        with torch.no_grad():
            score = model.score_matrix(own_image, own_text)
            maps = model.attention_maps(own_image, own_text)
        t2i, i2t = maps.get("t2i"), maps.get("i2t")
        # A word of several pieces has the mean of their weights over regions, and their sum as one.
        by_word = None if t2i is None else _joined(t2i[0], words, dim=0, mean=True)
        by_region = None if i2t is None else _joined(i2t[0], words, dim=1, mean=False)
        return AttentionMap(
            score=float(score),
            words=words.words,
            known=words.known,
            boxes=boxes,
            by_word=by_word,
            by_region=by_region,
        )

    def read_picture(self, picture: Picture | Pixels) -> ReadPicture:
        """Extract the regions of a picture once, to ask several things about it."""
        return self.encoder.read_picture(picture)

    def prepare_pictures(self, *, threads: int | None = None) -> PictureReader | OwnPictureReader:
        """Load the network that reads pictures before the first picture comes."""
        return self.encoder.prepare_pictures(threads=threads)

    def ranker(self, kind: Modality) -> Ranker:
        """Return the ranker of images or texts, made when first needed."""
        with self._lock:
            if kind not in self._rankers:
                record = self.index.manifest.teacher
                self._rankers[kind] = make_ranker(
                    self.candidates(kind),
                    None if record is None else self._rows(kind, by_teacher=True),
                    proposals=0 if record is None else record.proposals,
                    vectors=self._vectors(kind),
                )
            return self._rankers[kind]

    def _vectors(self, kind: Modality) -> VectorRanker | None:
        """Rank the vectors of the index by its store, if the model compares vectors."""
        if not compares_vectors(self.encoder.model):
            return None
        return self.index.vector_ranker(kind, self._rows(kind))

    def candidates(self, kind: Modality) -> Candidates:
        """Return all images or texts, with the model that scores them."""
        return Candidates(self.encoder.model, self._rows(kind), kind)

    @property
    def captions(self) -> CaptionSearch | None:
        """The search of captions, opened when first needed; None if the index has none."""
        name = self.index.manifest.captions
        with self._lock:
            if name is not None and self._captions is None:
                with self.index.unchanged():
                    self._captions = CaptionSearch.open(self.index.folder / name)
            return self._captions

    @property
    def fusion(self) -> Fusion:
        """How scores of captions and of the model are merged: as dev says, else by ranks."""
        tuning = self.index.manifest.tuning
        return Fusion(None if tuning is None else tuning.weight)

    @property
    def calibrations(self) -> Mapping[str, Calibration]:
        """What scores mean: of photos ranked by model, words or merged, and of texts."""
        tuning = self.index.manifest.tuning
        return {} if tuning is None else tuning.calibrations

    def terms(self, query: Query) -> tuple[Term, ...]:
        """Encode the sentences and photos of a query."""
        weights = iter(query.weight_of_each)
        return (
            *(Term("texts", self._text_query(text), next(weights)) for text in query.texts),
            *(Term("images", self._image_query(image), next(weights)) for image in query.images),
            *(
                Term("texts", self._text_query(text), -query.without_weight)
                for text in query.without
            ),
        )

    def unknown_words(self, query: Query) -> tuple[str, ...]:
        """List the words of the sentences of a query that the model does not know, each once."""
        texts = [text for text in (*query.texts, *query.without) if isinstance(text, str)]
        read = [self.encoder.read_query(text) for text in texts]
        return tuple(dict.fromkeys(word for one in read for word in one.unknown_words))

    def entry_query(self, kind: Modality, numbers: Sequence[int]) -> EncodedQuery:
        """Make queries of entries of the index, from their encodings."""
        rows = torch.tensor(numbers)
        teacher = None if self.proposer is None else self._rows(kind, by_teacher=True)[rows]
        return EncodedQuery(self._rows(kind)[rows], teacher)

    def _text_query(self, text: Text) -> EncodedQuery:
        if not isinstance(text, str):
            return self.entry_query("texts", [self.text(text).number])
        teacher = None if self.proposer is None else self.proposer.encode_texts([text])
        return EncodedQuery(self.encoder.encode_texts([text]), teacher)

    def _image_query(self, image: Image) -> EncodedQuery:
        if not isinstance(image, Given):
            return self.entry_query("images", [self.image(image).number])
        read = image if isinstance(image, ReadPicture) else self.read_picture(image)
        teacher = None if self.proposer is None else self.proposer.encode_picture(read)
        return EncodedQuery(self.encoder.encode_picture(read), teacher)

    def _boxes(self, image: Image) -> Boxes | None:
        if isinstance(image, Given):
            return self.index.grid_boxes
        return self.index.boxes(self.image(image).number)

    def _rows(self, kind: Modality, *, by_teacher: bool = False) -> Rows[Encoding]:
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

    def image(self, number: SupportsIndex) -> ImageEntry:
        """Return an image of the index by its number."""
        return _entry(self.index.images, number, "image")

    def text(self, number: SupportsIndex) -> TextEntry:
        """Return a text of the index by its number."""
        return _entry(self.index.texts, number, "text")


def _joined(weights: Tensor, words: ReadText, *, dim: int, mean: bool) -> Floats:
    """Join the weights of word pieces to those of words; a word that was cut off has none."""
    index = [torch.tensor(places, dtype=torch.long) for places in words.places]
    parts = [weights.index_select(dim, pieces.to(weights.device)) for pieces in index]
    sums = [part.sum(dim) / (max(part.shape[dim], 1) if mean else 1) for part in parts]
    return torch.stack(sums, dim).cpu().numpy()


def require_function(index: Index, run: Path | str, make_model: MakeModel | None) -> None:
    """Name the function that made an index, if it is needed again and none is given."""
    name = index.manifest.model_function
    if name is not None and make_model is None:
        raise UserError(
            f"{run} holds a model of your own, which your code has to build; it was indexed with "
            f"--model {name}: add that, if you trust the code of that name in this folder."
        )


def load_teacher(index: Index, make_model: MakeModel | None = None) -> QueryEncoder | None:
    """Load the teacher that proposes, if it is the one that the index was made with."""
    record = index.manifest.teacher
    if record is None:
        return None
    remedy = "bring it back, or make the index again with `aoq index RUN --teacher RUN --force`."
    try:
        teacher = QueryEncoder.load(record.run, source=index.manifest.source, make_model=make_model)
    except UserError as error:
        raise UserError(
            *error.problems,
            f"{record.run} is the teacher that {index.folder} was made with; {remedy}",
        ) from None
    if teacher.model_hash != record.model_hash:
        raise UserError(
            f"{record.run} holds another model than the teacher that {index.folder} was made "
            f"with; {remedy}"
        )
    return teacher


def _entry(entries: tuple[E, ...], number: SupportsIndex, noun: str) -> E:
    place = _whole_number(number)
    if not 0 <= place < len(entries):
        raise QueryError(
            f"there is no {noun} {place}; the index holds {len(entries):,}, numbered from 0."
        )
    return entries[place]


def _whole_number(value: object) -> int:
    """Return an integer of any type, such as NumPy's; reject booleans."""
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        raise QueryError(
            f"{shown(value)} is not a number; expected a number, a text as str, or a picture as a "
            "Path or its bytes."
        )
    return operator.index(value)


def _name_of(run: Path) -> str:
    """Name a run; a round with the run it belongs to."""
    folder = run.absolute()
    if folder.name in ROUNDS.values():
        return f"{folder.parent.name}-{folder.name}"
    return folder.name
