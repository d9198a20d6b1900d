"""A run as the server answers for it: the matcher, and what its files tell, in the API's words.

What computes or reads files here is called in a worker's thread.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from random import Random

from aoq.errors import UserError
from aoq.experiments.inspection import EntryKind
from aoq.experiments.runs import RunSummary
from aoq.progress import warn
from aoq.retrieval.encoder import ReadPicture, ReadText
from aoq.retrieval.index import ImageEntry, Index, TextEntry
from aoq.retrieval.matcher import Answer, Matcher
from aoq.storage import hash_parts
from aoq.web.answers import (
    AttentionAnswer,
    EntriesAnswer,
    EntryAnswer,
    HitAnswer,
    ImagesAnswer,
    NegativesAnswer,
    OneEntryAnswer,
    RunAnswer,
    ScoreAnswer,
    ScoredEntry,
    TeacherAnswer,
    TextQuery,
    TextsAnswer,
    Word,
)
from aoq.web.kept import Kept
from aoq.web.negatives import Negatives
from aoq.web.pictures import ShownPictures
from aoq.web.refusals import RefusedError, as_sentence


def _growth(index: Index) -> dict[str, int]:
    """The images of an index by its name, and before by those of what it has grown from.

    Photos that are added are numbered last, so addresses that a page has already stay valid.
    """
    hashes: list[bytes] = []
    grown, images = dict[str, int](), 0
    for part in index.manifest.parts:
        hashes.append(part.entries_hash.encode())
        images += part.n_images
        grown[hash_parts(*hashes)[:12]] = images
    return grown


class ServedRun:
    """One run under the name that addresses call it by."""

    def __init__(
        self,
        name: str,
        matcher: Matcher,
        *,
        pictures: Kept[tuple[Path, int], bytes],
        threads: int,
        before: ServedRun | None = None,
    ) -> None:
        """Serve a matcher; one that follows on another has the network that reads uploads."""
        self.name = name
        self.matcher = matcher
        self._images, self._texts = matcher.index.images, matcher.index.texts
        self._entries: dict[EntryKind, Sequence[ImageEntry | TextEntry]] = {
            "image": self._images,
            "text": self._texts,
        }
        self._pictures = ShownPictures((image.picture for image in self._images), kept=pictures)
        self._words: dict[EntryKind, list[str]] = {
            "image": [self._searched(image) for image in self._images],
            "text": [f" {text.text}".casefold() for text in self._texts],
        }
        self._negatives = Negatives.open(matcher.run, matcher.index)
        self._no_uploads: str | None = (
            _prepare_pictures(matcher, threads=threads) if before is None else before._no_uploads
        )
        self._grown_from = _growth(matcher.index)
        self._index_hash = list(self._grown_from)[-1]

    @property
    def path(self) -> Path:
        return self.matcher.run

    @property
    def reads_pictures(self) -> bool:
        return self._no_uploads is None

    def describe(self) -> RunAnswer:
        matcher, summary = self.matcher, RunSummary.read(self.path)
        splits = dict.fromkeys(image.split for image in self._images)
        return RunAnswer(
            name=self.name,
            label=_label(summary),
            model=matcher.model_name,
            images=len(self._images),
            texts=len(self._texts),
            index=self._index_hash,
            splits=[split for split in splits if split is not None],
            reads_pictures=self.reads_pictures,
            has_attention=matcher.has_attention,
            attention_reason=as_sentence(matcher.attention_reason or "") or None,
            has_negatives=isinstance(self._negatives, Negatives),
            negatives_reason=None if isinstance(self._negatives, Negatives) else self._negatives,
            exact=self._is_exact,
            teacher=self._teacher(),
            test=None if summary.test is None else dict(summary.test),
            test_data=summary.origins["test"],
            dev=None if summary.dev is None else dict(summary.dev.metrics),
        )

    @property
    def _is_exact(self) -> bool:
        """Whether nothing can be missed: a teacher that proposes everything hides nothing."""
        record = self.matcher.index.manifest.teacher
        return record is None or record.proposals >= max(len(self._images), len(self._texts))

    def _teacher(self) -> TeacherAnswer | None:
        proposer, record = self.matcher.proposer, self.matcher.index.manifest.teacher
        if proposer is None or record is None:
            return None
        return TeacherAnswer(
            label=_label(RunSummary.read(proposer.run)),
            proposals=record.proposals,
            recall={way: dict(shares) for way, shares in record.recall.items()},
            recall_split=record.recall_split,
        )

    # Search

    def images_for(self, text: str | int, *, top: int) -> ImagesAnswer:
        self._require_some("image")
        number = text if isinstance(text, int) else None
        query = self._words_of(text)
        started = time.perf_counter()
        answer = self.matcher.images_for(text, top=top)
        return ImagesAnswer(
            query=TextQuery(text=query, number=number),
            hits=self._hits(answer, "image"),
            unknown_words=list(answer.unknown_words),
            exact=answer.exact,
            seconds=time.perf_counter() - started,
        )

    def texts_for(self, image: ReadPicture | int, *, top: int) -> TextsAnswer:
        self._require_some("text")
        self._require_image(image)
        started = time.perf_counter()
        answer = self.matcher.texts_for(image, top=top)
        return TextsAnswer(
            hits=self._hits(answer, "text"),
            exact=answer.exact,
            seconds=time.perf_counter() - started,
            upload=None,
        )

    def score(self, image: ReadPicture | int, text: str | int) -> ScoreAnswer:
        self._require_image(image)
        read = ReadText.of(self._words_of(text), self.matcher.encoder.vocabulary)
        (score,) = self.matcher.score(image, [text])
        return ScoreAnswer(score=score, unknown_words=list(read.unknown_words))

    def attention(self, image: ReadPicture | int, text: str | int) -> AttentionAnswer:
        if self.matcher.attention_reason is not None:
            raise RefusedError(409, as_sentence(self.matcher.attention_reason))
        self._require_image(image)
        if isinstance(text, int):
            self._require("text", text)
        found = self.matcher.attention(image, text)
        return AttentionAnswer(
            words=[
                Word(word=word, known=known)
                for word, known in zip(found.words, found.known, strict=True)
            ],
            boxes=None if found.boxes is None else found.boxes.tolist(),
            by_word=None if found.by_word is None else found.by_word.tolist(),
            by_region=None if found.by_region is None else found.by_region.tolist(),
            score=found.score,
        )

    def _words_of(self, text: str | int) -> str:
        if isinstance(text, str):
            return text
        self._require("text", text)
        return self._texts[text].text

    def _hits(self, answer: Answer, kind: EntryKind) -> list[HitAnswer]:
        return [
            HitAnswer(
                number=hit.number,
                id=hit.id,
                score=hit.score,
                text=hit.text,
                picture=self._address(self._images[hit.number]) if kind == "image" else None,
                picture_gone=hit.picture_gone,
                correct=hit.correct,
            )
            for hit in answer.hits
        ]

    # Entries

    def entries(
        self,
        kind: EntryKind,
        *,
        split: str | None,
        entry_id: str | None,
        query: str,
        offset: int,
        limit: int,
        sample: int | None,
    ) -> EntriesAnswer:
        """A page of the images or texts that have all words of a query, or some drawn of them.

        The beginning of a word is enough; of an image its id and all its captions count.
        """
        wanted = [f" {word}" for word in query.casefold().split()]
        found = [
            entry
            for entry, words in zip(self._entries[kind], self._words[kind], strict=True)
            if split in (None, entry.split)
            and entry_id in (None, entry.id)
            and all(word in words for word in wanted)
        ]
        if sample is None:
            page = found[offset : offset + limit]
        else:
            page = Random(sample).sample(found, min(limit, len(found)))
        return EntriesAnswer(total=len(found), entries=[self._entry(entry) for entry in page])

    def entry(self, kind: EntryKind, number: int) -> OneEntryAnswer:
        self._require(kind, number)
        entry = self._entries[kind][number]
        partners: Sequence[ImageEntry | TextEntry]
        if isinstance(entry, ImageEntry):
            partners = [self._texts[text] for text in entry.texts]
        else:
            partners = [self._images[image] for image in entry.images]
        return OneEntryAnswer(
            entry=self._entry(entry), partners=[self._entry(partner) for partner in partners]
        )

    def negatives(self, kind: EntryKind, number: int, *, depth: int) -> NegativesAnswer:
        if isinstance(self._negatives, str):
            raise RefusedError(409, self._negatives)
        self._require(kind, number)
        found = self._negatives.of(kind, number, depth=depth)
        others = self._entries["text" if kind == "image" else "image"]
        return NegativesAnswer(
            anchor=self._entry(self._entries[kind][number]),
            positives=[self._entry(others[positive]) for positive in found.positives],
            candidates=[
                ScoredEntry(**dict(self._entry(others[candidate.number])), score=candidate.score)
                for candidate in found.candidates
            ],
            provenance=found.provenance,
        )

    def picture(self, number: int, *, side: int, index: str | None) -> bytes:
        """A JPEG; refused where the number is said to be of another index."""
        if index is not None and number >= self._grown_from.get(index, 0):
            raise RefusedError(
                404, "The picture is of an index that is not served here; load the page again."
            )
        self._require("image", number)
        picture = self._images[number].picture
        if picture is None:
            raise RefusedError(404, f"Image {number} has no picture: its regions came without.")
        return self._pictures.jpeg(picture, side=side)

    def _require_some(self, kind: EntryKind) -> None:
        if not self._entries[kind]:
            raise RefusedError(409, f"The index holds no {kind}s to be found.")

    def require_uploads(self) -> None:
        """Refuse pictures where none can be read; known before one is received."""
        if self._no_uploads is not None:
            raise RefusedError(409, self._no_uploads)

    def _require_image(self, image: ReadPicture | int) -> None:
        """Refuse an image that is not in the index, and an upload that other eyes have read."""
        if isinstance(image, int):
            self._require("image", image)
        elif image.source != self.matcher.encoder.known_source:
            raise RefusedError(404, "The picture was uploaded to another run; upload it to this.")

    def _require(self, kind: EntryKind, number: int) -> None:
        """Refuse a number that the index does not have."""
        count = len(self._entries[kind])
        if number >= count:
            raise RefusedError(404, f"There is no {kind} {number}; the index has {count:,}.")

    def _entry(self, entry: ImageEntry | TextEntry) -> EntryAnswer:
        return EntryAnswer(
            number=entry.number,
            id=entry.id,
            text=self._first_caption(entry) if isinstance(entry, ImageEntry) else entry.text,
            picture=self._address(entry) if isinstance(entry, ImageEntry) else None,
            picture_gone=isinstance(entry, ImageEntry) and _is_gone(entry),
            content=entry.content if isinstance(entry, ImageEntry) else None,
            split=entry.split,
        )

    def _first_caption(self, image: ImageEntry) -> str:
        return self._texts[image.texts[0]].text if image.texts else ""

    def _searched(self, image: ImageEntry) -> str:
        captions = (self._texts[text].text for text in image.texts)
        return " ".join(["", image.id, *captions]).casefold()

    def _address(self, image: ImageEntry) -> str | None:
        if image.picture is None or _is_gone(image):
            return None
        return f"/api/runs/{self.name}/pictures/{image.number}?index={self._index_hash}"


def _is_gone(image: ImageEntry) -> bool:
    """Whether the picture is no longer where it was indexed."""
    return image.picture is not None and not image.picture.is_file()


def _prepare_pictures(matcher: Matcher, *, threads: int) -> str | None:
    """Load the network that reads uploads; or else why there is none, in words for visitors."""
    if matcher.encoder.known_source is None:
        return (
            "This run cannot read pictures, because nothing tells which network made the features "
            "of its data set; choose an image of the index."
        )
    try:
        matcher.prepare_pictures(threads=threads)
    except UserError as error:
        warn(f"no pictures can be uploaded to {matcher.run}: {error}")
        return "This run cannot read pictures; the server's log says why."
    return None


def _label(run: RunSummary) -> str:
    return _as_in_the_paper(run.recipe.model.name, run.settings.loss.name)


def _as_in_the_paper(model: str, loss: str) -> str:
    """What its tables call a row.

    >>> _as_in_the_paper("vsrn", "online"), _as_in_the_paper("bfan", "adap_off_quin")
    ('VSRN', 'BFAN + AdapOffQuin')
    """
    name = "".join(part.capitalize() for part in loss.split("_"))
    return model.upper() if loss == "online" else f"{model.upper()} + {name}"
