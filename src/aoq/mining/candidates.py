"""Candidate lists: for every image its hardest texts, for every text its hardest images.

One safetensors file that knows where it comes from. A run refuses lists that were mined on
another data set or that hold impossible ids, before a single step is trained on them.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from aoq.data.dataset import PairDataset
from aoq.errors import UserError
from aoq.storage import atomic_file
from aoq.types import Positives

Int32s = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]
_ARRAYS = ("i2t", "i2t_scores", "t2i", "t2i_scores")
_ROWS_AT_ONCE = 4096  # lists that are looked at together: published ones are 2,000 deep


@dataclass(frozen=True)
class Provenance:
    """Which model mined the lists, on which data."""

    teacher: str
    "SHA-256 of the teacher's weights, of an ensemble joined by +; or unknown."
    data: str
    "Fingerprint of the data set."
    filters: tuple[str, ...] = ()
    "Rules that dropped candidates."


@dataclass(frozen=True, eq=False)
class CandidateLists:
    """Hardest first; no positive is in any list. Scores are NaN where lists came without."""

    i2t: Int32s  # (N, h) text ids
    i2t_scores: Floats  # (N, h)
    t2i: Int32s  # (M, h) image ids
    t2i_scores: Floats  # (M, h)
    provenance: Provenance

    @property
    def depth_texts(self) -> int:
        return int(self.i2t.shape[1])

    @property
    def depth_images(self) -> int:
        return int(self.t2i.shape[1])

    def save(self, path: Path) -> None:
        arrays = {name: np.ascontiguousarray(getattr(self, name)) for name in _ARRAYS}
        with atomic_file(path) as temporary:
            metadata = {"provenance": json.dumps(asdict(self.provenance))}
            save_file(arrays, temporary, metadata=metadata)

    @classmethod
    def load(cls, path: Path) -> CandidateLists:
        if not path.is_file():
            raise UserError(f"{path} does not exist; write candidate lists with `aoq mine`.")
        try:
            with safe_open(path, framework="np") as file:
                arrays = {name: file.get_tensor(name) for name in _ARRAYS}
                stored = json.loads(file.metadata()["provenance"])
            provenance = Provenance(
                teacher=stored["teacher"], data=stored["data"], filters=tuple(stored["filters"])
            )
        except (SafetensorError, KeyError, TypeError, ValueError) as error:
            raise UserError(
                f"{path} holds no candidate lists ({error}); write them anew with `aoq mine`."
            ) from None
        return cls(**arrays, provenance=provenance)

    def require_fit(self, dataset: PairDataset, *, source: Path | str) -> CandidateLists:
        """These lists, if they were mined on `dataset` and are sound."""
        if self.provenance.data != dataset.fingerprint:
            raise UserError(
                f"{source} was mined on another data set than {dataset.name} ({dataset.split}); "
                "mine again with `aoq mine` on the data set of this run."
            )
        check_lists(self.i2t, dataset.positives, source=f"{source} (i2t)")
        check_lists(self.t2i, dataset.positives.swapped, source=f"{source} (t2i)")
        return self


def check_lists(lists: Int32s, positives: Positives, *, source: str) -> None:
    """Refuse lists of the wrong shape, with ids out of range or with positives inside.

    Seen from the anchors: `positives` relates anchors (its images) to candidates (its texts).
    """
    check_ids(lists, positives, source=source)
    place = first_positive(lists, positives)
    if place is not None:
        row, column = place
        raise UserError(
            f"{source}: row {row}, rank {column} holds {lists[row, column]}, which belongs to the "
            "anchor; a list may hold negatives only."
        )


def check_ids(lists: Int32s, positives: Positives, *, source: str) -> None:
    """Refuse lists of the wrong shape or with ids out of range."""
    anchors, candidates = positives.n_images, positives.n_texts
    if lists.dtype != np.int32 or lists.ndim != 2 or len(lists) != anchors:
        raise UserError(
            f"{source}: lists are {lists.dtype} {lists.shape}; "
            f"expected int32 with one row for each of {anchors} anchors."
        )
    for start in range(0, anchors, _ROWS_AT_ONCE):
        block = lists[start : start + _ROWS_AT_ONCE]
        outside = (block < 0) | (block >= candidates)
        if outside.any():
            row, column = np.argwhere(outside)[0]
            raise UserError(
                f"{source}: row {start + row}, rank {column} holds id {block[row, column]}; "
                f"expected 0 to {candidates - 1}."
            )


def first_positive(lists: Int32s, positives: Positives) -> tuple[int, int] | None:
    """Row and rank of the positive that ranks first in any list, if one is there."""
    found: tuple[int, int] | None = None
    for start in range(0, len(lists), _ROWS_AT_ONCE):
        block = lists[start : start + _ROWS_AT_ONCE]
        anchors = np.arange(start, start + len(block))[:, None]
        columns, rows = np.nonzero(positives.contains(anchors, block).T)
        if len(columns) and (found is None or columns[0] < found[1]):
            found = start + int(rows[0]), int(columns[0])
    return found
