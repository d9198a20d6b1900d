"""The mined negatives of a run, in the numbers of its index.

Lists are mined on the training split and count its images and texts from zero; an index may hold
other splits and photos besides. Where both are of the same data, the training split has the same
order in both; ids would not do, because some data sets repeat them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from aoq.data.dataset import PairDataset
from aoq.data.opening import open_dataset
from aoq.errors import UserError
from aoq.experiments.inspection import Anchor, EntryKind, anchor_list, provenance_rows
from aoq.mining.candidates import CandidateLists
from aoq.progress import warn
from aoq.recipes import load_recipe
from aoq.retrieval.index import Index
from aoq.storage import RunDirectory
from aoq.web.refusals import RefusedError


@dataclass(frozen=True)
class Candidate:
    """An image or text of the index that was mined, and its score where lists have some."""

    number: int
    score: float | None


@dataclass(frozen=True)
class AnchorNegatives:
    """An anchor of the index: what belongs to it, and the wrong ones closest to it."""

    positives: tuple[int, ...]
    candidates: tuple[Candidate, ...]
    provenance: list[tuple[str, str]]


class Negatives:
    """Candidate lists whose anchors and candidates are all in an index."""

    def __init__(self, lists: CandidateLists, dataset: PairDataset, index: Index) -> None:
        self._lists = lists
        self._dataset = dataset
        self._in_index: dict[EntryKind, list[int]] = {
            "image": [image.number for image in index.images if image.split == "train"],
            "text": [text.number for text in index.texts if text.split == "train"],
        }
        self._in_lists = {
            kind: {number: place for place, number in enumerate(numbers)}
            for kind, numbers in self._in_index.items()
        }

    @classmethod
    def open(cls, run: Path, index: Index) -> Negatives | str:
        """The lists that were mined with a run or that it drew from, or why there are none.

        Visitors read the reason, so it names no place on this machine.
        """
        recipe = load_recipe(RunDirectory(run).config)
        places = [RunDirectory(folder).candidates for folder in (run, run.parent)]
        places += [Path(recipe.candidates)] if recipe.candidates else []
        file = next((place for place in places if place.is_file()), None)
        if file is None or not recipe.data:
            return "No negatives were mined with this run; `aoq mine` does it."
        try:
            dataset = open_dataset(Path(recipe.data), "train")
            lists = CandidateLists.load(file).require_fit(dataset, source=file)
        except UserError as error:
            warn(f"the negatives of {run} are not shown: {error}")
            return "The negatives that were mined cannot be read; the server's log says why."
        indexed = index.manifest.fingerprints.get("train")
        if indexed is None:
            return (
                "Negatives are mined on the training split, which the index does not hold; make "
                "it again with `aoq index` and all splits."
            )
        if indexed != dataset.fingerprint:
            return (
                "The negatives were mined on another data set than the index was made of; make it "
                "again with `aoq index` and the data of the run."
            )
        return cls(lists, dataset, index)

    def of(self, kind: EntryKind, number: int, *, depth: int) -> AnchorNegatives:
        """Those of an image or text of the index."""
        place = self._in_lists[kind].get(number)
        if place is None:
            raise RefusedError(
                404, f"Negatives were mined for the training split; {kind} {number} is not in it."
            )
        found = anchor_list(self._lists, self._dataset, Anchor(kind, place), depth=depth)
        others = self._in_index["text" if kind == "image" else "image"]
        return AnchorNegatives(
            positives=tuple(others[entry.number] for entry in found.positives),
            candidates=tuple(Candidate(others[e.number], e.score) for e in found.candidates),
            provenance=provenance_rows(self._lists, self._dataset),
        )
