"""Everything that can be set, as one tree of frozen dataclasses.

Recipes (TOML) and command-line flags are two spellings of this tree; the defaults are the
paper's. A run stores the resolved tree, so that it can be repeated from its own folder.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from aoq.errors import UserError
from aoq.field_types import settle_types

LossName = Literal[
    "standard", "online", "off_tri", "off_quin", "adap_off_quin", "only_offline", "online_quin"
]
RoundName = Literal["one", "two"]
Behaviour = Literal["paper", "official"]
ModelName = Literal["vsrn", "scan", "bfan", "vse", "own"]
Direction = Literal["t2i", "i2t"]
RawNorm = Literal[
    "clipped_l2norm", "l2norm", "clipped_l1norm", "l1norm", "softmax", "clipped", "no_norm"
]
Aggregate = Literal["logsumexp", "mean", "max", "sum"]
Focal = Literal["equal", "prob"]
Precision = Literal["float32", "float16", "bfloat16"]


def parse_memory(text: str) -> int:
    """Bytes of a size as people write it.

    >>> parse_memory("2GiB"), parse_memory("1.5 MB")
    (2147483648, 1500000)
    """
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([KMGT]i?)B", text.strip())
    if found is None:
        raise UserError(f"a memory of {text!r} cannot be read; write it as 512MiB or 2GiB.")
    number, unit = found.groups()
    base = 1024 if unit.endswith("i") else 1000
    return int(float(number) * base ** (1 + "KMGT".index(unit[0])))


def _require(condition: bool, sentence: str) -> None:
    if not condition:
        raise UserError(sentence)


def _require_counts(settings: object, *names: str) -> None:
    """Refuse what is less than 1; what is None is not set."""
    for name in names:
        value = getattr(settings, name)
        _require(value is None or value >= 1, f"{name} is {value}; it has to be at least 1.")


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Which model, and how wide it is."""

    name: ModelName = "vsrn"
    "vsrn, scan, bfan, vse (mean-pooled regions: the cheap one), or own: one that Python brings."
    joint_width: int = 2048
    "Width of the joint space (D)."
    word_width: int = 300
    "Width of the word embedding."
    variant: Literal["coco", "f30k"] = "coco"
    "VSRN as published for COCO, or for Flickr30K (batch norm at the end, no first normalisation)."
    caption_weight: float = 1.0
    "Weight of VSRN's caption loss; 0 leaves the caption model out."
    caption_width: int = 512
    "Hidden width of the caption model."
    caption_dropout: float = 0.2
    "Dropout of the caption model."
    caption_max_words: int = 60
    "Longer captions are cut for the caption loss."
    direction: Direction = "t2i"
    "SCAN: words attend to regions (t2i), or regions to words (i2t)."
    raw_norm: RawNorm = "clipped_l2norm"
    "SCAN: how similarities are normalised before the softmax."
    temperature: float | None = None
    "SCAN, BFAN: of the softmax; none: as published (SCAN 9 for t2i and 4 for i2t, BFAN 20)."
    aggregate: Aggregate = "logsumexp"
    "SCAN: how the cosines of all words or regions become one score."
    aggregate_temperature: float | None = None
    "SCAN: of logsumexp; none: 6 for t2i, 5 for i2t (which was published with 20 on COCO: set it)."
    bidirectional: bool = True
    "SCAN: read the words both ways."
    weight_norm: bool = False
    "SCAN: weight-normed projection of the regions."
    focal: Focal = "prob"
    "BFAN: which weights are dropped."

    def __post_init__(self) -> None:
        settle_types(self)
        _require_counts(self, "joint_width", "word_width", "caption_width")
        _require(
            self.caption_max_words >= 2,
            f"model.caption_max_words is {self.caption_max_words}; <start> and <end> need 2.",
        )
        _require(
            0 <= self.caption_dropout < 1,
            f"model.caption_dropout is {self.caption_dropout}; it has to lie in [0, 1).",
        )
        for name in ("temperature", "aggregate_temperature"):
            value = getattr(self, name)
            _require(
                value is None or 0 < value < math.inf,
                f"model.{name} is {value}; it has to be a positive number.",
            )
        _require(
            0 <= self.caption_weight < math.inf,
            f"model.caption_weight is {self.caption_weight}; it has to be a number from 0 on.",
        )


