"""Asks the queries of dev, whose answers are known, to weigh words and to calibrate scores.

Texts of dev are searched among the photos of dev, each left out of the captions of its own photo;
the model was not trained on either. Only the photo that a text was written for counts as right.
Among many thousand photos others would fit it as well and count as wrong, which is why the rest of
the index takes no part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from aoq.errors import UserError, require_packages
from aoq.progress import progress_bar, warn
from aoq.retrieval.allowed import Allowed
from aoq.retrieval.calibration import Calibration
from aoq.retrieval.find import DEPTH, Question
from aoq.retrieval.fusion import Fusion, JudgedCandidates, choose_weight
from aoq.retrieval.index import Index
from aoq.retrieval.matcher import Matcher
from aoq.retrieval.queries import Query
from aoq.retrieval.ranking import compares_vectors
from aoq.retrieval.text import write_captions
from aoq.retrieval.tuning import Tuning
from aoq.scoring.blocks import evenly_spread
from aoq.types import Bools, Floats

SPLIT = "dev"
JUDGED = 10
"First hits of each query that calibrate scores."
_RECALL_DEPTHS = (1, 5, 10)
_QUERIES, _SLOW_QUERIES = 1000, 100  # of each kind; the latter of a model that scores pairs


@dataclass(frozen=True)
class JudgedHits:
    """The hits of a query, best first. (K,)"""

    scores: Floats
    right: Bools

    @classmethod
    def of(cls, scores: Floats, right: Bools) -> JudgedHits:
        order = np.argsort(-scores, kind="stable")
        return cls(scores[order], right[order])


def completed(matcher: Matcher) -> Index:
    """Index the captions of a matcher's index, and learn from dev; the manifest is not saved.

    To be called when all parts are written, and again when texts change or images are renumbered.
    """
    index = matcher.index
    manifest = replace(index.manifest, captions=None, tuning=None)
    if not index.texts:
        return replace(index, manifest=manifest)
    try:
        require_packages("bm25s", "faiss", extra="search")
    except UserError as error:
        warn(f"captions are not indexed, and scores are not calibrated: {error}")
        return replace(index, manifest=manifest)
    manifest = replace(manifest, captions=write_captions(index))
    fresh = matcher.with_index(replace(index, manifest=manifest))
    return replace(index, manifest=replace(manifest, tuning=tuned(fresh)))


def tuned(matcher: Matcher) -> Tuning | None:
    """Learn from dev what scores of an index mean; None if it holds no captions of dev."""
    index = matcher.index
    allowed_images, allowed_texts = (
        Allowed.of_mask(np.array([entry.split == SPLIT for entry in entries], bool))
        for entries in (index.images, index.texts)
    )
    texts = allowed_texts.numbers.tolist()
    images = [number for number in allowed_images.numbers.tolist() if index.images[number].texts]
    if not texts or not images:
        return None
    most = _QUERIES if compares_vectors(matcher.encoder.model) else _SLOW_QUERIES
    texts, images = (
        [numbers[place] for place in evenly_spread(len(numbers), most).tolist()]
        for numbers in (texts, images)
    )
    with progress_bar("calibrate", total=len(texts) + len(images), unit="queries") as update:
        of_texts, of_images = [], []
        for text in texts:
            of_texts.append(photos_of(matcher, text, allowed_images))
            update(advance=1)
        for image in images:
            of_images.append(_texts_of(matcher, image, allowed_texts))
            update(advance=1)
    weight = None if matcher.captions is None else choose_weight(of_texts)
    rankings = photo_rankings(of_texts, weight)
    calibrations = {
        name: _calibrate(found, len(allowed_images)) for name, found in rankings.items()
    }
    calibrations["texts"] = _calibrate(of_images, len(allowed_texts))
    recall = {name: recall_of(found) for name, found in rankings.items()}
    return Tuning(SPLIT, len(texts), weight, recall, calibrations)


def photos_of(
    matcher: Matcher, text: int, allowed: Allowed, *, depth: int = DEPTH
) -> JudgedCandidates:
    """Find photos for a text of the index, by the model and by the words of captions."""
    found = Question(matcher, Query(texts=(text,)), allowed=allowed).gather(depth)
    right = np.isin(found.ids, matcher.text(text).images)
    assert found.model is not None
    words = np.zeros_like(found.model) if found.words is None else found.words
    return JudgedCandidates(found.model, words, right)


def _texts_of(matcher: Matcher, image: int, allowed: Allowed) -> JudgedHits:
    """Find texts for an image of the index."""
    query = Query(images=(image,), find="texts")
    found = Question(matcher, query, allowed=allowed).gather(JUDGED)
    return JudgedHits.of(found.scores, np.isin(found.ids, matcher.image(image).texts))


def photo_rankings(
    found: Sequence[JudgedCandidates], weight: float | None
) -> dict[str, list[JudgedHits]]:
    """Rank the photos of each query by the model, and if there are captions by words and merged."""
    rankings = {"model": [JudgedHits.of(each.model, each.right) for each in found]}
    if weight is None:
        return rankings
    fusion = Fusion(weight)
    having = [each.words > 0 for each in found]
    rankings["words"] = [
        JudgedHits.of(each.words[some], each.right[some])
        for each, some in zip(found, having, strict=True)
    ]
    rankings["merged"] = [
        JudgedHits.of(fusion.merge(each.model, each.words), each.right) for each in found
    ]
    return rankings


def _calibrate(rankings: Sequence[JudgedHits], gallery: int) -> Calibration:
    scores = np.concatenate([each.scores[:JUDGED] for each in rankings])
    right = np.concatenate([each.right[:JUDGED] for each in rankings])
    return Calibration.fit(
        scores, right, split=SPLIT, queries=len(rankings), depth=JUDGED, gallery=gallery
    )


def recall_of(rankings: Sequence[JudgedHits]) -> dict[str, float]:
    """Return the share of queries with a right photo among the first 1, 5 and 10."""
    return {
        f"r{depth}": round(float(np.mean([each.right[:depth].any() for each in rankings])), 4)
        for depth in _RECALL_DEPTHS
    }
