"""The recall of a teacher's proposals: the share of the exact answers that they contain.

Entries of the training split would flatter it, because model and teacher have both learned their
pairs. Queries are therefore taken from the test split if the index holds one, else from dev, and
only without these from all entries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from aoq.progress import progress_bar
from aoq.retrieval.index import ImageEntry, Index, TeacherRecord, TextEntry
from aoq.retrieval.matcher import Matcher
from aoq.retrieval.ranking import FullRanker, ProposedRanker
from aoq.scoring.blocks import evenly_spread, ranges
from aoq.scoring.encoded import Modality
from aoq.types import Ids

RECALL_DEPTHS = (1, 5, 10)
SAMPLE = 100
# Splits that no model is trained on; first those that do not choose its best epoch.
_UNSEEN = ("test", "testall", "dev")
_QUERIES_AT_ONCE = 16


def with_recall(record: TeacherRecord, matcher: Matcher, *, sample: int) -> TeacherRecord:
    """Answer some queries by proposals and by full scoring, and record the share found."""
    index = matcher.index
    split = _unseen_split(index)
    if not sample or not index.texts:
        return replace(record, recall={}, recall_split=None)
    texts, images = (_sampled(entries, split, sample) for entries in (index.texts, index.images))
    recall = {
        "t2i": _recall_of(matcher, "texts", "images", texts),
        "i2t": _recall_of(matcher, "images", "texts", images),
    }
    return replace(record, recall=recall, recall_split=split)


def _unseen_split(index: Index) -> str | None:
    held = {part.split for part in index.manifest.parts if part.n_images and part.n_texts}
    return next((split for split in _UNSEEN if split in held), None)


def _sampled(entries: Sequence[ImageEntry | TextEntry], split: str | None, sample: int) -> Ids:
    """Return the numbers of some entries of a split, or of all splits."""
    numbers = np.array([entry.number for entry in entries if split in (None, entry.split)])
    return numbers[evenly_spread(len(numbers), sample)]


def _recall_of(
    matcher: Matcher, queries: Modality, candidates: Modality, numbers: Ids
) -> dict[str, float]:
    ranker = matcher.ranker(candidates)
    assert isinstance(ranker, ProposedRanker)
    full, top = FullRanker(ranker.candidates), max(RECALL_DEPTHS)
    found = np.zeros(len(RECALL_DEPTHS))
    with progress_bar(f"try {queries}", total=len(numbers), unit="queries") as update:
        for some in ranges(len(numbers), _QUERIES_AT_ONCE):
            query = matcher.entry_query(queries, numbers[some].tolist())
            exact, proposed = (each.rank(query, top=top).ids for each in (full, ranker))
            for one, other in zip(exact, proposed, strict=True):
                found += [np.isin(one[:depth], other[:depth]).mean() for depth in RECALL_DEPTHS]
            update(advance=some.stop - some.start)
    shares = (found / len(numbers)).round(4).tolist()
    return {"queries": len(numbers)} | {
        f"r{depth}": share for depth, share in zip(RECALL_DEPTHS, shares, strict=True)
    }
