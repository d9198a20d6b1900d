"""Candidate lists for other training tools: JSON lines, one for each anchor and positive of it.

    {"anchor": "/data/7.jpg", "positive": "a dog", "negative_1": "a cat", "negative_2": "a fox",
     "anchor_id": "7.jpg", "positive_id": "7.jpg#0", "negative_ids": ["8.jpg#2", "9.jpg#1"],
     "negative_scores": [0.41, 0.38]}

The columns in front are the n-tuples that sentence-transformers' losses read, in their order
(`load_dataset("json", ...)`, then `select_columns` of them; a column of pictures becomes pictures
with `cast_column(name, Image())`). A picture is the path of its file, or its id where the data set
knows no file; scores are left out where the lists came without.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from aoq.config import Direction
from aoq.data.dataset import PairDataset
from aoq.mining.candidates import CandidateLists
from aoq.progress import track
from aoq.storage import atomic_file
from aoq.types import Positives


def export_lists(
    lists: CandidateLists, dataset: PairDataset, path: Path, *, direction: Direction
) -> int:
    """Write every list to its full depth; return the number of lines.

    The lists must be of this data set (`require_fit`). One line is in memory at a time.
    """
    total = len(dataset.positives.pairs)
    lines = _lines(lists, dataset, direction=direction)
    with atomic_file(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        for line in track(lines, f"export {direction}", total=total, unit="lines"):
            file.write(json.dumps(line, allow_nan=False) + "\n")
    return total


def anchors_and_candidates(
    dataset: PairDataset, *, direction: Direction, images: Literal["path", "id"] = "path"
) -> tuple[Positives, Sequence[str], Sequence[str]]:
    """Return who belongs to whom, and what anchors and candidates of a direction are called.

    Captions are their text. Images are the paths of their pictures, or their ids where `images`
    says so or no file is known.
    """
    pictures: Sequence[str] = tuple(
        image_id if picture is None or images == "id" else str(picture.absolute())
        for image_id, picture in zip(dataset.image_ids, dataset.pictures, strict=True)
    )
    if direction == "i2t":
        return dataset.positives, pictures, dataset.captions
    return dataset.positives.swapped, dataset.captions, pictures


def _lines(
    lists: CandidateLists, dataset: PairDataset, *, direction: Direction
) -> Iterator[dict[str, Any]]:
    relation, anchors, candidates = anchors_and_candidates(dataset, direction=direction)
    anchor_ids, candidate_ids = dataset.image_ids, dataset.caption_ids
    if direction == "t2i":
        anchor_ids, candidate_ids = candidate_ids, anchor_ids
    ids, scores = lists.of(direction)
    scored = not np.isnan(scores[0, 0])
    names = [f"negative_{rank}" for rank in range(1, ids.shape[1] + 1)]
    for anchor, positive in relation.pairs:
        negatives = ids[anchor].tolist()
        line: dict[str, Any] = {
            "anchor": anchors[anchor],
            "positive": candidates[positive],
            **{name: candidates[at] for name, at in zip(names, negatives, strict=True)},
            "anchor_id": anchor_ids[anchor],
            "positive_id": candidate_ids[positive],
            "negative_ids": [candidate_ids[at] for at in negatives],
        }
        if scored:
            line["negative_scores"] = scores[anchor].tolist()
        yield line
