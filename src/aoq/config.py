"""All settings, as one tree of frozen dataclasses.

Recipes (TOML) and command-line flags both set fields of this tree; the defaults are the paper's.
A run stores the resolved tree, so that it can be repeated from its own folder.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from aoq.errors import UserError
from aoq.field_types import settle_types

LossName = Literal[
    "standard",
    "online",
    "off_tri",
    "off_quin",
    "adap_off_quin",
    "only_offline",
    "online_quin",
    "infonce",
    "softmax_offline",
    "siglip",
]
RoundName = Literal["one", "two"]
Weights = Literal["adaptive", "constant", "detached", "shuffled"]
Behaviour = Literal["paper", "official"]
ModelName = Literal["vsrn", "scan", "bfan", "vse", "bow", "cca", "towers", "own"]
Learning = Literal["heads", "top", "lora", "full"]
Pooling = Literal["own", "cls", "mean", "generalised"]
HeadKind = Literal["none", "linear", "residual"]
TowerPrecision = Literal["auto", "float32", "bfloat16"]
Direction = Literal["t2i", "i2t"]
RawNorm = Literal[
    "clipped_l2norm", "l2norm", "clipped_l1norm", "l1norm", "softmax", "clipped", "no_norm"
]
Aggregate = Literal["logsumexp", "mean", "max", "sum"]
Focal = Literal["equal", "prob"]
Precision = Literal["float32", "float16", "bfloat16"]
FastProduct = Literal["bfloat16", "int8"]
Product = Literal["auto", "float32", "bfloat16", "int8"]
OptimizerName = Literal["adam", "adamw"]
WordWeights = Literal["tfidf", "counts"]
Schedule = Literal["step", "cosine", "constant"]


def parse_memory(text: str) -> int:
    """Parse a memory size such as "2GiB" into bytes.

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
    """Reject values below 1; None means not set."""
    for name in names:
        value = getattr(settings, name)
        _require(value is None or value >= 1, f"{name} is {value}; it has to be at least 1.")


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The model and its widths."""

    name: ModelName = "vsrn"
    """vsrn, scan, bfan, vse (mean-pooled regions: the cheap one), bow (and bags of words), cca (the
    same in closed form), towers (pretrained encoders), or own: a model built in Python."""
    joint_width: int = 2048
    "Width of the joint space (D)."
    word_width: int = 300
    "Width of the word embedding."
    variant: Literal["coco", "f30k"] = "coco"
    "VSRN as published for COCO, or for Flickr30K (batch norm at the end, no first normalisation)."
    caption_weight: float = 1.0
    "Weight of VSRN's caption loss; 0 disables the caption model."
    caption_width: int = 512
    "Hidden width of the caption model."
    caption_dropout: float = 0.2
    "Dropout of the caption model."
    caption_max_words: int = 60
    "Captions are cut to this many words for the caption loss."
    direction: Direction = "t2i"
    "SCAN: words attend to regions (t2i), or regions to words (i2t)."
    raw_norm: RawNorm = "clipped_l2norm"
    "SCAN: how similarities are normalised before the softmax."
    temperature: float | None = None
    "SCAN, BFAN: softmax temperature; none: as published (SCAN 9 for t2i and 4 for i2t, BFAN 20)."
    aggregate: Aggregate = "logsumexp"
    "SCAN: how the cosines of all words or regions are combined into one score."
    aggregate_temperature: float | None = None
    "SCAN: factor of logsumexp; none: 6 for t2i, 5 for i2t (published with 20 on COCO: set it)."
    bidirectional: bool = True
    "SCAN: read the words in both directions."
    weight_norm: bool = False
    "SCAN: weight-normed projection of the regions."
    focal: Focal = "prob"
    "BFAN: which attention weights are dropped."
    standardise: bool = False
    """VSRN, SCAN, BFAN, VSE: features of regions with zero mean and unit variance on train; bow and
    cca always do."""
    feature_dropout: float = 0.0
    "VSRN, SCAN, BFAN, VSE, bow: dropout of the features of regions."
    word_dropout: float = 0.0
    "VSRN, SCAN, BFAN, VSE, bow: dropout of the vectors of words."
    drop_regions: float = 0.0
    "VSRN, SCAN, BFAN, VSE: share of whole regions that a step of training leaves out."
    drop_words: float = 0.0
    "VSRN, SCAN, BFAN, VSE, bow: share of whole words that a step of training leaves out."
    word_weights: WordWeights = "tfidf"
    "bow, cca: weight of a word in a text: by how rare it is, or by its count alone."
    ridge: float = 0.1
    "cca: share of the mean variance that is added to each, in the first epoch."
    ridge_factor: float = 2.0
    "cca: each epoch has the ridge of the last one times this; the best on dev is kept."
    correlation_power: float = 1.0
    "cca: directions count by this power of their correlation."
    words: str = "gru"
    """VSRN, SCAN, BFAN, VSE: what reads the words: gru, or a frozen text model of transformers, by
    its name on the hub or its folder."""
    image: str = ""
    "towers: image tower: a vision model or dual encoder of transformers, its hub name or folder."
    text: str = ""
    "towers: text tower; none: that of `image`, a dual encoder."
    learn: Learning = "heads"
    """towers: what learns: heads (the towers are frozen), top (and the last blocks), lora (and
    low-rank adapters of the last blocks), full (everything)."""
    image_blocks: int = 2
    """towers, top and lora: last blocks of the image tower that learn; those before are frozen.
    0, also with full: the whole tower is, and its vectors are computed once."""
    text_blocks: int = 2
    "towers: the same of the text tower."
    lora_rank: int = 8
    "towers, lora: rank of the adapters."
    checkpoint_blocks: bool = False
    """towers: blocks that learn keep their inputs only, and compute the rest again for the backward
    pass: less memory, a third more time, the same gradients."""
    image_pooling: Pooling = "own"
    "towers: own (the tower's pooler and projection), cls, mean, generalised (as VSE-infinity)."
    text_pooling: Pooling = "own"
    "towers: the same for texts."
    head: HeadKind = "residual"
    "towers, bow: none (for a dual encoder as it is), linear, or residual (linear and two layers)."
    head_width: int = 1024
    "towers, bow: hidden width of a residual head."
    head_dropout: float = 0.3
    "towers, bow: dropout of a residual head."
    prompt: str = "{}"
    "towers: what a text is put into before it is read, such as 'a photo of {}'."
    image_precision: TowerPrecision = "auto"
    """towers: precision of the frozen image tower: float32, bfloat16 (faster where it is native),
    or auto: that of the data set's own vectors if this tower made them, else float32."""

    def __post_init__(self) -> None:
        settle_types(self)
        _require_counts(self, "joint_width", "word_width", "caption_width", "lora_rank")
        _require_counts(self, "head_width")
        for name in ("image_blocks", "text_blocks"):
            value = getattr(self, name)
            _require(value >= 0, f"model.{name} is {value}; it has to be at least 0.")
        _require(
            self.learn == "heads" or self.image_blocks + self.text_blocks > 0,
            f"model.learn is {self.learn}, but no block of either tower learns: image_blocks and "
            "text_blocks are 0; let one of them learn, or set model.learn to heads.",
        )
        for name in SHARES:
            value = getattr(self, name)
            _require(0 <= value < 1, f"model.{name} is {value}; it has to lie in [0, 1).")
        _require(
            self.prompt.count("{}") == 1,
            f"model.prompt is {self.prompt!r}; expected a text with {{}} where each text goes.",
        )
        _require(
            self.caption_max_words >= 2,
            f"model.caption_max_words is {self.caption_max_words}; <start> and <end> need 2.",
        )
        for name in ("temperature", "aggregate_temperature", "ridge", "ridge_factor"):
            value = getattr(self, name)
            _require(
                value is None or 0 < value < math.inf,
                f"model.{name} is {value}; it has to be a positive number.",
            )
        _require(
            0 <= self.caption_weight < math.inf,
            f"model.caption_weight is {self.caption_weight}; it has to be finite and at least 0.",
        )
        _require(
            math.isfinite(self.correlation_power),
            f"model.correlation_power is {self.correlation_power}; it has to be a number.",
        )
        _require(
            self.name not in BAGS or self.words == "gru",
            f"model.words is {self.words!r}, and {self.name} counts words of a vocabulary; leave "
            "it out.",
        )
        _require(
            self.name != "bow" or self.head != "none",
            "model.head is none, and bow learns with its heads; set it to linear or residual.",
        )

    @property
    def text_model(self) -> str:
        """The pretrained text model that reads the texts; empty: words of a vocabulary are read."""
        if self.name == "towers":
            return self.text or self.image
        return "" if self.words == "gru" else self.words

    @property
    def fits_inputs(self) -> bool:
        """Whether the model looks at some of the training data before it learns."""
        return self.standardise or self.name in BAGS or self.name == "towers"

    def resolved(self) -> ModelConfig:
        """Return these settings with absolute paths of towers that are folders."""

        def absolute(name: str) -> str:
            return str(Path(name).absolute()) if name and Path(name).is_dir() else name

        return self.at(absolute)

    def at(self, place_of: Callable[[str], str]) -> ModelConfig:
        """Return these settings with the towers where `place_of` says they are."""
        return replace(
            self,
            image=place_of(self.image),
            text=place_of(self.text),
            words=place_of(self.words),
        )


