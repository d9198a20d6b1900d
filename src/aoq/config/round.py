"""Settings of a round of training: its loss, its batches, its optimizer, and when it ends."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Literal

from aoq.config.checks import require, require_counts
from aoq.config.loss import LossConfig
from aoq.field_types import settle_types

OptimizerName = Literal["adam", "adamw"]
Schedule = Literal["step", "cosine", "constant"]


@dataclass(frozen=True, kw_only=True)
class RoundConfig:
    """One round of training."""

    loss: LossConfig = field(default_factory=LossConfig)
    start_from: Literal["scratch", "round_one"] = "scratch"
    "Start from fresh weights, or in round two from the best of round one (table 3, Fine-tune)."
    epochs: int = 20
    "Passes over all positive pairs."
    warmup_epochs: int = 0
    """Number of first epochs that learn from all in-batch negatives (Eq. 1) instead of the loss;
    rise_epochs is about the learning rate."""
    fall_back_after: int | None = None
    """Epochs after the warm-up, none of which is above its best on dev, after which the round goes
    back to the end of the warm-up and goes on with Eq. 1; none, or no warm-up: never."""
    batch_size: int = 128
    "Positive pairs per step, over all processes: negatives come from the whole batch."
    batches: Literal["random", "grouped"] = "random"
    """random, or grouped: after the warm-up, pairs that are candidates of each other, by the mined
    lists, share a batch, so that its own negatives are hard."""
    group_size: int = 8
    "grouped: a pair and the candidates that join it; a batch holds as many groups as fit."
    remine_every: int | None = None
    """Epochs after the warm-up between two minings with the weights so far (their average, if it is
    kept), whose lists take the place of those before; none: the round keeps its lists."""
    remine_keep: float = 0.0
    "Share of each list that stays from the lists before; the rest are the hardest of the new ones."
    accumulate: int = 1
    "Parts into which a step is split, each with the negatives of its own pairs: saves memory."
    encode_at_once: int | None = None
    """Images and texts of a step that are encoded at once; none: all. Saves memory at the cost of
    encoding twice, and keeps the negatives of the whole batch (GradCache)."""
    optimizer: OptimizerName = "adam"
    "adam, or adamw: its weight decay is apart from the gradient."
    weight_decay: float = 0.0
    "Weight decay, of parameters with two dimensions or more: not of biases and norms."
    learning_rate: float = 2e-4
    "Learning rate that the schedule starts from."
    tower_learning_rate: float | None = None
    "Learning rate of the parameters of pretrained towers; none: the same."
    schedule: Schedule = "step"
    "step: divided every decay_after epochs; cosine: falls to 0 over the round; constant."
    rise_epochs: float = 0.0
    """Epochs, or a fraction of one, over which the learning rate rises from 0, step by step;
    warmup_epochs is about the loss."""
    decay_after: int = 10
    "step: epochs before the learning rate is divided."
    decay_factor: float = 10.0
    "step: divisor of the learning rate."
    ema: float | None = None
    """Decay of the moving average of the weights, such as 0.999, which is validated and kept
    instead of the weights; none: no average."""
    clip_norm: float = 2.0
    "Maximum norm of the whole gradient."
    augment: bool = True
    """Where photos are read as pixels: train on random crops, and on mirror images unless a caption
    speaks of left or right."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    "auto: bfloat16 for the encoders on a GPU that supports it, else float32; scores stay float32."
    diagonal_only: bool = False
    "Count other positives in the batch as negatives, as the published program does."
    select_by: Literal["rsum", "r1+r5"] = "rsum"
    "Validation figure that selects the best epoch."
    validation_texts: int | None = None
    "Validate on the first N dev captions only; none: on all."
    validate_every: int | None = None
    "Steps between two validations, in addition to the one after each epoch; none: no others."
    patience: int | None = None
    "Stop after this many validations in a row without improvement; none: train all epochs."
    checkpoint_every: int = 500
    "Steps between two saved states, in addition to the one after each epoch."
    log_every: int = 50
    "Steps that one line of the log covers."

    def __post_init__(self) -> None:
        settle_types(self)
        require_counts(self, "epochs", "decay_after", "accumulate", "checkpoint_every")
        require_counts(self, "validation_texts", "validate_every", "patience", "log_every")
        require_counts(self, "encode_at_once", "remine_every", "fall_back_after")
        require(
            0 <= self.remine_keep < 1,
            f"remine_keep is {self.remine_keep}; it has to lie in [0, 1).",
        )
        require(
            self.remine_every is None or self.needs_candidates,
            f"remine_every mines lists, and nothing of the loss {self.loss.name} is drawn from "
            "them; leave it out, or set batches to grouped or a loss with offline negatives.",
        )
        require(
            0 <= self.warmup_epochs < self.epochs,
            f"warmup_epochs is {self.warmup_epochs}; it has to be at least 0 and less"
            f" than epochs, {self.epochs}.",
        )
        for name in ("learning_rate", "tower_learning_rate", "clip_norm"):
            value = getattr(self, name)
            require(
                value is None or 0 < value < math.inf, f"{name} is {value}; it has to be positive."
            )
        require(
            0 <= self.weight_decay < math.inf,
            f"weight_decay is {self.weight_decay}; it has to be finite and at least 0.",
        )
        require(
            0 <= self.rise_epochs < self.epochs,
            f"rise_epochs is {self.rise_epochs}; it has to be at least 0 and less than epochs,"
            f" {self.epochs}.",
        )
        require(
            self.ema is None or 0 < self.ema < 1,
            f"ema is {self.ema}; it has to lie between 0 and 1, such as 0.999.",
        )
        require(
            1 <= self.decay_factor < math.inf,
            f"decay_factor is {self.decay_factor}; the learning rate is divided by it, so it has to"
            " be at least 1.",
        )
        require(
            self.batch_size >= 2 * self.accumulate,
            f"batch_size is {self.batch_size}; in-batch negatives need at least 2 pairs"
            f"{f' in each of {self.accumulate} parts' if self.accumulate > 1 else ''}.",
        )
        part = self.batch_size // self.accumulate
        require(
            self.batches == "random" or 2 <= self.group_size <= part,
            f"group_size is {self.group_size}; a group has at least 2 pairs, and at most those of "
            f"a batch{' or of a part of one' if self.accumulate > 1 else ''}, {part}.",
        )
        require(
            self.batches == "random" or self.loss.weights != "shuffled",
            "loss.weights is shuffled, which takes S_off from the pair before, and in a grouped "
            "batch that is a candidate, not a random pair; set batches to random.",
        )

    @property
    def drawn_from_lists(self) -> str:
        """What of this round is drawn from candidate lists, for messages; empty: nothing."""
        if self.loss.needs_candidates:
            return f"the offline negatives of the loss {self.loss.name}"
        return "the candidates in grouped batches" if self.batches == "grouped" else ""

    @property
    def needs_candidates(self) -> bool:
        return bool(self.drawn_from_lists)

    def groups_at(self, epoch: int) -> bool:
        """Return whether an epoch, counted from 0, has grouped batches."""
        return self.batches == "grouped" and not self.warming_up(epoch)

    def remines_at(self, epoch: int) -> bool:
        """Return whether lists are mined anew before an epoch, counted from 0."""
        after = epoch - self.warmup_epochs
        return self.remine_every is not None and after > 0 and after % self.remine_every == 0

    def warming_up(self, epoch: int) -> bool:
        """Return whether an epoch, counted from 0, is part of the warm-up."""
        return epoch < self.warmup_epochs

    def note_on(self, epoch: int, *, is_best: bool) -> str:
        """Return a note on an epoch, counted from 0. Warm-up epochs never count as best."""
        return "warm-up" if self.warming_up(epoch) else "best" if is_best else ""

    def loss_at(self, epoch: int) -> LossConfig:
        """Return the loss of an epoch, counted from 0; the warm-up is equal for all losses."""
        if not self.warming_up(epoch):
            return self.loss
        return replace(self.loss, name="standard", squared=False)

    def fallen_back(self) -> RoundConfig:
        """Return the settings of a round that goes on with Eq. 1, as it began."""
        return replace(self, loss=self.loss_at(0), batches="random", remine_every=None)

    def learning_rate_at(self, step: int, *, n_steps: int, initial: float | None = None) -> float:
        """Return the learning rate of a step of the round, counted from 0; an epoch has `n_steps`.

        `initial` is the rate that some parameters start from; none: `learning_rate`. The rise
        begins above 0 and the cosine ends above it, so that no step is lost.

        >>> settings = RoundConfig(epochs=2, learning_rate=1.0, schedule="cosine", rise_epochs=0.5)
        >>> [round(settings.learning_rate_at(step, n_steps=4), 2) for step in range(8)]
        [0.5, 1.0, 1.0, 0.93, 0.75, 0.5, 0.25, 0.07]
        """
        highest = self.learning_rate if initial is None else initial
        rise = self.rise_epochs * n_steps
        if step + 1 < rise:
            highest *= (step + 1) / rise
        if self.schedule == "step":
            return highest / self.decay_factor ** (step // n_steps // self.decay_after)
        if self.schedule == "cosine":
            done = max(0.0, step - rise) / (self.epochs * n_steps - rise)
            return highest * (1 + math.cos(math.pi * done)) / 2
        return highest
