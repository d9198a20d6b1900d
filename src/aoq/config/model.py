"""Settings of the model: which one, its widths, what it reads, which part of it learns."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from aoq.config.checks import require, require_counts
from aoq.field_types import settle_types

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
WordWeights = Literal["tfidf", "counts"]


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
    """VSRN, SCAN, BFAN, VSE, bow: dropout of the features of regions; towers: of the image tower's
    vectors, before the head."""
    word_dropout: float = 0.0
    """VSRN, SCAN, BFAN, VSE, bow: dropout of the vectors of words; towers: of the text tower's
    vectors, before the head."""
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
        require_counts(self, "joint_width", "word_width", "caption_width", "lora_rank")
        require_counts(self, "head_width")
        for name in ("image_blocks", "text_blocks"):
            value = getattr(self, name)
            require(value >= 0, f"model.{name} is {value}; it has to be at least 0.")
        require(
            self.learn == "heads" or self.image_blocks + self.text_blocks > 0,
            f"model.learn is {self.learn}, but no block of either tower learns: image_blocks and "
            "text_blocks are 0; let one of them learn, or set model.learn to heads.",
        )
        for name in SHARES:
            value = getattr(self, name)
            require(0 <= value < 1, f"model.{name} is {value}; it has to lie in [0, 1).")
        require(
            self.prompt.count("{}") == 1,
            f"model.prompt is {self.prompt!r}; expected a text with {{}} where each text goes.",
        )
        require(
            self.caption_max_words >= 2,
            f"model.caption_max_words is {self.caption_max_words}; <start> and <end> need 2.",
        )
        for name in ("temperature", "aggregate_temperature", "ridge", "ridge_factor"):
            value = getattr(self, name)
            require(
                value is None or 0 < value < math.inf,
                f"model.{name} is {value}; it has to be a positive number.",
            )
        require(
            0 <= self.caption_weight < math.inf,
            f"model.caption_weight is {self.caption_weight}; it has to be finite and at least 0.",
        )
        require(
            math.isfinite(self.correlation_power),
            f"model.correlation_power is {self.correlation_power}; it has to be a number.",
        )
        require(
            self.name not in BAGS or self.words == "gru",
            f"model.words is {self.words!r}, and {self.name} counts words of a vocabulary; leave "
            "it out.",
        )
        require(
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