BAGS = frozenset({"bow", "cca"})
SHARES = (
    *("feature_dropout", "word_dropout", "drop_regions", "drop_words"),
    *("head_dropout", "caption_dropout"),
)
TOWER_NAMES = frozenset({"words", "image", "text"})
TOWER_SETTINGS = TOWER_NAMES | {
    *("learn", "image_blocks", "text_blocks", "lora_rank", "checkpoint_blocks"),
    *("image_pooling", "text_pooling"),
    *("head", "head_width", "head_dropout", "prompt", "image_precision"),
}
# Settings that runs of earlier versions know nothing of.
LATER_SETTINGS = TOWER_SETTINGS | {
    *("standardise", "feature_dropout", "word_dropout", "drop_regions", "drop_words"),
    *("word_weights", "ridge", "ridge_factor", "correlation_power"),
}


LEARNED_TEMPERATURES = (0.01, 1.0)  # CLIP's bounds: the scale is 1 to 100


@dataclass(frozen=True, kw_only=True)
class LossConfig:
    """The equation of the paper, and its constants."""

    name: LossName = "online"
    """Eq. 1-5: standard, online, off_tri, off_quin, adap_off_quin; table 3's variants of Eq. 4; and
    infonce, softmax_offline (infonce with offline negatives), siglip (sigmoids)."""
    margin_online: float = 0.2
    "Margin of the online terms (gamma 1)."
    margin_offline: float = 0.0
    "Margin of the offline terms (gamma 2)."
    alpha: float = 0.3
    "Smaller values make the adaptive weight react more strongly to S_off - S_on."
    beta: float = 1.5
    "The adaptive weight at S_off = S_on."
    adapt_to: Literal["offline", "positive"] = "offline"
    "Reference for S_on in the adaptive weight: S_off, or S(i, t) (table 3, w/o OfflineAdap)."
    weights: Weights = "adaptive"
    """Controls of Eq. 5: adaptive weights, or constant (all their mean), detached (without
    gradient), shuffled (by S_off of another anchor)."""
    clamp_weights: bool = False
    "Keep adaptive weights from falling below zero."
    redraw_online: bool = True
    """online_quin: take the next hardest image or text where the hardest belong together; without,
    their derived pairs are left out."""
    selective: float | None = None
    """Learn from the mean of all negatives where the hardest scores within this of the positive
    (SelHN, published with 0.01); none: always from the hardest."""
    semantic_margin: float = 0.0
    "Taken off the margin of a negative of the batch, times its likeness to the positive (0 to 1)."
    squared: bool = False
    "Square every hinge."
    temperature: float | None = None
    "Softmax and sigmoid: what scores are divided by; none: 0.07, or for siglip 0.1."
    bias: float = -10.0
    "siglip: what is added to the divided scores; learned along with the temperature."
    learn_temperature: bool | None = None
    "Learn the temperature, and siglip's bias, from these values on; none: for siglip only."
    offline_weight: float = 1.0
    "softmax_offline: as how many negatives of the batch the offline negative of an anchor counts."

    def __post_init__(self) -> None:
        settle_types(self)
        _require(self.alpha > 0, f"loss.alpha is {self.alpha}; it has to be positive.")
        for name in ("margin_online", "margin_offline", "semantic_margin", "selective"):
            value = getattr(self, name)
            _require(
                value is None or 0 <= value < math.inf,
                f"loss.{name} is {value}; it has to be finite and at least 0.",
            )
        for name in ("alpha", "beta", "bias"):
            value = getattr(self, name)
            _require(math.isfinite(value), f"loss.{name} is {value}; it has to be a number.")
        for name in ("temperature", "offline_weight"):
            value = getattr(self, name)
            _require(
                value is None or 0 < value < math.inf,
                f"loss.{name} is {value}; it has to be a positive number.",
            )
        lowest, highest = LEARNED_TEMPERATURES
        _require(
            not self.learns_temperature or lowest <= self.initial_temperature <= highest,
            f"loss.temperature is {self.temperature}; one that is learned stays within {lowest} to"
            f" {highest}, and has to start there.",
        )

    @property
    def initial_temperature(self) -> float:
        """The temperature, or what it is learned from."""
        return self.temperature or (0.1 if self.name == "siglip" else 0.07)

    @property
    def learns_temperature(self) -> bool:
        if self.name not in ("infonce", "softmax_offline", "siglip"):
            return False
        return self.name == "siglip" if self.learn_temperature is None else self.learn_temperature

    @property
    def needs_candidates(self) -> bool:
        return self.name not in ("standard", "online", "infonce", "siglip")

    @property
    def needs_derived_pairs(self) -> bool:
        return self.name in ("off_quin", "adap_off_quin", "only_offline")


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
    batch_size: int = 128
    "Positive pairs per step, over all processes: negatives come from the whole batch."
    batches: Literal["random", "grouped"] = "random"
    """random, or grouped: after the warm-up, pairs that are candidates of each other, by the mined
    lists, share a batch, so that its own negatives are hard."""
    group_size: int = 8
    "grouped: a pair and the candidates that join it; a batch holds as many groups as fit."
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
        _require_counts(self, "epochs", "decay_after", "accumulate", "checkpoint_every")
        _require_counts(self, "validation_texts", "validate_every", "patience", "log_every")
        _require_counts(self, "encode_at_once")
        _require(
            0 <= self.warmup_epochs < self.epochs,
            f"warmup_epochs is {self.warmup_epochs}; it has to be at least 0 and less"
            f" than epochs, {self.epochs}.",
        )
        for name in ("learning_rate", "tower_learning_rate", "clip_norm"):
            value = getattr(self, name)
            _require(
                value is None or 0 < value < math.inf, f"{name} is {value}; it has to be positive."
            )
        _require(
            0 <= self.weight_decay < math.inf,
            f"weight_decay is {self.weight_decay}; it has to be finite and at least 0.",
        )
        _require(
            0 <= self.rise_epochs < self.epochs,
            f"rise_epochs is {self.rise_epochs}; it has to be at least 0 and less than epochs,"
            f" {self.epochs}.",
        )
        _require(
            self.ema is None or 0 < self.ema < 1,
            f"ema is {self.ema}; it has to lie between 0 and 1, such as 0.999.",
        )
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
        part = self.batch_size // self.accumulate
        _require(
            self.batches == "random" or 2 <= self.group_size <= part,
            f"group_size is {self.group_size}; a group has at least 2 pairs, and at most those of "
            f"a batch{' or of a part of one' if self.accumulate > 1 else ''}, {part}.",
        )
        _require(
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


@dataclass(frozen=True, kw_only=True)
class MiningConfig:
    """How much is kept of the ranking of all images against all texts."""

    depth_texts: int = 300
    "Hardest texts kept for each image."
    depth_images: int = 60
    "Hardest images kept for each text."
    memory: str | None = None
    "Budget for lists, blocks of scores and their inputs, such as 4GiB; none: the free memory."
    precision: Precision = "float32"
    "Precision of the encodings in scoring: float32 is exact; the report states what others miss."
    product: Product = "auto"
    "How float32 lists are found: all scores in float32, or those that a rounded product admits."
    skip_first: int = 0
    "Leave out the first N candidates of every list: the most likely false negatives."
    score_share: float | None = None
    "Drop candidates that score above this share of the anchor's best positive."
    equal_captions: bool = False
    "Drop captions with the same words as one of the image's own, and images with such captions."
    near_captions: float | None = None
    "Drop captions with this share of words (0.8, say) in common with one of the image's own."

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
    "Texts are drawn from the first N of an image's list (h)."
    depth_images: int = 60
    "Images are drawn from the first N of a text's list."
    draws: Literal["uniform", "normal"] = "uniform"
    "Uniform over the list, or normal around its middle: sigma is a sixth of it, cut to the list."
    ranks: Literal["independent", "coupled"] = "independent"
    "Draw text and image separately, or one rank n for the text and n // 5 for the image."
    redraw: bool = True
    "Draw again if the drawn image and text belong together."
    tries: int = 10
    "Number of redraws before the exhaustive search for a pair that does not belong together."

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
        _require(self.seed >= 0, f"seed is {self.seed}; it cannot be negative.")
        _require_counts(self, "min_word_count")
        _require(
            self.round_one.start_from == "scratch",
            "round_one.start_from is round_one, which starts from scratch; set it in round_two.",
        )
        _require(
            self.model.name != "cca" or self.rounds == "one",
            "model.name is cca, which is solved without steps and has no use for mined negatives; "
            "set rounds to one.",
        )
        _require(
            not self.round_one.needs_candidates,
            f"round_one has {self.round_one.drawn_from_lists}, which come from mined lists; round"
            " one comes before them: set round_two instead.",
        )
        for name in ("depth_texts", "depth_images") if self.mines else ():
            drawn, kept = getattr(self.sampling, name), getattr(self.mining, name)
            _require(
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
