"""The mined negatives of a run, by the numbers of its index.

Candidate lists number the images and texts of the training split from zero; an index may also hold
other splits and photos. If both are of the same data, the training split has the same order in
both. Ids would not identify entries, because some data sets repeat them.
"""

from __future__ import annotations

from pathlib import Path

from starlette.exceptions import HTTPException

from aoq.data.dataset import PairDataset
from aoq.data.splits import open_dataset
from aoq.errors import UserError
from aoq.mining.candidates import CandidateLists
from aoq.mining.inspection import Anchor, anchor_list, provenance_rows
from aoq.progress import warn
from aoq.recipes import load_recipe
from aoq.retrieval.index import Index
from aoq.runs.directory import RunDirectory
from aoq.types import EntryKind
from aoq.web.entries import IndexEntries
from aoq.web.schemas import NegativesAnswer, ScoredEntry


class MinedNegatives:
    """Candidate lists whose anchors and candidates are all in an index."""

    def __init__(self, lists: CandidateLists, dataset: PairDataset, entries: IndexEntries) -> None:
        self._lists = lists
        self._dataset = dataset
        self._entries = entries
        self._numbers = {
            kind: [entry.number for entry in listed if entry.split == "train"]
            for kind, listed in entries.by_kind.items()
        }
        self._places = {
            kind: {number: place for place, number in enumerate(numbers)}
            for kind, numbers in self._numbers.items()
        }

    @classmethod
    def open(cls, run: Path, index: Index, entries: IndexEntries) -> MinedNegatives | str:
        """Open the lists that a run mined or drew from, or return why there are none.

        Visitors read the reason, so it names no path of this machine.
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
        return cls(lists, dataset, entries)

    def of(self, kind: EntryKind, number: int, *, depth: int) -> NegativesAnswer:
        """Return the negatives of an image or text of the index, hardest first."""
        place = self._places[kind].get(number)
        if place is None:
            raise HTTPException(
                404, f"Negatives were mined for the training split; {kind} {number} is not in it."
            )
        found = anchor_list(self._lists, self._dataset, Anchor(kind, place), depth=depth)
        others: EntryKind = "text" if kind == "image" else "image"
        numbers, view = self._numbers[others], self._entries.view
        return NegativesAnswer(
            anchor=view(kind, number),
            positives=[view(others, numbers[item.number]) for item in found.positives],
            candidates=[
                ScoredEntry(**dict(view(others, numbers[item.number])), score=item.score)
                for item in found.candidates
            ],
            provenance=provenance_rows(self._lists, self._dataset),
        )
