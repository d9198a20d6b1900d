"""Whether a model is above the simple ones: CCA and bags of words, on the same data and split.

These are trained in a minute or two and know neither the order of words nor places in photos. A
model that is not above them has not learned what it is for, whatever it is compared with otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aoq.config import BAGS
from aoq.data.dataset import PairDataset
from aoq.errors import UserError
from aoq.recipes import load_recipe
from aoq.runs.directory import ROUND_ONE, ROUNDS, RunDirectory
from aoq.runs.judge import result_on
from aoq.runs.summary import RunSummary


@dataclass(frozen=True)
class Gate:
    """A simple model and its figure, which others have to be above."""

    run: Path
    model: str
    rsum: float

    def is_below(self, rsum: float) -> bool:
        return rsum > self.rsum

    def sentence(self, name: str, rsum: float) -> str:
        """Say whether a model is above this one.

        >>> Gate(Path("runs/cca/round-one"), "cca", 270.8).sentence("runs/vse", 265.4)
        'runs/vse above CCA: no, rsum 265.4 against 270.8 (runs/cca/round-one)'
        """
        answer = "yes" if self.is_below(rsum) else "no"
        return (
            f"{name} above {self.model.upper()}: {answer}, rsum {rsum:.1f} against "
            f"{self.rsum:.1f} ({self.run})"
        )

    def as_dict(self, rsum: float) -> dict[str, Any]:
        return {"run": str(self.run), "rsum": self.rsum, "above": self.is_below(rsum)}


def gates_beside(runs: Iterable[Path], dataset: PairDataset) -> list[Gate]:
    """Find the best CCA and the best bag of words beside some runs, if judged on this split.

    Only kept results count: nothing is computed. Neighbours that cannot be read are no gates.
    """
    places = {_whole(run.absolute()).parent for run in runs}
    best: dict[str, Gate] = {}
    for path in (path for place in sorted(places) for path in _rounds_in(place)):
        try:
            found = _kept_gate(path, dataset)
        except (UserError, OSError):
            continue
        if found is not None and (found.model not in best or found.rsum > best[found.model].rsum):
            best[found.model] = found
    return list(best.values())


def gate_of(run: Path, dataset: PairDataset) -> Gate:
    """Return the gate that a judged run is, of whatever model."""
    result = result_on(run, dataset)
    if result is None:
        raise UserError(f"{run} is not judged on {dataset.name} ({dataset.split}) yet.")
    return Gate(run, load_recipe(RunDirectory(run).config).model.name, result["rsum"])


def gates_among(runs: Sequence[RunSummary]) -> Mapping[Path, dict[str, bool]]:
    """Map each listed run to whether it is above each simple model of the same test set."""
    found: dict[Path, dict[str, bool]] = {}
    for run in runs:
        beside = [
            other
            for other in runs
            if other is not run
            and other.recipe.model.name in BAGS - {run.recipe.model.name}
            and other.test is not None
            and other.origins["test"] == run.origins["test"]
        ]
        if run.test is None or not beside:
            continue
        above: dict[str, bool] = {}
        for other in beside:
            assert other.test is not None
            name = other.recipe.model.name
            above[name] = above.get(name, True) and run.test["rsum"] > other.test["rsum"]
        found[run.path] = above
    return found


def _whole(run: Path) -> Path:
    """Return the folder of the whole recipe that a round belongs to, or the run itself."""
    return run.parent if run.name in ROUNDS.values() else run


def _rounds_in(place: Path) -> Iterator[Path]:
    """Yield the folders of trained models in a folder of runs."""
    for folder in sorted(place.iterdir()):
        for path in (folder, folder / ROUND_ONE):
            run = RunDirectory(path)
            if run.config.is_file() and run.model.is_file():
                yield path


def _kept_gate(run: Path, dataset: PairDataset) -> Gate | None:
    """Return the gate that a run of a simple model is, if it was judged on this split."""
    model = load_recipe(RunDirectory(run).config).model.name
    result = result_on(run, dataset) if model in BAGS else None
    return None if result is None else Gate(run, model, result["rsum"])
