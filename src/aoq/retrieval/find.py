"""Answers a query: gathers candidates by the model and by words, merges them, shows the best.

The model proposes its best candidates and the captions search its own, and each is asked about
those of the other, so that every candidate has both scores before they are merged.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, SupportsIndex, TypeGuard

import numpy as np
import torch

from aoq.errors import QueryError
from aoq.retrieval.allowed import Allowed
from aoq.retrieval.calibration import Calibration
from aoq.retrieval.composition import score, unit_vectors
from aoq.retrieval.duplicates import collapse
from aoq.retrieval.encoder import ReadPicture
from aoq.retrieval.hits import Answer, Hit, RankedBy
from aoq.retrieval.index import ImageEntry, TextEntry
from aoq.retrieval.queries import Query, Text
from aoq.types import Floats, Ids

if TYPE_CHECKING:
    from aoq.retrieval.matcher import Matcher

DEPTH = 200
"Candidates of each kind, where rankings are merged or duplicates collapsed."


@dataclass(frozen=True)
class Found:
    """Entries that may be an answer, with their scores; best first once they are ranked. (K,)"""

    ids: Ids
    scores: Floats
    "What ranks them."
    model: Floats | None
    words: Floats | None

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, places: Ids) -> Found:
        model, words = (None if each is None else each[places] for each in (self.model, self.words))
        return Found(self.ids[places], self.scores[places], model, words)

    def ranked(self) -> Found:
        """Sort the best first; equal scores by the lower number."""
        return self[np.lexsort((self.ids, -self.scores))]


class Question:
    """A query to an index, encoded."""

    def __init__(self, matcher: Matcher, query: Query, *, allowed: Allowed | None = None) -> None:
        """Encode the query; `allowed` has the entries that may be found, if they are known."""
        self.matcher = matcher
        self.query = query
        self.index = matcher.index
        self.allowed = self.index.allowed(query.where, query.find) if allowed is None else allowed
        self.captions = matcher.captions if query.searches_captions else None
        if query.words == "only" and self.captions is None:
            raise QueryError(
                "the index holds no captions whose words could be searched; search by the model."
            )
        by_model = query.words != "only"
        # What has no words is rejected first: that costs little.
        self.unknown_words = matcher.unknown_words(query) if by_model else ()
        self.terms = matcher.terms(query) if by_model else ()

    @property
    def ranked_by(self) -> RankedBy:
        """What makes the order."""
        if self.captions is None:
            return "model"
        return "merged" if self.terms else "words"

    def answer(self) -> Answer:
        """Find the best entries that reach the bar, as many as are wanted."""
        top, wanted = self.query.top, self.query.top + len(self._own_images)
        needs_more = self.query.collapse or self.ranked_by == "merged"
        depth = max(DEPTH, 2 * wanted) if needs_more else wanted
        bar = self._bar
        while True:
            with self.index.unchanged():
                found = self.gather(depth).ranked()
                found = found[np.flatnonzero(~np.isin(found.ids, self._own_images))]
                good = found if bar is None else found[np.flatnonzero(found.scores >= bar)]
                groups = self._groups(good)
            is_all = len(found) + len(self._own_images) < depth or len(good) < len(found)
            if len(groups) >= top or is_all:
                break
            depth *= 4
        return Answer(
            tuple(self._hit(good, group) for group in groups),
            self.unknown_words,
            exact=not self.terms or self.matcher.ranker(self.query.find).exact,
            ranked_by=self.ranked_by,
            calibration=self.calibration,
            bar=bar,
        )

    def gather(self, depth: int) -> Found:
        """Collect the `depth` best candidates of the model, and of words, with both scores."""
        by_words = self._words()
        if by_words is None:
            return self._by_model(depth, also=None)
        best = _best_above_0(by_words, depth)
        if not self.terms:
            return Found(best, by_words[best], None, by_words[best])
        found = self._by_model(depth, also=best)
        assert found.model is not None
        words = by_words[found.ids]
        merged = self.matcher.fusion.merge(found.model, words)
        return Found(found.ids, merged, found.model, words)

    def _by_model(self, depth: int, *, also: Ids | None) -> Found:
        kind = self.query.find
        found = score(
            self.terms,
            self.matcher.ranker(kind),
            self.matcher.candidates(kind),
            top=depth,
            allowed=self.allowed,
            also=also,
        )
        return Found(found.ids, found.scores, found.scores, None)

    def _words(self) -> Floats | None:
        """Score all images by the words of their captions; None if these are not searched. (N,)"""
        if self.captions is None:
            return None
        n_images = len(self.index.images)
        total = np.zeros(n_images, np.float32)
        for text, weight in zip(self.query.texts, self.query.weight_of_each, strict=True):
            total += weight * self._words_of(text)
        for text in self.query.without:
            total -= self.query.without_weight * self.captions.rank_all(text, n_images=n_images)
        total = np.maximum(total, 0)
        if self.allowed is not None:
            total[~self.allowed.mask] = 0
        return total

    def _words_of(self, text: Text) -> Floats:
        """Score all images by the words of a text.

        A text of the index does not find its image by itself: there, only other captions count.
        """
        assert self.captions is not None
        n_images = len(self.index.images)
        if isinstance(text, str):
            return self.captions.rank_all(text, n_images=n_images)
        entry = self.matcher.text(text)
        scores = self.captions.rank_all(entry.text, n_images=n_images)
        for image in entry.images:
            texts = [self.index.texts[each] for each in self.index.images[image].texts]
            others = [each.text for each in texts if each is not entry]
            scores[image] = self.captions.score_document(entry.text, others)
        return scores

    @cached_property
    def calibration(self) -> Calibration | None:
        """What was fitted on queries like this one: of one text, or of one photo for texts."""
        if not self.query.asks_across:
            return None
        kind = self.ranked_by if self.query.find == "images" else "texts"
        return self.matcher.calibrations.get(kind)

    @property
    def _bar(self) -> float | None:
        """The lowest score of a hit."""
        bars = [] if self.query.min_score is None else [self.query.min_score]
        if self.query.min_precision is not None:
            bars.append(self._precise_bar(self.query.min_precision))
        return max(bars, default=None)

    def _precise_bar(self, precision: float) -> float:
        logits = self.matcher.encoder.trained.logits
        if self.calibration is not None:
            bar = self.calibration.bar(precision)
            if bar is not None:
                return bar
            raise QueryError(
                f"no score has a precision of {precision:.0%} on {self.calibration.split}; the "
                f"best hits reach {self.calibration.best_precision:.0%}; ask for less."
            )
        if not self.query.asks_across:
            raise QueryError(
                "what scores mean is known of queries of one sentence only, or of one photo for "
                "texts; give a lowest score instead of a precision."
            )
        if logits is not None and logits.bias is not None and self.ranked_by == "model":
            return logits.score_of(precision)
        raise QueryError(
            "what scores mean was not measured, because the index holds no captions of a dev "
            "split; index a data set that has one, or give a lowest score instead of a precision."
        )

    @cached_property
    def _own_images(self) -> Ids:
        """The images of the index that the query is made of, which are no answer to it."""
        if self.query.find == "texts":
            return np.empty(0, np.int64)
        numbers = [self.matcher.image(each).number for each in self.query.images if _is_entry(each)]
        return np.array(numbers, np.int64)

    def _groups(self, found: Found) -> list[list[int]]:
        """List places of the hits to show, each followed by those of its duplicates."""
        if not self.query.collapse:
            return [[place] for place in range(min(self.query.top, len(found)))]
        rows = self.matcher.candidates("images").rows[torch.from_numpy(found.ids)]
        contents = [self.index.images[number].content for number in found.ids.tolist()]
        vectors = unit_vectors(rows).cpu().numpy()
        return collapse(vectors, contents, top=self.query.top, same=self.query.same)

    def _hit(self, found: Found, group: list[int]) -> Hit:
        place, *others = group
        number, value = int(found.ids[place]), float(found.scores[place])
        entry: ImageEntry | TextEntry
        if self.query.find == "images":
            entry = self.index.images[number]
            text, picture = self._caption(entry), entry.picture
        else:
            entry = self.index.texts[number]
            text, picture = entry.text, None
        return Hit(
            number,
            entry.id,
            value,
            text,
            picture,
            None if self._answers is None else number in self._answers,
            self._probability(value),
            model_score=None if found.model is None else float(found.model[place]),
            words_score=None if found.words is None else float(found.words[place]),
            duplicates=tuple(found.ids[others].tolist()),
        )

    def _caption(self, image: ImageEntry) -> str:
        """Return the caption with most of the words that were looked for; else the first."""
        captions = [self.index.texts[text].text for text in image.texts]
        if not captions:
            return ""
        if self.captions is None:
            return captions[0]
        asked = " ".join(
            text if isinstance(text, str) else self.matcher.text(text).text
            for text in self.query.texts
        )
        return captions[self.captions.closest(asked, captions)]

    @cached_property
    def _answers(self) -> tuple[int, ...] | None:
        """The right answers, if the query is an entry of the index."""
        if not self.query.asks_across:
            return None
        if self.query.find == "images":
            text = self.query.texts[0]
            return self.matcher.text(text).images if _is_entry(text) else None
        image = self.query.images[0]
        return self.matcher.image(image).texts if _is_entry(image) else None

    def _probability(self, value: float) -> float | None:
        """Return the probability that a hit is right: as measured, or the model's own."""
        if self.calibration is not None:
            return self.calibration.probability(value)
        is_model = self.ranked_by == "model" and self.query.asks_across
        return self.matcher.encoder.probability(value) if is_model else None


def _best_above_0(scores: Floats, count: int) -> Ids:
    """Return the places of the best scores above 0, and of all that equal the last of them."""
    places: Ids = np.flatnonzero(scores > 0)
    if len(places) <= count:
        return places
    least = np.partition(scores[places], -count)[-count]
    return places[np.flatnonzero(scores[places] >= least)]


def _is_entry(asked: object) -> TypeGuard[SupportsIndex]:
    """Return whether an entry of the index is asked with, by its number."""
    return not isinstance(asked, str | Path | bytes | ReadPicture)