@dataclass(frozen=True, kw_only=True)
class LossConfig:
    """Which equation of the paper, and its constants."""

    name: LossName = "online"
    "Eq. 1-5: standard, online, off_tri, off_quin, adap_off_quin; and table 3's variants of Eq. 4."
    margin_online: float = 0.2
    "Margin of the online terms (gamma 1)."
    margin_offline: float = 0.0
    "Margin of the offline terms (gamma 2)."
    alpha: float = 0.3
    "Smaller: the adaptive weight reacts more strongly to S_off - S_on."
    beta: float = 1.5
    "The adaptive weight where S_off = S_on."
    adapt_to: Literal["offline", "positive"] = "offline"
    "What the adaptive weight measures S_on by: S_off, or S(i, t) (table 3, w/o OfflineAdap)."
    clamp_weights: bool = False
    "Keep adaptive weights from falling below zero."
    squared: bool = False
    "Square every hinge."

    def __post_init__(self) -> None:
        settle_types(self)
        _require(self.alpha > 0, f"loss.alpha is {self.alpha}; it has to be positive.")
        for name in ("margin_online", "margin_offline"):
            value = getattr(self, name)
            _require(
                0 <= value < math.inf, f"loss.{name} is {value}; it has to be a number from 0 on."
            )
        for name in ("alpha", "beta"):
            value = getattr(self, name)
            _require(math.isfinite(value), f"loss.{name} is {value}; it has to be a number.")

    @property
    def needs_candidates(self) -> bool:
        return self.name not in ("standard", "online")

    @property
    def needs_derived_pairs(self) -> bool:
        return self.name in ("off_quin", "adap_off_quin", "only_offline")


