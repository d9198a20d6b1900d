"""Candidate lists: for every image its hardest texts, for every text its hardest images.

They are stored as one safetensors file that states where it comes from. Loading checks that the
file is complete, of the stated depths and unchanged. `require_fit` checks that lists, from a file
or not, can be lists of a data set. A run does both before a single step is trained.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from aoq.config import Direction
from aoq.data.dataset import PairDataset
from aoq.errors import UserError
from aoq.progress import count_of
from aoq.storage import atomic_file, hash_parts
from aoq.types import Bools, Floats, Int32s, Positives

_STATEMENT = "aoq"  # key of the file's metadata that holds the following, as JSON
_ARRAYS = ("i2t", "i2t_scores", "t2i", "t2i_scores")
_MATCHES = ("i2t_matches", "t2i_matches")  # of lists whose matches were estimated
_STATED = ("provenance", "depth_texts", "depth_images", "sha256")
DIRECTIONS: tuple[Direction, ...] = ("i2t", "t2i")
_ROWS_AT_ONCE = 1024  # lists that are checked at a time: published ones are 2,000 deep
_REMEDY = "the lists are damaged or of another data set; copy them again or mine with `aoq mine`."


@dataclass(frozen=True)
class Provenance:
    """Which model mined the lists, on which data."""

    teacher: str
    "Hash of the teacher's weights, words and settings; of an ensemble, joined by +."
    data: str
    "Fingerprint of the data set."
    rules: tuple[str, ...] = ()
    "Rules against false negatives that dropped candidates, in the order they were applied."
    proposals: str = ""
    "Teacher that proposed the candidates of re-ranked lists."
    precision: str = "float32"
    "Precision of the scores."


@dataclass(frozen=True, eq=False)
class CandidateLists:
    """Hardest first; no positive is in any list. Scores are NaN if the lists came without."""

    i2t: Int32s  # (N, h) text ids
    i2t_scores: Floats  # (N, h)
    t2i: Int32s  # (M, h) image ids
    t2i_scores: Floats  # (M, h)
    provenance: Provenance
    i2t_matches: Floats | None = None  # (N, h) probability that a candidate is right, 0 to 1
    t2i_matches: Floats | None = None  # (M, h)

    @property
    def depth_texts(self) -> int:
        return int(self.i2t.shape[1])

    @property
    def depth_images(self) -> int:
        return int(self.t2i.shape[1])

    @property
    def extent(self) -> str:
        """How many candidates are listed for how many anchors, in words."""
        n_images, n_texts = len(self.i2t), len(self.t2i)
        return (
            f"{count_of(self.depth_texts, 'text')} for each of {count_of(n_images, 'image')} and "
            f"{count_of(self.depth_images, 'image')} for each of {count_of(n_texts, 'text')}"
        )

    @property
    def nbytes(self) -> int:
        """Memory of the lists, ids and scores."""
        return sum(array.nbytes for array in self._arrays.values())

    @property
    def _arrays(self) -> dict[str, npt.NDArray[Any]]:
        """All arrays by name: those of every file, and the estimates if there are any."""
        named = {name: getattr(self, name) for name in (*_ARRAYS, *_MATCHES)}
        return {name: array for name, array in named.items() if array is not None}

    def of(self, direction: Direction) -> tuple[Int32s, Floats]:
        """Return the ids and scores of one direction."""
        return (self.i2t, self.i2t_scores) if direction == "i2t" else (self.t2i, self.t2i_scores)

    def matches_of(self, direction: Direction) -> Floats | None:
        """Return the probabilities that candidates of one direction are right, if estimated."""
        return self.i2t_matches if direction == "i2t" else self.t2i_matches

    def cut(self, depth: int | None) -> CandidateLists:
        """Cut the lists to at most this depth."""
        arrays = {name: array[:, :depth] for name, array in self._arrays.items()}
        return CandidateLists(**arrays, provenance=self.provenance)

    def save(self, path: Path | str) -> None:
        """Write the lists to a file that states where they come from."""
        self.check_form(source="these lists")
        arrays = {name: np.ascontiguousarray(array) for name, array in self._arrays.items()}
        provenance = json.dumps(asdict(self.provenance))
        stated = {
            "provenance": provenance,
            "depth_texts": str(self.depth_texts),
            "depth_images": str(self.depth_images),
            "sha256": _content_hash(arrays, provenance),
        }
        with atomic_file(Path(path)) as temporary:  # several entries would be in any order
            save_file(arrays, temporary, metadata={_STATEMENT: json.dumps(stated)})

    @classmethod
    def load(cls, path: Path | str) -> CandidateLists:
        """Read the lists of a file; refuse one that is incomplete or changed."""
        path = Path(path)
        if not path.is_file():
            raise UserError(f"{path} does not exist; write candidate lists with `aoq mine`.")
        try:
            with safe_open(path, framework="np") as file:
                present = set(file.keys())
                stated = _read_statement((file.metadata() or {}).get(_STATEMENT))
                missing = [name for name in _ARRAYS if name not in present]
                missing += [name for name in _STATED if name not in stated]
                if missing:
                    raise UserError(
                        f"{path} holds no candidate lists: it lacks {', '.join(missing)}; name a "
                        "file that `aoq mine` wrote."
                    )
                held = (*_ARRAYS, *(name for name in _MATCHES if name in present))
                arrays = {name: file.get_tensor(name) for name in held}
        except SafetensorError as error:
            raise UserError(
                f"{path} is not a safetensors file, or it was cut short at "
                f"{path.stat().st_size:,} bytes ({error}); copy it again or write it with "
                "`aoq mine`."
            ) from None
        lists = cls(**arrays, provenance=_read_provenance(stated["provenance"], source=path))
        if _content_hash(arrays, stated["provenance"]) != stated["sha256"]:
            raise UserError(
                f"{path} is damaged: its content does not have the SHA-256 that it states; copy "
                "it again or write it with `aoq mine`."
            )
        lists.check_form(source=path)
        for name in ("depth_texts", "depth_images"):
            depth = getattr(lists, name)
            if stated[name] != str(depth):
                raise UserError(
                    f"{path} states {name} {stated[name]} and holds {depth} a list; write it "
                    "anew with `aoq mine`."
                )
        return lists

    def require_fit(self, dataset: PairDataset, *, source: Path | str) -> CandidateLists:
        """Return these lists; refuse them if they are damaged or of another data set."""
        if self.provenance.data != dataset.fingerprint:
            raise UserError(
                f"{source} was mined on another data set than {dataset.name} ({dataset.split}); "
                "name the one it was mined on, or mine this one with `aoq mine`."
            )
        self.check_form(source=source)
        check_lists(self.i2t, dataset.positives, source=f"{source} (i2t)")
        check_lists(self.t2i, dataset.positives.swapped, source=f"{source} (t2i)")
        for direction in DIRECTIONS:
            _check_scores(self.of(direction)[1], source=f"{source} ({direction})")
            _check_matches(self.matches_of(direction), source=f"{source} ({direction})")
        return self

    def check_form(self, *, source: Path | str) -> None:
        """Refuse arrays of a wrong dtype or shape."""
        for direction in DIRECTIONS:
            ids, scores = self.of(direction)
            if ids.dtype != np.int32 or ids.ndim != 2 or not ids.shape[1]:
                raise UserError(
                    f"{source} ({direction}): ids are {ids.dtype} {ids.shape}; expected int32, one "
                    "row per anchor with at least one candidate; write the lists anew with "
                    "`aoq mine`."
                )
            if scores.dtype != np.float32 or scores.shape != ids.shape:
                raise UserError(
                    f"{source} ({direction}): scores are {scores.dtype} {scores.shape}; expected "
                    f"float32 {ids.shape}, one for each id; write the lists anew with `aoq mine`."
                )
            matches = self.matches_of(direction)
            if matches is not None and (matches.dtype != np.float32 or matches.shape != ids.shape):
                raise UserError(
                    f"{source} ({direction}): probabilities are {matches.dtype} {matches.shape}; "
                    f"expected float32 {ids.shape}, one for each id; write the lists anew with "
                    "`aoq mine`."
                )


def _read_statement(text: str | None) -> dict[str, str]:
    """Read what a file states about itself; nothing if aoq did not write it."""
    try:
        stated = json.loads(text or "{}")
    except ValueError:
        return {}
    is_ours = isinstance(stated, dict) and all(isinstance(value, str) for value in stated.values())
    return stated if is_ours else {}


def check_lists(lists: Int32s, positives: Positives, *, source: str) -> None:
    """Refuse lists of the wrong shape, with impossible or repeated ids or with positives inside.

    `positives` relates anchors (its images) to candidates (its texts).
    """
    check_ids(lists, positives, source=source)
    place = first_positive(lists, positives)
    if place is not None:
        row, column = place
        raise UserError(
            f"{source}: row {row}, rank {column} holds {lists[row, column]}, which belongs to the "
            f"anchor; a list may hold negatives only: {_REMEDY}"
        )


def check_ids(lists: Int32s, positives: Positives, *, source: str) -> None:
    """Refuse lists of the wrong shape, with ids out of range or with one id twice in a list."""
    anchors, candidates = positives.n_images, positives.n_texts
    if lists.dtype != np.int32 or lists.ndim != 2 or len(lists) != anchors:
        raise UserError(
            f"{source}: lists are {lists.dtype} {lists.shape}; "
            f"expected int32 with one row for each of {anchors} anchors: {_REMEDY}"
        )
    for start, block in _blocks(lists):
        outside = (block < 0) | (block >= candidates)
        if outside.any():
            row, column = _first(outside)
            raise UserError(
                f"{source}: row {start + row}, rank {column} holds id {block[row, column]}; "
                f"expected 0 to {candidates - 1}: {_REMEDY}"
            )
        ordered = np.sort(block, axis=1)
        repeats = ordered[:, 1:] == ordered[:, :-1]
        if repeats.any():
            row, column = _first(repeats)
            raise UserError(
                f"{source}: row {start + row} holds {ordered[row, column]} twice; expected every "
                f"candidate once: {_REMEDY}"
            )


def first_positive(lists: Int32s, positives: Positives) -> tuple[int, int] | None:
    """Find row and rank of the positive that ranks first in any list.

    Ids must be in range. Pairs are few and candidates many: the pairs are looked up in the lists.
    """
    found: tuple[int, int] | None = None
    for start, block in _blocks(lists):
        rows, candidates = positives.within(
            slice(start, start + len(block)), slice(0, positives.n_texts)
        )
        offsets = np.arange(len(block))[:, None] * positives.n_texts
        keys = (np.sort(block, axis=1) + offsets).ravel()  # in rising order: a row is a range
        wanted = rows * positives.n_texts + candidates
        inside = keys[np.searchsorted(keys, wanted).clip(max=len(keys) - 1)] == wanted
        for row, candidate in zip(rows[inside], candidates[inside], strict=True):
            rank = int(np.argmax(block[row] == candidate))
            if found is None or rank < found[1]:
                found = start + int(row), rank
    return found


def _check_scores(scores: Floats, *, source: str) -> None:
    """Refuse scores that rise along a list or are not finite; lists without scores have NaN."""
    without = bool(np.isnan(scores[0, 0])) if scores.size else False
    for start, block in _blocks(scores):
        wrong = ~np.isnan(block) if without else ~np.isfinite(block)
        if wrong.any():
            row, column = _first(wrong)
            expected = "NaN as everywhere else" if without else "a finite number"
            raise UserError(
                f"{source}: row {start + row}, rank {column} has the score {block[row, column]}; "
                f"expected {expected}: {_REMEDY}"
            )
        rising = block[:, 1:] > block[:, :-1]
        if rising.any():
            row, column = _first(rising)
            raise UserError(
                f"{source}: row {start + row}, rank {column + 1} has a higher score than the rank "
                f"before it; expected the hardest first: {_REMEDY}"
            )


def _check_matches(matches: Floats | None, *, source: str) -> None:
    """Refuse probabilities outside 0 to 1."""
    for start, block in () if matches is None else _blocks(matches):
        wrong = ~((block >= 0) & (block <= 1))
        if wrong.any():
            row, column = _first(wrong)
            raise UserError(
                f"{source}: row {start + row}, rank {column} has the probability "
                f"{block[row, column]}; expected 0 to 1: {_REMEDY}"
            )


def _blocks(lists: npt.NDArray[Any]) -> Iterator[tuple[int, npt.NDArray[Any]]]:
    """Yield some rows at a time, with the number of the first, to bound memory."""
    for start in range(0, len(lists), _ROWS_AT_ONCE):
        yield start, lists[start : start + _ROWS_AT_ONCE]


def _first(true: Bools) -> tuple[int, int]:
    row, column = np.argwhere(true)[0]
    return int(row), int(column)


def _read_provenance(text: str, *, source: Path) -> Provenance:
    try:
        stored = json.loads(text)
        if not isinstance(stored["rules"], list):
            raise TypeError("its rules are not a list")
        provenance = Provenance(**{**stored, "rules": tuple(stored["rules"])})
        words = [value for name, value in stored.items() if name != "rules"]
        if not all(isinstance(word, str) for word in (*words, *provenance.rules)):
            raise TypeError("not all of it is text")
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"{source} does not say where its lists come from: its provenance is {text[:80]!r} "
            f"({error}); write them anew with `aoq mine`."
        ) from None
    return provenance


def _content_hash(arrays: Mapping[str, npt.NDArray[Any]], provenance: str) -> str:
    """Hash all that a file states but its depths, which the arrays show."""
    names = (name for name in (*_ARRAYS, *_MATCHES) if name in arrays)
    return hash_parts(provenance.encode(), *(arrays[name].data for name in names))
