"""What the API takes and responds, field by field; the OpenAPI document is made of this."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from aoq.retrieval.hits import RankedBy
from aoq.retrieval.queries import Words
from aoq.scoring.encoded import Modality
from aoq.types import EntryKind
from aoq.web.limits import FILTER_CHARACTERS, NUMBER, PAGE, QUERY_CHARACTERS, TERMS, TOP

ColumnKind = Literal["text", "number", "date"]
Figures = dict[str, float]


class Failure(BaseModel):
    """An error."""

    error: str = Field(description="A sentence that says what is wrong.")


class LimitsAnswer(BaseModel):
    """The limits of requests."""

    upload_bytes: int
    pixels: int
    query_characters: int
    top: int


class TeacherAnswer(BaseModel):
    """The embedding model that proposes what a run then ranks."""

    label: str = Field(description="Name for people.")
    proposals: int = Field(description="Images or texts that it proposes for a query.")
    recall: dict[str, Figures] = Field(
        description="By i2t and t2i: the number of queries tried, and the share found of the first "
        "1, 5 and 10 of full scoring; empty if not measured."
    )
    recall_split: str | None = Field(
        description="Split of those queries; null if they are of all splits."
    )


class CalibrationAnswer(BaseModel):
    """Where probabilities come from."""

    split: str = Field(description="Split whose queries, with known answers, were tried.")
    queries: int
    best_precision: float = Field(description="No threshold makes more of the hits right.")


class RunAnswer(BaseModel):
    """A run that is served."""

    name: str = Field(description="Name in addresses.")
    label: str = Field(description="Name for people: what is searched, and the model.")
    model: str
    has_words: bool = Field(description="Whether captions can be searched for words.")
    calibrations: dict[str, CalibrationAnswer] = Field(
        description="By what ranks the hits: model, words or merged, and texts; empty if unknown."
    )
    images: int
    texts: int
    index: str = Field(
        description="Hash of the entries: numbers mean the same in runs where this is the same."
    )
    splits: list[str] = Field(description="Splits of the entries of the index.")
    reads_pictures: bool = Field(description="Whether pictures can be uploaded.")
    has_attention: bool
    attention_reason: str | None = Field(description="Why there is no attention.")
    has_negatives: bool
    negatives_reason: str | None = Field(description="Why there are no negatives.")
    exact: bool = Field(description="False if a teacher proposes and the model re-ranks.")
    teacher: TeacherAnswer | None
    test: Figures | None
    test_data: str | None = Field(
        description="Hash of the data of `test`: only results on the same data can be compared."
    )
    dev: Figures | None


class Status(BaseModel):
    """The version, the limits and the runs of this server."""

    version: str
    limits: LimitsAnswer
    runs: list[RunAnswer]


class HitAnswer(BaseModel):
    """An image or a text that was found."""

    number: int
    id: str
    score: float
    text: str = Field(description="Words of a text; first caption of an image, or empty.")
    picture: str | None = Field(description="Address of the picture, if there is one.")
    picture_gone: bool = Field(description="Whether the picture has gone since it was indexed.")
    correct: bool | None = Field(description="Known if the query is an entry of the index.")
    probability: float | None = Field(
        description="That it is right, if the index is calibrated or the model an imported SigLIP."
    )
    model_score: float | None = Field(
        default=None, description="Score of the model, if captions were searched too."
    )
    words_score: float | None = Field(
        default=None, description="Score of the words of its captions, if they were searched."
    )
    duplicates: list[int] = Field(
        default=[], description="Numbers of the near-duplicates that the hit stands for."
    )


class TextQuery(BaseModel):
    """The sentence of a query."""

    text: str
    number: int | None = Field(description="Its number, if it is a text of the index.")


class ImagesAnswer(BaseModel):
    """Images for a text, best first."""

    query: TextQuery
    hits: list[HitAnswer]
    unknown_words: list[str] = Field(
        description="Words of the query that the model does not know and treats all alike."
    )
    exact: bool
    seconds: float


class TextsAnswer(BaseModel):
    """Texts for an image, best first."""

    hits: list[HitAnswer]
    exact: bool
    seconds: float
    upload: str | None = Field(
        description="Name under which an upload's regions are cached for a while."
    )


Sentence = Annotated[str, Field(min_length=1, max_length=QUERY_CHARACTERS)]
Number = Annotated[int, Field(ge=0, le=NUMBER)]
UploadName = Annotated[str, Field(min_length=1, max_length=64)]


class SearchRequest(BaseModel):
    """A query: at least one text or photo."""

    model_config = ConfigDict(extra="forbid", strict=True)

    texts: list[Sentence | Number] = Field(
        default=[], max_length=TERMS, description="Sentences, or numbers of texts of the index."
    )
    like: list[Number | UploadName] = Field(
        default=[],
        max_length=TERMS,
        description="Photos that the hits should be like: numbers of images, or names of uploads.",
    )
    without: list[Sentence] = Field(
        default=[], max_length=TERMS, description="Words for what should not be there."
    )
    weights: list[Annotated[float, Field(gt=0, le=1000)]] = Field(
        default=[], max_length=2 * TERMS, description="One per text, then one per photo."
    )
    find: Modality = "images"
    where: str | None = Field(
        default=None,
        max_length=FILTER_CHARACTERS,
        description="Which photos may be found, or the texts of these: a filter on columns.",
    )
    top: int = Field(default=12, ge=1, le=TOP, description="Number of hits.")
    min_score: float | None = Field(default=None, description="Lowest score of a hit.")
    min_precision: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="Share of hits that should be right, as far as calibration knows.",
    )
    words: Words = Field(
        default="auto", description="Whether captions are searched: if there are any, only, or off."
    )
    collapse: bool = Field(default=False, description="Show near-duplicates as one hit.")


class SearchAnswer(BaseModel):
    """The hits of a query, best first."""

    hits: list[HitAnswer]
    unknown_words: list[str] = Field(
        description="Words of the query that the model does not know and treats all alike."
    )
    exact: bool
    ranked_by: RankedBy
    calibration: CalibrationAnswer | None = Field(
        description="Where probabilities come from; null if the model states them, or there are "
        "none."
    )
    bar: float | None = Field(description="Lowest score of a hit, if there was one.")
    nothing_fits: bool = Field(description="Whether everything found is below the bar.")
    seconds: float


class UploadAnswer(BaseModel):
    """An upload that was read."""

    upload: str = Field(description="Name under which its regions are cached for a while.")


class ColumnValue(BaseModel):
    """A value of a column, and the number of images that have it."""

    value: str | int | float
    count: int


class ColumnAnswer(BaseModel):
    """What is known of images under one name, which filters use."""

    name: str
    kind: ColumnKind
    least: str | int | float
    most: str | int | float
    values: list[ColumnValue] | None = Field(description="All of them, unless there are many.")


class ColumnsAnswer(BaseModel):
    """The columns of an index that are not empty."""

    columns: list[ColumnAnswer]


class Word(BaseModel):
    """A word of a text; the model treats all unknown words alike."""

    word: str
    known: bool


class ScoreAnswer(BaseModel):
    """The score of an image and a text; higher is closer."""

    score: float
    probability: float | None = Field(
        description="That both belong together, if the model is a SigLIP that was imported."
    )
    unknown_words: list[str]


class AttentionAnswer(BaseModel):
    """The attention of words to regions, and of regions to words."""

    words: list[Word]
    boxes: list[tuple[float, float, float, float]] | None = Field(
        description="Left, top, right and bottom of each region, as shares of width and height."
    )
    by_word: list[list[float]] | None = Field(description="For each word, a weight per region.")
    by_region: list[list[float]] | None = Field(description="For each region, a weight per word.")
    score: float


class EntryAnswer(BaseModel):
    """An image or a text of the index."""

    number: int
    id: str
    text: str
    picture: str | None = None
    picture_gone: bool = Field(
        default=False, description="Whether the picture has gone since it was indexed."
    )
    content: str | None = Field(
        default=None, description="SHA-256 of the picture, if it existed when it was indexed."
    )
    split: str | None


class ScoredEntry(EntryAnswer):
    """A mined negative, with the score the teacher gave it."""

    score: float | None


class EntryQuery(BaseModel):
    """Which entries of an index to list: the parameters of a listing."""

    kind: EntryKind = "image"
    split: str | None = Field(
        default=None,
        max_length=64,
        pattern="^[A-Za-z0-9_-]+$",
        description="One of those that /api/status lists.",
    )
    id: str | None = Field(
        default=None,
        max_length=QUERY_CHARACTERS,
        description="Id of one entry, in any index.",
    )
    query: str = Field(
        default="", max_length=QUERY_CHARACTERS, description="Words that an entry must contain."
    )
    offset: int = Field(default=0, ge=0, le=NUMBER)
    limit: int = Field(default=24, ge=1, le=PAGE)
    sample: int | None = Field(
        default=None,
        ge=0,
        le=NUMBER,
        description="Draw entries with this seed; offset is ignored.",
    )


class EntriesAnswer(BaseModel):
    """A page of a listing."""

    total: int
    entries: list[EntryAnswer]


class OneEntryAnswer(BaseModel):
    """An image with its texts, or a text with its images."""

    entry: EntryAnswer
    partners: list[EntryAnswer]
    columns: dict[str, str | int | float] = Field(
        description="What else is known of an image: its folder, date, size and more."
    )


class NegativesAnswer(BaseModel):
    """An anchor, its positives and its mined negatives."""

    anchor: EntryAnswer
    positives: list[EntryAnswer]
    candidates: list[ScoredEntry]
    provenance: list[tuple[str, str]] = Field(description="Origin of the candidate lists.")


class EpochAnswer(BaseModel):
    """One epoch of a round, with the metrics of its last validation."""

    epoch: int
    rsum: float | None
    i2t_r1: float | None
    t2i_r1: float | None
    loss: float | None


class RoundAnswer(BaseModel):
    """The curve of a round."""

    name: str
    epochs: list[EpochAnswer]


class CurvesAnswer(BaseModel):
    """The training of a run."""

    rounds: list[RoundAnswer]


class ResultAnswer(BaseModel):
    """The metrics of a run on a split."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: Figures

    split: str
    intervals: dict[str, tuple[float, float]] | None = Field(
        description="95 % intervals over queries, if `aoq evaluate --bootstrap` computed them."
    )


class ResultsAnswer(BaseModel):
    """The settings and results of a run."""

    settings: dict[str, str | int | float | bool | None] = Field(
        description="Settings that differ from the paper's, by dotted name."
    )
    results: list[ResultAnswer]
