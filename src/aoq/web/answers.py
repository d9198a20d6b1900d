"""What the API answers, field by field: the OpenAPI document is made of these."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

Figures = dict[str, float]


class Failure(BaseModel):
    """Why there is no answer."""

    error: str = Field(description="A sentence for people.")


class LimitsAnswer(BaseModel):
    """What a visitor may ask for."""

    upload_bytes: int
    pixels: int
    query_characters: int
    top: int


class TeacherAnswer(BaseModel):
    """The embedding model that proposes what a run then ranks."""

    label: str = Field(description="What people call it.")
    proposals: int = Field(description="Images or texts that it names for a query.")
    recall: dict[str, Figures] = Field(
        description="Of i2t and t2i: how many queries were tried, and the share found of the first "
        "1, 5 and 10 of full scoring; empty where that was not tried."
    )
    recall_split: str | None = Field(description="Where those queries are from; all, if nothing.")


class RunAnswer(BaseModel):
    """A run that can be asked."""

    name: str = Field(description="What addresses call it.")
    label: str = Field(description="What people call it.")
    model: str
    images: int
    texts: int
    index: str = Field(
        description="Names what it holds: numbers mean the same in runs where this is the same."
    )
    splits: list[str] = Field(description="Those that entries of the index belong to.")
    reads_pictures: bool = Field(description="Whether pictures can be uploaded.")
    has_attention: bool
    attention_reason: str | None = Field(description="Why there is none.")
    has_negatives: bool
    negatives_reason: str | None = Field(description="Why there are none.")
    exact: bool = Field(description="False where a teacher proposes and the model re-ranks.")
    teacher: TeacherAnswer | None
    test: Figures | None
    test_data: str | None = Field(
        description="Hash of the data that test is of: only results on the same can be compared."
    )
    dev: Figures | None


class Status(BaseModel):
    """What this server is and has."""

    version: str
    limits: LimitsAnswer
    runs: list[RunAnswer]


class HitAnswer(BaseModel):
    """An image or a text that was found."""

    number: int
    id: str
    score: float
    text: str = Field(description="Of a text its words; of an image its first caption, or nothing.")
    picture: str | None = Field(description="Address of the picture, where there is one.")
    picture_gone: bool = Field(description="Whether the picture is no longer where it was indexed.")
    correct: bool | None = Field(description="Known where the query is an entry of the index.")


class TextQuery(BaseModel):
    """The sentence that was asked for."""

    text: str
    number: int | None = Field(description="Its number, where it is one of the index.")


class ImagesAnswer(BaseModel):
    """Images for a text, best first."""

    query: TextQuery
    hits: list[HitAnswer]
    unknown_words: list[str] = Field(
        description="Words of the query that are all the same to the model."
    )
    exact: bool
    seconds: float


class TextsAnswer(BaseModel):
    """Texts for an image, best first."""

    hits: list[HitAnswer]
    exact: bool
    seconds: float
    upload: str | None = Field(
        description="Name under which what was read of an upload is kept for a while."
    )


class Word(BaseModel):
    """A word of a text; unknown ones are all the same to the model."""

    word: str
    known: bool


class ScoreAnswer(BaseModel):
    """How well an image and a text fit; higher is closer."""

    score: float
    unknown_words: list[str]


class AttentionAnswer(BaseModel):
    """Where the words of a text look in an image, and the regions in the text."""

    words: list[Word]
    boxes: list[tuple[float, float, float, float]] | None = Field(
        description="Left, top, right and bottom of each region, as shares of width and height."
    )
    by_word: list[list[float]] | None = Field(description="Of each word, its weight a region.")
    by_region: list[list[float]] | None = Field(description="Of each region, its weight a word.")
    score: float


class EntryAnswer(BaseModel):
    """An image or a text of the index."""

    number: int
    id: str
    text: str
    picture: str | None
    picture_gone: bool = Field(description="Whether the picture is no longer where it was indexed.")
    content: str | None = Field(
        description="SHA-256 of the picture, if it was there when it was indexed."
    )
    split: str | None


class ScoredEntry(EntryAnswer):
    """One that was mined, with the score the teacher gave it."""

    score: float | None


class EntriesAnswer(BaseModel):
    """A page of a listing."""

    total: int
    entries: list[EntryAnswer]


class OneEntryAnswer(BaseModel):
    """An image with its texts, or a text with its images."""

    entry: EntryAnswer
    partners: list[EntryAnswer]


class NegativesAnswer(BaseModel):
    """An anchor, what belongs to it, and the wrong ones closest to it."""

    anchor: EntryAnswer
    positives: list[EntryAnswer]
    candidates: list[ScoredEntry]
    provenance: list[tuple[str, str]] = Field(description="Where the lists come from.")


class EpochAnswer(BaseModel):
    """One epoch of a round; figures are of the last validation in it."""

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
    """How a run was trained."""

    rounds: list[RoundAnswer]


class ResultAnswer(BaseModel):
    """What the run is worth on a split, metric by metric."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: Figures

    split: str
    intervals: dict[str, tuple[float, float]] | None = Field(
        description="95 % intervals over queries, where `aoq evaluate --bootstrap` made some."
    )


class ResultsAnswer(BaseModel):
    """What was set, and what came of it."""

    settings: dict[str, str | int | float | bool | None] = Field(
        description="Those that differ from the paper's, by dotted name."
    )
    results: list[ResultAnswer]
