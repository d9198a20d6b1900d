"""What a run knows of its data set when the two are separated: `data.json`.

A run that was pulled has no data set beside it. Its photos are still read by the network that made
the regions of the data, and its card still says what it was trained on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from aoq.data.splits import open_dataset, region_source, splits_of
from aoq.errors import UserError
from aoq.features.regions import RegionSource
from aoq.parsing import shown
from aoq.recipes import load_recipe
from aoq.runs.directory import RunDirectory
from aoq.storage import read_json


@dataclass(frozen=True)
class DataFacts:
    """Name and size of a data set, and how its regions were made."""

    name: str = ""
    sizes: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    "Images and captions of each split."
    source: RegionSource | None = None

    @classmethod
    def of_data(cls, folder: Path) -> DataFacts:
        splits = [open_dataset(folder, split) for split in splits_of(folder)]
        sizes = {each.split: (len(each), each.n_texts) for each in splits}
        return cls(splits[0].name, sizes, region_source(folder))

    @classmethod
    def of_run(cls, run: RunDirectory) -> DataFacts:
        """Return what the run keeps, else what its data set says; nothing if that is not there."""
        if run.data_facts.is_file():
            return cls.from_dict(read_json(run.data_facts)).at(run.place_of)
        recipe = load_recipe(run.config)
        try:
            facts = cls.of_data(Path(recipe.data)) if recipe.data else cls()
        except UserError:
            return cls()
        reads_regions = recipe.model.name != "towers"  # which see the photos themselves
        return facts if reads_regions else replace(facts, source=None)

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> DataFacts:
        """Read what `as_dict` wrote; raise a `UserError` for anything else."""
        name, sizes, source = (fields.get(key) for key in ("name", "sizes", "source"))
        is_read = isinstance(name, str) and isinstance(source, dict | None)
        if not is_read or not isinstance(sizes, dict) or not all(map(_is_size, sizes.values())):
            raise UserError(f"{shown(fields)} does not describe a data set; pull the run again.")
        read = {split: (size[0], size[1]) for split, size in sizes.items()}
        return cls(str(name), read, None if source is None else RegionSource.from_dict(source))

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "sizes": {split: list(size) for split, size in self.sizes.items()},
            "source": None if self.source is None else self.source.as_dict(),
        }

    def at(self, place_of: Callable[[str], str]) -> DataFacts:
        """Return these facts with the network where `place_of` says it is."""
        source = self.source
        return replace(self, source=source and replace(source, backbone=place_of(source.backbone)))


def _is_size(size: object) -> bool:
    return isinstance(size, list) and [type(number) for number in size] == [int, int]
