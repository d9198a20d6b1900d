"""A recipe: all groups of settings together, which is a whole experiment."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from aoq.config.checks import require, require_counts
from aoq.config.loss import LossConfig, LossName
from aoq.config.mining import MiningConfig
from aoq.config.model import ModelConfig
from aoq.config.round import RoundConfig
from aoq.config.sampling import SamplingConfig
from aoq.field_types import settle_types

RoundName = Literal["one", "two"]
Behaviour = Literal["paper", "official"]


MIN_WORD_COUNT = 4  # the paper's


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A whole experiment: round one, mining, round two."""

    data: str = ""
    "Folder of the data set: one that `aoq data build` wrote, or a SCAN precomp folder."
    candidates: str = ""
    "Candidate lists for round two, made by a teacher; none: those of round one's own model."
    rounds: Literal["one", "both"] = "both"
    "Last round; `one` ends with the online model: the baseline."
    behaviour: Behaviour = "paper"
    "`official` starts from the settings in which the authors' program differs from the paper."
    seed: int = 0
    "Seed from which weights, batch order, draws and dropout follow."
    min_word_count: int | None = None
    "Words with fewer occurrences in train and dev are unknown; none: 4, or 1 in a small data set."
    model: ModelConfig = field(default_factory=ModelConfig)
    round_one: RoundConfig = field(default_factory=RoundConfig)
    mining: MiningConfig = field(default_factory=MiningConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    round_two: RoundConfig = field(
        default_factory=lambda: RoundConfig(loss=LossConfig(name="adap_off_quin"))
    )

    def __post_init__(self) -> None:
        settle_types(self)
        require(self.seed >= 0, f"seed is {self.seed}; it cannot be negative.")
        require_counts(self, "min_word_count")
        require(
            self.round_one.start_from == "scratch",
            "round_one.start_from is round_one, which starts from scratch; set it in round_two.",
        )
        require(
            self.model.name != "cca" or self.rounds == "one",
            "model.name is cca, which is solved without steps and has no use for mined negatives; "
            "set rounds to one.",
        )
        require(
            not self.round_one.needs_candidates,
            f"round_one has {self.round_one.drawn_from_lists}, which come from mined lists; round"
            " one comes before them: set round_two instead.",
        )
        require(
            not self.mines_any or self.mining.estimate_matches or not self.reads_matches,
            "sampling.avoid_matches and loss.weigh_matches of round two read probabilities that "
            "mining does not estimate; set mining.estimate_matches too.",
        )
        for name in ("depth_texts", "depth_images") if self.mines_any else ():
            drawn, kept = getattr(self.sampling, name), getattr(self.mining, name)
            require(
                drawn <= kept,
                f"sampling.{name} is {drawn} and mining.{name} {kept}; negatives are drawn from"
                " the mined lists: set both.",
            )

    def resolved(self) -> Recipe:
        """Return this recipe with absolute paths, valid from any folder."""

        def absolute(path: str) -> str:
            return str(Path(path).absolute()) if path else path

        return replace(
            self,
            data=absolute(self.data),
            candidates=absolute(self.candidates),
            model=self.model.resolved(),
        )

    @property
    def last_round(self) -> RoundName:
        return "one" if self.rounds == "one" else "two"

    def settings_of(self, which: RoundName) -> RoundConfig:
        return self.round_one if which == "one" else self.round_two

    @property
    def files(self) -> list[Path]:
        """The files that this recipe reads."""
        return [Path(name) for name in (self.data, self.candidates) if name]

    @property
    def needs_round_one(self) -> bool:
        """Whether this recipe mines with round one's model, starts from it or ends with it."""
        is_start = self.round_two.start_from == "round_one"
        return self.rounds == "one" or is_start or self.mines

    @property
    def mines(self) -> bool:
        """Whether round two draws from lists of round one's own model."""
        return self.needs_lists and not self.candidates

    @property
    def mines_any(self) -> bool:
        """Whether any lists that round two draws from are mined by this recipe."""
        remines = self.round_two.remine_every is not None
        return self.needs_lists and (remines or not self.candidates)

    @property
    def reads_matches(self) -> bool:
        """Whether round two reads the probabilities that candidates are matches."""
        loss = self.round_two.loss
        return loss.reads_matches or (self.sampling.avoid_matches and loss.needs_candidates)

    @property
    def needs_lists(self) -> bool:
        """Whether this recipe draws from candidate lists."""
        return self.rounds == "both" and self.round_two.needs_candidates

    def with_loss(self, name: LossName) -> Recipe:
        """Return this recipe with another loss in round two."""
        loss = replace(self.round_two.loss, name=name)
        return replace(self, round_two=replace(self.round_two, loss=loss))


def as_published(recipe: Recipe) -> Recipe:
    """Apply the differences of the authors' programs that change results, but none of their bugs.

    There are two: VSRN's chooses the best model by four recalls and also within epochs, BFAN's by
    all six and after epochs, as SCAN's does.
    """

    def published_round(settings: RoundConfig) -> RoundConfig:
        settings = replace(
            settings,
            loss=replace(settings.loss, redraw_online=False),
            diagonal_only=True,
            validation_texts=5000,
        )
        if recipe.model.name != "vsrn":
            return settings
        return replace(settings, select_by="r1+r5", validate_every=1000)

    return replace(
        recipe,
        behaviour="official",
        round_one=published_round(recipe.round_one),
        round_two=published_round(recipe.round_two),
        mining=replace(recipe.mining, depth_texts=2000, depth_images=400),
        sampling=replace(recipe.sampling, ranks="coupled", redraw=False),
    )
