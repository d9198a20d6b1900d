"""The candidate lists of the published program: two .npy files of ids, hardest first.

`i2t_<data>.npy` holds int32 text ids, one row per image, `t2i_<data>.npy` image ids, one row per
text. They state neither the model nor the data, and hold no scores: everything that can be checked
against the data set is checked, the rest stays unknown (unknown teacher, NaN scores). That program
fills lists deeper than the number of negatives with positives; such ends are cut off.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from aoq.data.dataset import PairDataset
from aoq.errors import UserError
from aoq.mining.candidates import CandidateLists, Provenance, check_ids, first_positive
from aoq.progress import warn
from aoq.storage import atomic_file
from aoq.types import Int32s, Positives

UNKNOWN_TEACHER = "unknown"


def read_published_lists(i2t: Path, t2i: Path, dataset: PairDataset) -> CandidateLists:
    """Read the lists of both files, if they can be lists of this data set."""
    texts = _read_lists(i2t, dataset.positives, what="texts")
    images = _read_lists(t2i, dataset.positives.swapped, what="images")
    return CandidateLists(
        i2t=texts,
        i2t_scores=np.full(texts.shape, np.nan, np.float32),
        t2i=images,
        t2i_scores=np.full(images.shape, np.nan, np.float32),
        provenance=Provenance(teacher=UNKNOWN_TEACHER, data=dataset.fingerprint),
    )


def write_published_lists(lists: CandidateLists, i2t: Path, t2i: Path) -> None:
    """Write both files in the format of the published program: ids only, without scores."""
    with atomic_file(i2t) as texts, atomic_file(t2i) as images:
        for path, ids in ((texts, lists.i2t), (images, lists.t2i)):
            with path.open("wb") as file:  # given a path, NumPy adds an ending to its name
                np.save(file, ids)


def _read_lists(path: Path, positives: Positives, *, what: str) -> Int32s:
    """Read one file, cut where positives begin; `positives` is seen from the anchors."""
    lists = _map_array(path)
    check_ids(lists, positives, source=str(path))
    if not lists.shape[1]:
        raise UserError(f"{path} holds empty lists; expected at least one of the {what} per row.")
    place = first_positive(lists, positives)
    if place is not None:
        row, depth = place
        negatives = positives.n_texts - int(positives.texts_per_image().max())
        if depth < negatives or depth == 0:
            raise UserError(
                f"{path}: row {row}, rank {depth} holds {lists[row, depth]}, which belongs to the "
                "anchor; expected negatives as long as there are any: the lists are of another "
                "data set, or of its images or captions in another order."
            )
        warn(
            f"{path}: the lists are cut to {depth} {what} of {lists.shape[1]}: the set has no "
            "more negatives, and positives follow."
        )
        lists = lists[:, :depth]
    return lists


def _map_array(path: Path) -> Int32s:
    try:
        lists: Int32s = np.lib.format.open_memmap(path, mode="r")
    except FileNotFoundError:
        raise UserError(f"{path} does not exist; expected candidate lists, .npy.") from None
    except Exception as error:  # damaged headers make NumPy raise almost anything
        reason = " ".join(str(error).split()).rstrip(".")
        raise UserError(
            f"{path} is not a NumPy array of numbers, or it is truncated or damaged ({reason}); "
            "expected int32 lists, hardest first."
        ) from None
    return lists
