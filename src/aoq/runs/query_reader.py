"""How a model of a user's own reads what it is asked: sentences, and pictures from files.

A run keeps the weights of such a model. How a sentence becomes word ids and a picture an array was
decided in the program that trained it, so a model that is to be searched says both again, in a
`QueryReader`. Either half may be missing: then such queries are rejected in one sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch

from aoq.data.collate import Collator, EncodeText, as_word_ids
from aoq.data.dataset import ImageReader, ImagesOnDemand, PairDataset
from aoq.data.inputs import photos_of
from aoq.data.vocabulary import PAD
from aoq.errors import QueryError, UserError
from aoq.features.arrays import Array
from aoq.features.pictures import Picture, Pixels, load_picture
from aoq.features.regions import RegionSource
from aoq.features.tokenizers import Tokenizer, Word
from aoq.parsing import shown
from aoq.scoring.protocol import TrainableModel
from aoq.types import Ids

if TYPE_CHECKING:
    from PIL.Image import Image

ReadImage = Callable[["Image"], npt.ArrayLike]


@dataclass(frozen=True, kw_only=True)
class QueryReader:
    """Reads sentences and pictures for a model; in training too, if its data are made with it.

    Both functions are called by one thread at a time.

    >>> reader = QueryReader(tokenizer=lambda text: [len(word) for word in text.split()], pad=9)
    >>> dataset = PairDataset.of(np.zeros((1, 4, 6)), ["a cat", "my black cat"], [(0, 0), (0, 1)])
    >>> reader.collator(dataset).texts(np.array([0, 1])).tokens.tolist()
    [[1, 3, 9], [2, 5, 3]]
    """

    tokenizer: Tokenizer | EncodeText | None = None
    "As a `Collator` takes it; none: the vocabulary that the run keeps, if it keeps one."
    pad: int = PAD
    "Id that fills the end of shorter texts, if the tokenizer is a function."
    read_picture: ReadImage | None = None
    """Makes of a picture (a PIL image, RGB and upright, as `aoq.load_picture` returns it) the array
    that the data set has for an image; none: the regions of the run's data set, if it was built
    from pictures."""
    source: RegionSource | None = None
    "The network that made the regions of the data, instead of a function."

    def __post_init__(self) -> None:
        for name in ("tokenizer", "read_picture"):
            value = getattr(self, name)
            if not (value is None or isinstance(value, Tokenizer) or callable(value)):
                raise UserError(f"{name} is {shown(value)}; expected a function.")
        if self.read_picture is not None and self.source is not None:
            raise UserError(
                "a QueryReader has both read_picture and source; give one of them, since each of "
                "them says how pictures are read."
            )

    def images(self, files: Sequence[Path]) -> ImageReader:
        """Return picture files as the images of a data set, read when a batch needs them."""
        if self.read_picture is None:
            raise UserError("this QueryReader has no read_picture; give it one to read files.")
        return OwnPictures("", self.read_picture).of_files(files)

    def collator(self, dataset: PairDataset, *, device: str | torch.device = "cpu") -> Collator:
        """Return what reads batches of a data set in training, by the same tokenizer."""
        if self.tokenizer is None:
            raise UserError("this QueryReader has no tokenizer; give it one to read captions.")
        pad = None if isinstance(self.tokenizer, Tokenizer) else self.pad
        return Collator(dataset, self.tokenizer, pad=pad, device=device)


@runtime_checkable
class ReadsQueries(Protocol):
    """A model that says how sentences and pictures are read for it."""

    def query_reader(self) -> QueryReader:
        """Return the reader; called once, when the model has been loaded."""
        ...


def query_reader_of(model: TrainableModel) -> QueryReader:
    """Return the reader that a model gives; one that reads nothing if it gives none."""
    if not isinstance(model, ReadsQueries):
        return QueryReader()
    reader = model.query_reader()
    if not isinstance(reader, QueryReader):
        raise UserError(
            f"query_reader of {type(model).__name__} returned {shown(reader)}; expected an "
            "aoq.QueryReader."
        )
    return reader


# Sentences


class FunctionTokenizer:
    """A function from a text to its ids, as a tokenizer; it knows every word."""

    def __init__(self, encode: EncodeText, *, pad: int) -> None:
        self._encode = encode
        self._lock = RLock()
        self.pad = pad

    def __len__(self) -> int:
        """Return 0: how many ids there are is not known."""
        return 0

    def encode(self, text: str, /) -> list[int]:
        with self._lock:
            ids = self._encode(text)
        return [int(word) for word in as_word_ids(ids, caption=text)]

    def words_of(self, text: str, /) -> Sequence[Word]:
        """Split a text at spaces; which ids stand for a word is not known."""
        return tuple(Word(word, is_known=True, places=()) for word in text.split())


class NoTokenizer:
    """Stands for a tokenizer that is missing, and says so when a text is to be read."""

    pad = PAD

    def __len__(self) -> int:
        return 0

    def encode(self, text: str, /) -> list[int]:
        raise self._error()

    def words_of(self, text: str, /) -> Sequence[Word]:
        raise self._error()

    def _error(self) -> QueryError:
        return QueryError(
            "the model cannot read texts, because nothing says which word ids stand for them; its "
            "query_reader has to return an aoq.QueryReader with a tokenizer."
        )


def tokenizer_of(reader: QueryReader, kept: Tokenizer | None) -> Tokenizer:
    """Return the tokenizer of a reader, else the one that the run keeps."""
    given = reader.tokenizer
    if given is None:
        return kept or NoTokenizer()
    if isinstance(given, Tokenizer):
        return given
    return FunctionTokenizer(given, pad=reader.pad)


# Pictures


@dataclass(frozen=True)
class OwnPictures:
    """Pictures as the function of a user's model reads them."""

    model_hash: str
    "Identifies the function: that of a model reads every picture alike."
    read: ReadImage = field(compare=False, repr=False)
    _lock: RLock = field(default_factory=RLock, compare=False, repr=False)

    def image(self, picture: Picture | Pixels) -> Array:
        """Read a picture: a file, the content of one, or its pixels in its own size."""
        if isinstance(picture, np.ndarray):
            from PIL.Image import fromarray

            opened = fromarray(picture)
        else:
            opened = load_picture(picture)
        with self._lock:
            image: Array = np.array(self.read(opened), order="C")
        if image.dtype.kind not in "fiu" or not image.ndim or not image.size:
            raise UserError(
                f"read_picture returned an array of {image.dtype} of the shape {image.shape}; "
                "expected the numbers of one image, such as pixels (3, height, width)."
            )
        return image

    def of_files(self, files: Sequence[Path]) -> OwnPictureFiles:
        return OwnPictureFiles(files, self)

    def view(self, dataset: PairDataset) -> PairDataset:
        """Return a data set with its photos as the function reads them."""
        files = photos_of(dataset, "read_picture of its query_reader")
        features = ImagesOnDemand.of(self.of_files(files))
        return replace(
            dataset, features=features, source=None, original=dataset.original or dataset
        )


@dataclass(frozen=True)
class OwnPictureReader:
    """Reads single pictures as a `PictureReader` does, by the function of a model."""

    pictures: OwnPictures
    canvas: None = None
    "A picture is decoded in its own size."

    def regions(self, picture: Picture | Pixels, /) -> Array:
        return self.pictures.image(picture)


@dataclass(frozen=True)
class OwnPictureFiles:
    """Picture files that are read on demand by the function of a model."""

    files: Sequence[Path]
    pictures: OwnPictures

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, ids: Ids, /) -> Array:
        images = [self.pictures.image(self.files[row]) for row in ids]
        shapes = {image.shape for image in images}
        if len(shapes) > 1:
            raise UserError(
                f"read_picture returned arrays of the shapes {', '.join(map(str, sorted(shapes)))};"
                " expected one shape for all pictures."
            )
        return np.stack(images)


PictureSource = RegionSource | OwnPictures


def pictures_of(reader: QueryReader, model_hash: str) -> PictureSource | None:
    """Return how a reader reads pictures, if it says so."""
    if reader.read_picture is not None:
        return OwnPictures(model_hash, reader.read_picture)
    return reader.source
