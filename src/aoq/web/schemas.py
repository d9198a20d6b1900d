"""What the API takes and responds, field by field; the OpenAPI document is made of this."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from aoq.types import EntryKind
from aoq.web.limits import NUMBER, PAGE, QUERY_CHARACTERS

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


class RunAnswer(BaseModel):
    """A run that is served."""

    name: str = Field(description="Name in addresses.")
    label: str = Field(description="Name for people.")
    model: str
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
        description="That both belong together, if the model is a SigLIP that was imported."
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