@dataclass(frozen=True, kw_only=True)
class RoundConfig:
    """One round of training."""

    loss: LossConfig = field(default_factory=LossConfig)
    start_from: Literal["scratch", "round_one"] = "scratch"
    "Fresh weights, or in round two the best ones of round one (table 3, Fine-tune)."
    epochs: int = 20
    "Passes over all positive pairs."
    warmup_epochs: int = 0
    "The first so many epochs learn from all in-batch negatives (Eq. 1) before the loss takes over."
    batch_size: int = 128
    "Positive pairs a step, over all processes: negatives come from the whole batch."
    accumulate: int = 1
    "Parts that a step is computed in, each with the negatives of its own pairs: saves memory."
    learning_rate: float = 2e-4
    "Adam's learning rate at the start."
    decay_after: int = 10
    "Epochs before the learning rate is divided."
    decay_factor: float = 10.0
    "What the learning rate is divided by."
    clip_norm: float = 2.0
    "Largest norm of the whole gradient."
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    "auto: bfloat16 for the encoders on a GPU that has it, float32 elsewhere; scores stay float32."
    diagonal_only: bool = False
    "Count other positives in the batch as negatives, as the published program does."
    select_by: Literal["rsum", "r1+r5"] = "rsum"
    "The validation figure that chooses the best epoch."
    validation_texts: int | None = None
    "Validate on the first so many dev captions only; none: on all."
    validate_every: int | None = None
    "Steps between two validations, besides the one after each epoch; none: that one only."
    patience: int | None = None
    "Stop after so many validations in a row without a better one; none: train all epochs."
    checkpoint_every: int = 500
    "Steps between two saved states, besides the one after each epoch."
    log_every: int = 50
    "Steps that one line of the log sums up."

    def __post_init__(self) -> None:
        settle_types(self)
        _require_counts(self, "epochs", "decay_after", "accumulate", "checkpoint_every")
        _require_counts(self, "validation_texts", "validate_every", "patience", "log_every")
        _require(
            0 <= self.warmup_epochs < self.epochs,
            f"warmup_epochs is {self.warmup_epochs}; it has to be at least 0 and less"
            f" than epochs, {self.epochs}.",
        )
        for name in ("learning_rate", "clip_norm"):
            value = getattr(self, name)
            _require(0 < value < math.inf, f"{name} is {value}; it has to be positive.")
        _require(
            1 <= self.decay_factor < math.inf,
            f"decay_factor is {self.decay_factor}; the learning rate is divided by it, so it has to"
            " be at least 1.",
        )
        _require(
            self.batch_size >= 2 * self.accumulate,
            f"batch_size is {self.batch_size}; in-batch negatives need at least 2 pairs"
            f"{f' in each of {self.accumulate} parts' if self.accumulate > 1 else ''}.",
        )

    def warming_up(self, epoch: int) -> bool:
        """Whether an epoch, counted from 0, is one of the warm-up."""
        return epoch < self.warmup_epochs

    def note_on(self, epoch: int, *, is_best: bool) -> str:
        """What to say of an epoch, counted from 0; weights of the warm-up are nobody's best."""
        return "warm-up" if self.warming_up(epoch) else "best" if is_best else ""

    def loss_at(self, epoch: int) -> LossConfig:
        """The loss of an epoch, counted from 0; a warm-up is the same for all losses."""
        standard = replace(self.loss, name="standard", squared=False)
        return standard if self.warming_up(epoch) else self.loss

    def learning_rate_at(self, epoch: int) -> float:
        """Step decay: the learning rate of an epoch, counted from 0."""
        return self.learning_rate / self.decay_factor ** (epoch // self.decay_after)


@dataclass(frozen=True, kw_only=True)
class MiningConfig:
    """How much of the ranking of everything against everything is kept."""

    depth_texts: int = 300
    "Hardest texts kept for each image."
    depth_images: int = 60
    "Hardest images kept for each text."
    memory: str | None = None
    "Budget for lists, blocks of scores and what they are computed from, such as 4GiB; none: free."
    precision: Precision = "float32"
    "Of the encodings when they are scored: float32 is exact; the report tells what others miss."
    skip_first: int = 0
    "Leave the first so many candidates of every list out: the likeliest false negatives."
    score_share: float | None = None
    "Drop candidates that score above this share of the anchor's best positive."
    equal_captions: bool = False
    "Drop captions with the words of one of the image's own, and images with such a caption."
    near_captions: float | None = None
    "Drop captions that share so much of their words with one of the image's own: 0.8, say."

    def __post_init__(self) -> None:
        settle_types(self)
        _require_counts(self, "depth_texts", "depth_images")
        if self.memory is not None:
            parse_memory(self.memory)
        _require(self.skip_first >= 0, f"skip_first is {self.skip_first}; it cannot be negative.")
        for name in ("score_share", "near_captions"):
            value = getattr(self, name)
            _require(
                value is None or 0 < value <= 1, f"{name} is {value}; it has to lie in (0, 1]."
            )


@dataclass(frozen=True, kw_only=True)
class SamplingConfig:
    """How offline hard negatives are drawn from the candidate lists."""

    depth_texts: int = 300
    "Texts are drawn from the first so many of an image's list (h)."
    depth_images: int = 60
    "Images are drawn from the first so many of a text's list."
    draws: Literal["uniform", "normal"] = "uniform"
    "Over the whole list alike, or normal around its middle: sigma a sixth of it, cut to the list."
    ranks: Literal["independent", "coupled"] = "independent"
    "Draw text and image separately, or one rank n for the text and n // 5 for the image."
    redraw: bool = True
    "Draw again where the drawn image and text belong together."
    tries: int = 10
    "Second draws before the exhaustive search for a pair that does not belong together."

    def __post_init__(self) -> None:
        settle_types(self)
        _require_counts(self, "depth_texts", "depth_images", "tries")


MIN_WORD_COUNT = 4  # the paper's


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A whole experiment: round one, mining, round two."""

    data: str = ""
    "Folder of the data set: one that `aoq data build` wrote, or a SCAN precomp folder."
    candidates: str = ""
    "Lists that round two draws from, a teacher's; none: those of round one's own model."
    rounds: Literal["one", "both"] = "both"
    "`one` ends with the online model: the baseline."
    behaviour: Behaviour = "paper"
    "`official` starts from what the authors' program does where it departs from the paper."
    seed: int = 0
    "Weights, batch order, draws and dropout all follow from it."
    min_word_count: int | None = None
    "Words seen less often in train and dev count as unknown; none: 4, or 1 in a small data set."
    model: ModelConfig = field(default_factory=ModelConfig)
    round_one: RoundConfig = field(default_factory=RoundConfig)
    mining: MiningConfig = field(default_factory=MiningConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    round_two: RoundConfig = field(
        default_factory=lambda: RoundConfig(loss=LossConfig(name="adap_off_quin"))
    )

    def __post_init__(self) -> None:
        settle_types(self)
        _require(self.seed >= 0, f"seed is {self.seed}; it cannot be negative.")
        _require_counts(self, "min_word_count")
        _require(
            self.round_one.start_from == "scratch",
            "round_one.start_from is round_one, which starts from scratch; set it in round_two.",
        )
        loss = self.round_one.loss
        _require(
            not loss.needs_candidates,
            f"round_one.loss.name is {loss.name}, which draws from mined lists; round one comes"
            " before them: set it in round_two.",
        )
        for name in ("depth_texts", "depth_images") if self.mines else ():
            drawn, kept = getattr(self.sampling, name), getattr(self.mining, name)
            _require(
                drawn <= kept,
                f"sampling.{name} is {drawn} and mining.{name} {kept}; negatives are drawn from"
                " what is mined: set both.",
            )

    def resolved(self) -> Recipe:
        """This recipe with its files named so that they are found from any folder."""

        def absolute(path: str) -> str:
            return str(Path(path).absolute()) if path else path

        return replace(self, data=absolute(self.data), candidates=absolute(self.candidates))

    @property
    def last_round(self) -> RoundName:
        return "one" if self.rounds == "one" else "two"

    def settings_of(self, which: RoundName) -> RoundConfig:
        return self.round_one if which == "one" else self.round_two

    @property
    def files(self) -> list[Path]:
        """What it reads."""
        return [Path(name) for name in (self.data, self.candidates) if name]

    @property
    def needs_round_one(self) -> bool:
        """Whether it mines with round one's model, starts from it or ends with it."""
        is_start = self.round_two.start_from == "round_one"
        return self.rounds == "one" or is_start or self.mines

    @property
    def mines(self) -> bool:
        """Whether round two draws from lists of round one's own model."""
        return self.needs_lists and not self.candidates

    @property
    def needs_lists(self) -> bool:
        """Whether it draws offline negatives."""
        return self.rounds == "both" and self.round_two.loss.needs_candidates

    def with_loss(self, name: LossName) -> Recipe:
        """The same recipe with another loss in round two."""
        loss = replace(self.round_two.loss, name=name)
        return replace(self, round_two=replace(self.round_two, loss=loss))


def as_published(recipe: Recipe) -> Recipe:
    """The departures of the authors' program that change results, and none of its defects."""

    def published_round(settings: RoundConfig) -> RoundConfig:
        return replace(
            settings,
            diagonal_only=True,
            select_by="r1+r5",
            validation_texts=5000,
            validate_every=1000,
        )

    return replace(
        recipe,
        behaviour="official",
        round_one=published_round(recipe.round_one),
        round_two=published_round(recipe.round_two),
        mining=replace(recipe.mining, depth_texts=2000, depth_images=400),
        sampling=replace(recipe.sampling, ranks="coupled", redraw=False),
    )
