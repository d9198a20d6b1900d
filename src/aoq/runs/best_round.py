"""Which round of a run is used: the better one on dev.

Round two is meant to be better, and on small data sets it can be worse. Whatever opens a run asks
here, so that all commands use the same model. Experiments and tables are about a given round, and
name its folder.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from aoq.config import RoundConfig, RoundName
from aoq.errors import UserError
from aoq.manifest import check_file
from aoq.recipes import load_recipe
from aoq.runs.directory import ROUNDS, RunDirectory
from aoq.storage import read_json_lines

_SELECTED = {
    "rsum": ("rsum",),
    "r1+r5": ("i2t_r1", "i2t_r5", "t2i_r1", "t2i_r5"),
}


@dataclass(frozen=True, kw_only=True)
class RoundChoice:
    """The round of a run that is used, and why."""

    run: Path
    "As it was named."
    path: Path
    "Folder of the round that is used."
    used: RoundName | None
    "None where the folder itself holds the model."
    best: RoundName | None
    "The better round on dev; none where there is nothing to compare."
    dev: Mapping[RoundName, float | None]
    "Best validation of each trained round; none where no epoch after the warm-up has one."
    figure: str = "rsum"
    "The validation figure that chooses."
    problem: str = ""
    "Why the rounds cannot be compared."

    @property
    def other(self) -> RoundName | None:
        """The trained round that is not used."""
        return next((name for name in self.dev if name != self.used), None)

    @property
    def sentence(self) -> str:
        """One line with both figures; empty where there is no choice."""
        if self.used is None or self.other is None:
            return ""
        if self.problem:
            reason = self.problem
        else:
            reason = f"dev {self.figure} {self._figure_of(self.used)}; round {self.other} "
            reason += self._figure_of(self.other)
        other = f"--round {self.other} takes the other"
        return f"{self.run}: round {self.used} is used ({reason}); {other}"

    def _figure_of(self, which: RoundName) -> str:
        value = self.dev[which]
        return "has none after its warm-up" if value is None else f"{value:.1f}"


def best_round(run: Path | str, which: RoundName | None = None) -> RoundChoice:
    """Choose the round of a run that is better on dev, or take the one that is asked for.

    A folder that holds a model is taken as it is. Where rounds are equal or cannot be compared,
    the last trained one is taken. Warm-up epochs never count as best.
    """
    run = Path(run)
    whole = RunDirectory(run)
    if whole.model.is_file():
        _require_asked(whole, which)
        return RoundChoice(run=run, path=run, used=None, best=None, dev={})
    names: tuple[RoundName, ...] = ("one", "two")
    folders = {name: RunDirectory(run / ROUNDS[name]) for name in names}
    rounds = {name: each for name, each in folders.items() if each.model.is_file()}
    if which is not None and rounds and which not in rounds:
        raise UserError(
            f"{run} has no trained round {which}; leave --round out to take round "
            f"{next(iter(rounds))}."
        )
    last = whole.last_round().path
    if len(rounds) < 2:
        (used,) = rounds
        return RoundChoice(run=run, path=last, used=used, best=None, dev={used: None})
    settings = {name: load_recipe(each.config).settings_of(name) for name, each in rounds.items()}
    problem = _not_comparable(settings, rounds)
    dev = {name: _best_on_dev(each, settings[name]) for name, each in rounds.items()}
    if not problem and all(value is None for value in dev.values()):
        problem = "neither round has a validation on record"
    best: RoundName | None = None
    if not problem:
        one, two = (-math.inf if (value := dev[name]) is None else value for name in names)
        best = "one" if one > two else "two"
    used = which or best or "two"
    return RoundChoice(
        run=run,
        path=rounds[used].path,
        used=used,
        best=best,
        dev=dev,
        figure=settings["two"].select_by,
        problem=problem,
    )


def _require_asked(single: RunDirectory, which: RoundName | None) -> None:
    own = single.read_origin().get("round")
    if which is not None and own != which:
        raise UserError(
            f"{single.path} is a single model{f' of round {own}' if own else ''}, without a round "
            f"{which} to choose; leave --round out, or name the folder of the whole run."
        )


def _not_comparable(
    settings: Mapping[RoundName, RoundConfig], rounds: Mapping[RoundName, RunDirectory]
) -> str:
    """Say why figures of the rounds cannot be compared; empty where they can."""
    one, two = settings["one"], settings["two"]
    for name in ("select_by", "validation_texts"):
        if getattr(one, name) != getattr(two, name):
            return f"the rounds are validated differently ({name}), so their figures do not compare"
    if len({each.read_origin().get("dev") for each in rounds.values()}) > 1:
        return "the rounds are validated on different dev sets, so their figures do not compare"
    return ""


def _best_on_dev(run: RunDirectory, settings: RoundConfig) -> float | None:
    """Return the figure of the validation that chose the weights: as logged, or the trainer's.

    A log that was removed does not make a round worse.
    """
    names = _SELECTED[settings.select_by]
    logged = [
        line
        for line in read_json_lines(run.events)
        if line.get("event") == "validation"
        and line.get("best") is True
        and isinstance(line.get("epoch"), int)
        and all(isinstance(line.get(name), int | float) for name in names)
    ]
    if not logged:
        return _best_of_trainer(run)
    is_warm_up = settings.warming_up(logged[-1]["epoch"] - 1)
    if is_warm_up and settings.fall_back_after is None:  # else a round may end with it
        return None
    return float(sum(logged[-1][name] for name in names))


def _best_of_trainer(run: RunDirectory) -> float | None:
    import torch  # not needed by anything else here

    if not run.trainer.is_file():
        return None
    check_file(run.trainer)
    try:
        state = torch.load(run.trainer, map_location="cpu", weights_only=True, mmap=True)["state"]
        best = float(state["best"])
    except Exception:
        return None
    return best if math.isfinite(best) else None
