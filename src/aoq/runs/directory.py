"""The run directory: what a trained model is on disk, and the names of its files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from aoq.disk import is_read_only
from aoq.errors import UserError
from aoq.progress import warn
from aoq.storage import EVENTS, read_json

CONFIG = "config.toml"
COPIED = "./towers"  # names of networks that a run holds begin with this
ROUND_ONE, ROUND_TWO = "round-one", "round-two"
ROUNDS = {"one": ROUND_ONE, "two": ROUND_TWO}


@dataclass(frozen=True)
class RunDirectory:
    """The folder of a run: its settings, its log, and what it produced."""

    path: Path

    @property
    def config(self) -> Path:
        return self.path / CONFIG

    @property
    def origin(self) -> Path:
        """What the run comes from: round, data and lists, or the files it was imported from."""
        return self.path / "origin.json"

    @property
    def vocabulary(self) -> Path:
        return self.path / "vocabulary.json"

    @property
    def inputs(self) -> Path:
        """The frozen networks by which a model with pretrained towers reads images and texts."""
        return self.path / "inputs.json"

    @property
    def pretrained(self) -> Path:
        """A pretrained model that was imported: its weights, tokenizer and preprocessing."""
        return self.path / "pretrained"

    @property
    def data_facts(self) -> Path:
        """What is known of the data set, in a run that was separated from it."""
        return self.path / "data.json"

    @property
    def events(self) -> Path:
        return self.path / EVENTS

    @property
    def board(self) -> Path:
        """Events for TensorBoard, where it is installed."""
        return self.path / "tensorboard"

    @property
    def results(self) -> Path:
        return self.path / "results.jsonl"

    @property
    def model(self) -> Path:
        """The weights of the best epoch on dev."""
        return self.path / "model.safetensors"

    @property
    def trainer(self) -> Path:
        """Everything needed to continue where training stopped."""
        return self.path / "trainer.pt"

    @property
    def warm_up(self) -> Path:
        """The state at the end of the warm-up, of a round that may go back to it."""
        return self.path / "warm-up.pt"

    @property
    def candidates(self) -> Path:
        return self.path / "candidates.safetensors"

    def remined(self, epoch: int) -> Path:
        """The lists that a round mined with its own weights before an epoch, counted from 1."""
        return self.path / f"candidates-epoch-{epoch}.safetensors"

    @property
    def encodings(self) -> Path:
        """Encodings of data sets; can be deleted, and are then computed again."""
        return self.path / "encodings"

    @property
    def interpolation(self) -> Path:
        """What was judged between a model before and after its training."""
        return self.path / "interpolation.jsonl"

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    def place_of(self, tower: str) -> str:
        """Return where a pretrained network is: within this run, if the run holds a copy."""
        is_inside = tower.startswith(f"{COPIED}/")
        return str((self.path / tower).absolute()) if is_inside else tower

    def read_origin(self) -> dict[str, Any]:
        """Read what the run comes from; empty if that is not stored."""
        return read_json(self.origin) if self.origin.is_file() else {}

    def last_round(self) -> RunDirectory:
        """Return this folder if it holds a trained model, else the last trained round in it."""
        rounds = (RunDirectory(self.path / name) for name in ("", ROUND_TWO, ROUND_ONE))
        found = next((each for each in rounds if each.model.is_file()), self)
        return found.require_trained()

    def require_trained(self) -> RunDirectory:
        """Return this run; refuse one without a trained model."""
        if not self.path.is_dir():
            near = get_close_matches(self.path.name, _names_in(self.path.parent), n=1)
            hint = f"did you mean {self.path.with_name(near[0])}?" if near else "name a run."
            raise UserError(f"there is no folder {self.path}; {hint}")
        for file in (self.config, self.model):
            if not file.is_file():
                rounds = ", ".join(str(model.parent) for model in self.path.glob("*/model.*"))
                hint = f"name one of {rounds}" if rounds else "name the folder of a trained round"
                raise UserError(
                    f"{self.path} holds no trained model: {file.name} is missing; {hint}."
                )
        return self


@contextmanager
def unless_read_only(run: Path, what: str) -> Iterator[None]:
    """Write something into a run; if the run is read-only, warn that `what` is not kept."""
    try:
        yield
    except OSError as error:
        if not is_read_only(error):
            raise
        warn(f"{run} is read-only: {what} is not kept there.")


def _names_in(folder: Path) -> list[str]:
    return [item.name for item in folder.iterdir() if item.is_dir()] if folder.is_dir() else []
