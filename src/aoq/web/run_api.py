"""One run as the API serves it: its matcher, its index and its files, in the API's words.

Methods compute and read files: routes call them on the worker pool.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path, PurePosixPath

from starlette.exceptions import HTTPException

from aoq.errors import UserError
from aoq.progress import warn
from aoq.retrieval.calibration import Calibration
from aoq.retrieval.encoder import ReadPicture, ReadText
from aoq.retrieval.index import Index
from aoq.retrieval.matcher import Matcher
from aoq.retrieval.queries import Query
from aoq.runs.summary import RunSummary
from aoq.types import EntryKind
from aoq.web.columns import describe_columns
from aoq.web.entries import IndexEntries
from aoq.web.errors import as_sentence
from aoq.web.mined_negatives import MinedNegatives
from aoq.web.schemas import (
    AttentionAnswer,
    CalibrationAnswer,
    ColumnsAnswer,
    ImagesAnswer,
    NegativesAnswer,
    RunAnswer,
    ScoreAnswer,
    SearchAnswer,
    SearchRequest,
    TeacherAnswer,
    TextQuery,
    TextsAnswer,
    Word,
)
from aoq.web.thumbnails import ThumbnailMaker, Thumbnails


class RunApi:
    """A run under the name that addresses call it by."""

    def __init__(
        self,
        name: str,
        matcher: Matcher,
        *,
        make_thumbnail: ThumbnailMaker,
        uploads_reason: str | None,
    ) -> None:
        """Serve a matcher; `uploads_reason` says why its run cannot read uploads, if so."""
        self.name = name
        self.path = matcher.run
        self.matcher = matcher
        self.entries = IndexEntries(matcher.index, run_name=name)
        self.uploads_reason = uploads_reason
        pictures = (image.picture for image in matcher.index.images)
        self._make_thumbnail = make_thumbnail
        self._thumbnails = Thumbnails(pictures, make_thumbnail)
        self._negatives = MinedNegatives.open(matcher.run, matcher.index, self.entries)

    def reopened(self) -> RunApi:
        """Serve the same run with its index as it is on disk."""
        return RunApi(
            self.name,
            self.matcher.reopened(),
            make_thumbnail=self._make_thumbnail,
            uploads_reason=self.uploads_reason,
        )

    def describe(self) -> RunAnswer:
        matcher, summary, entries = self.matcher, RunSummary.read(self.path), self.entries
        splits = dict.fromkeys(image.split for image in entries.images)
        reason = self._negatives if isinstance(self._negatives, str) else None
        return RunAnswer(
            name=self.name,
            label=f"{collection_name(matcher.index)} · {_model_label(summary)}",
            model=matcher.model_name,
            has_words=matcher.captions is not None,
            calibrations={
                name: _calibration_answer(each) for name, each in matcher.calibrations.items()
            },
            images=len(entries.images),
            texts=len(entries.texts),
            index=entries.index_hash,
            splits=[split for split in splits if split is not None],
            reads_pictures=self.uploads_reason is None,
            has_attention=matcher.has_attention,
            attention_reason=as_sentence(matcher.attention_reason or "") or None,
            has_negatives=reason is None,
            negatives_reason=reason,
            exact=self._is_exact,
            teacher=self._teacher(),
            test=None if summary.test is None else dict(summary.test),
            test_data=summary.origins["test"],
            dev=None if summary.dev is None else dict(summary.dev.metrics),
        )

    @property
    def _is_exact(self) -> bool:
        """Whether no answer is missed; true too if the teacher proposes every entry."""
        record = self.matcher.index.manifest.teacher
        entries = self.entries
        return record is None or record.proposals >= max(len(entries.images), len(entries.texts))

    def _teacher(self) -> TeacherAnswer | None:
        proposer, record = self.matcher.proposer, self.matcher.index.manifest.teacher
        if proposer is None or record is None:
            return None
        return TeacherAnswer(
            label=_model_label(RunSummary.read(proposer.run)),
            proposals=record.proposals,
            recall={direction: dict(shares) for direction, shares in record.recall.items()},
            recall_split=record.recall_split,
        )

    def images_for(self, text: str | int, *, top: int) -> ImagesAnswer:
        self.entries.require_any("image")
        query = TextQuery(text=self._words_of(text), number=text if isinstance(text, int) else None)
        started = time.perf_counter()
        answer = self.matcher.images_for(text, top=top)
        return ImagesAnswer(
            query=query,
            hits=self.entries.hits(answer.hits),
            unknown_words=list(answer.unknown_words),
            exact=answer.exact,
            seconds=time.perf_counter() - started,
        )

    def texts_for(
        self, image: ReadPicture | int, *, top: int, upload: str | None = None
    ) -> TextsAnswer:
        self.entries.require_any("text")
        self._require_image(image)
        started = time.perf_counter()
        answer = self.matcher.texts_for(image, top=top)
        return TextsAnswer(
            hits=self.entries.hits(answer.hits),
            exact=answer.exact,
            seconds=time.perf_counter() - started,
            upload=upload,
        )

    def search(self, asked: SearchRequest, like: Sequence[ReadPicture | int]) -> SearchAnswer:
        """Answer a query, in which uploads were found by their names."""
        self.entries.require_any("image" if asked.find == "images" else "text")
        for image in like:
            self._require_image(image)
        for text in asked.texts:
            self._words_of(text)
        query = Query(images=like, **asked.model_dump(exclude={"like"}))
        started = time.perf_counter()
        answer = self.matcher.find(query)
        calibration = answer.calibration
        return SearchAnswer(
            hits=self.entries.hits(answer.hits),
            unknown_words=list(answer.unknown_words),
            exact=answer.exact,
            ranked_by=answer.ranked_by,
            calibration=None if calibration is None else _calibration_answer(calibration),
            bar=answer.bar,
            nothing_fits=answer.nothing_fits,
            seconds=time.perf_counter() - started,
        )

    def columns(self) -> ColumnsAnswer:
        return self._columns

    @cached_property
    def _columns(self) -> ColumnsAnswer:
        return describe_columns(self.matcher.index.metadata)

    def score(self, image: ReadPicture | int, text: str | int) -> ScoreAnswer:
        self._require_image(image)
        read = ReadText.of(self._words_of(text), self.matcher.encoder.tokenizer)
        (score,) = self.matcher.score(image, [text])
        return ScoreAnswer(
            score=score,
            probability=self.matcher.encoder.probability(score),
            unknown_words=list(read.unknown_words),
        )

    def attention(self, image: ReadPicture | int, text: str | int) -> AttentionAnswer:
        if self.matcher.attention_reason is not None:
            raise HTTPException(409, as_sentence(self.matcher.attention_reason))
        self._require_image(image)
        self._words_of(text)
        found = self.matcher.attention(image, text)
        words = zip(found.words, found.known, strict=True)
        return AttentionAnswer(
            words=[Word(word=word, known=known) for word, known in words],
            boxes=None if found.boxes is None else found.boxes.tolist(),
            by_word=None if found.by_word is None else found.by_word.tolist(),
            by_region=None if found.by_region is None else found.by_region.tolist(),
            score=found.score,
        )

    def negatives(self, kind: EntryKind, number: int, *, depth: int) -> NegativesAnswer:
        if isinstance(self._negatives, str):
            raise HTTPException(409, self._negatives)
        self.entries.require(kind, number)
        return self._negatives.of(kind, number, depth=depth)

    def picture(self, number: int, *, side: int | None, index: str | None) -> bytes:
        """Return a JPEG; raise 404 if `index` names another index than that of the number."""
        if index is not None:
            self.entries.require_same_index(number, index)
        self.entries.require("image", number)
        picture = self.entries.images[number].picture
        if picture is None:
            raise HTTPException(404, f"Image {number} has no picture: its regions came without.")
        return self._thumbnails.jpeg(picture, side=side)

    def require_uploads(self) -> None:
        """Raise 409 if this run cannot read pictures; to be called before one is received."""
        if self.uploads_reason is not None:
            raise HTTPException(409, self.uploads_reason)

    def _words_of(self, text: str | int) -> str:
        if isinstance(text, str):
            return text
        self.entries.require("text", text)
        return self.entries.texts[text].text

    def _require_image(self, image: ReadPicture | int) -> None:
        """Raise 404 for an unknown number, or an upload encoded by a different backbone."""
        if isinstance(image, int):
            self.entries.require("image", image)
        elif image.source != self.matcher.encoder.known_source:
            raise HTTPException(404, "The picture was uploaded to another run; upload it to this.")


def prepare_uploads(matcher: Matcher, *, threads: int) -> str | None:
    """Load the network that reads uploads, or return why there is none, in words for visitors."""
    if matcher.encoder.known_source is None and matcher.model_name == "own":
        return (
            "This run cannot read pictures, because its model does not say how; choose an image of "
            "the index."
        )
    if matcher.encoder.known_source is None:
        return (
            "This run cannot read pictures, because nothing says which network made the features "
            "of its data set; choose an image of the index."
        )
    try:
        matcher.prepare_pictures(threads=threads)
    except UserError as error:
        warn(f"no pictures can be uploaded to {matcher.run}: {error}")
        return "This run cannot read pictures; the server's log says why."
    return None


def collection_name(index: Index) -> str:
    """Name what is searched: the folder of the data set, or of the photos."""
    if index.manifest.data is not None:
        return Path(index.manifest.data).name
    for image in index.images:
        if image.picture is not None:
            below = len(PurePosixPath(image.id).parts)
            return image.picture.parents[below - 1].name
    return index.folder.name


def _model_label(run: RunSummary) -> str:
    """Name a model for people.

    A pretrained one has the name that it was imported by, without its owner.
    """
    name = run.recipe.model.name
    if run.pretrained:
        return PurePosixPath(run.pretrained).name
    return {"towers": "Towers", "own": "own model"}.get(name, name.upper())


def _calibration_answer(calibration: Calibration) -> CalibrationAnswer:
    return CalibrationAnswer(
        split=calibration.split,
        queries=calibration.queries,
        best_precision=calibration.best_precision,
    )
