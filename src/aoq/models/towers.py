"""Pretrained towers: a vision and a text model of transformers, joined by heads.

What is frozen of a tower is no part of the model: it is a feature, computed once for every photo
and text and kept (`tower_inputs` says where it ends). What learns goes on from there: the heads,
and, as `[model] learn` says, the last blocks, low-rank adapters of these, or everything. Only what
learns is saved with a run, which names the towers that it goes on from.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.module import _IncompatibleKeys

from aoq.config import ModelConfig, Pooling
from aoq.data.inputs import Inputs
from aoq.errors import UserError, require_packages
from aoq.features.blocks import FromBlock, require_blocks, vector_of
from aoq.features.outputs import Output, OutputKind, TowerPrecision
from aoq.features.pretrained import (
    TEXT,
    VISION,
    Half,
    Role,
    has_text_tower,
    load_half,
    load_processor,
    unusable,
)
from aoq.features.regions import RegionSource
from aoq.features.text_models import TextSource, own_reading
from aoq.features.vision_models import canvas_of
from aoq.models.encoders import unit
from aoq.models.heads import GeneralisedPooling, Head
from aoq.scoring.inner_product import InnerProduct
from aoq.types import Encoding, Texts

_VECTORS: dict[Pooling, OutputKind] = {"own": "pooled", "cls": "cls", "mean": "mean"}
ROLES: dict[Half, Role] = {"vision": VISION, "text": TEXT}
_AT_ONCE = 32  # images or texts that are read together to standardise heads


@dataclass(frozen=True)
class TowerPlan:
    """One of the two towers: what of it learns, and how its states become one vector."""

    half: Half
    name: str
    pooling: Pooling
    learning: int | None
    "Last blocks that learn; none: the whole tower."
    config: ModelConfig

    @classmethod
    def of(cls, config: ModelConfig, half: Half) -> TowerPlan:
        name = config.image if half == "vision" else config.text_model
        pooling = config.image_pooling if half == "vision" else config.text_pooling
        blocks = config.image_blocks if half == "vision" else config.text_blocks
        learning = {"heads": 0, "full": None if blocks else 0}.get(config.learn, blocks)
        return cls(half, name, pooling, learning, config)

    @property
    def reading(self) -> Output:
        """How the vector of the whole is read; generalised pooling reads the states."""
        output = Output(_VECTORS.get(self.pooling, "mean"))
        return own_reading(self.name, output) if self.half == "text" else output

    def load(self, *, projected: bool) -> nn.Module:
        return load_half(self.name, self.half, projected=projected, role=ROLES[self.half])[0]

    @property
    def frozen(self) -> Output:
        """What is computed once and kept: the output of what does not learn."""
        is_low = self.half == "vision" and self.config.image_precision == "bfloat16"
        precision: TowerPrecision = "bfloat16" if is_low else "float32"
        if self.learning is None:
            return Output("input")
        if not self.learning and self.pooling != "generalised":
            return Output(_VECTORS[self.pooling], precision=precision)
        blocks = require_blocks(
            self.name, self.load(projected=False), ROLES[self.half], at_least=self.learning
        )
        return Output("states", blocks - self.learning, precision)


def tower_inputs(config: ModelConfig, kept: RegionSource | None = None) -> Inputs:
    """Return what is frozen of the towers of a model, by which all photos and texts are read.

    `kept` is how a data set's own features were made; they are used where the precision may be any.
    """
    if not config.image:
        raise UserError(
            "model.image names no image tower; name a vision model or a dual encoder of "
            "transformers, on its hub or in a folder, with --model.image."
        )
    if not config.text and not has_text_tower(config.image):
        raise UserError(
            f"{config.image} is an image tower without a text tower; name a text model of "
            "transformers with --model.text, or a dual encoder with --model.image."
        )
    vision, text = TowerPlan.of(config, "vision"), TowerPlan.of(config, "text")
    images = RegionSource.of_backbone(vision.name, output=vision.frozen)
    if kept is not None and config.image_precision == "auto" and images.differs_in_precision(kept):
        images = kept
    return Inputs(
        images,
        TextSource.of_tower(text.name, text.frozen, prompt=config.prompt),
    )


def word_states(name: str) -> TextSource:
    """Return what SCAN, BFAN, VSRN and VSE read of a text tower: the last states of its tokens."""
    tower = load_half(name, "text", projected=False, role=TEXT)[0]
    blocks = require_blocks(name, tower, TEXT, at_least=0)
    return TextSource.of_tower(name, Output("states", blocks))


class Trunk(nn.Module):
    """What follows the frozen part of a tower, up to the vector of the whole."""

    def __init__(self, plan: TowerPlan, frozen: Output) -> None:
        super().__init__()
        self.frozen = frozen
        network = plan.load(projected=plan.pooling == "own")
        is_split = frozen.kind == "states"
        self.network: nn.Module = FromBlock(network, frozen.block) if is_split else network
        self.pooling = GeneralisedPooling() if plan.pooling == "generalised" else None
        self.reading = plan.reading
        self._let_learn(plan)
        if plan.config.checkpoint_blocks and plan.learning != 0:
            _checkpoint(network, plan)

    def pool(self, seen: Any, mask: Tensor | None) -> Tensor:
        """Return the vector of the whole. (B, F)"""
        if self.pooling is None:
            return vector_of(seen, self.reading, mask)
        states: Tensor = seen.last_hidden_state
        if mask is None:
            mask = states.new_ones(states.shape[:2], dtype=torch.bool)
        pooled: Tensor = self.pooling(states, mask)
        return pooled

    def _let_learn(self, plan: TowerPlan) -> None:
        """Freeze what does not learn, and what the output does not use."""
        is_frozen = plan.learning == 0
        self.network.requires_grad_(not is_frozen)
        if is_frozen:
            return
        if plan.config.learn == "lora" and isinstance(self.network, FromBlock):
            _add_adapters(self.network, plan.config.lora_rank)
            return
        self.pool(self.see_example(), None).sum().backward()
        for parameter in self.network.parameters():
            parameter.requires_grad_(parameter.grad is not None)
            parameter.grad = None

    def see_example(self) -> Any:
        """Return what the network makes of a blank input."""
        raise NotImplementedError

    @property
    def width(self) -> int:
        """Width of the vector of the whole."""
        with torch.no_grad():
            return self.pool(self.see_example(), None).shape[1]


class ImageTrunk(Trunk):
    """Goes on from the states of patches, or from pixels."""

    shift: Tensor
    scale: Tensor

    def __init__(self, plan: TowerPlan, frozen: Output) -> None:
        processor = load_processor(plan.name)
        self._side = canvas_of(plan.name, processor, whole=False).side
        super().__init__(plan, frozen)
        shift, scale = _normalisation(processor)
        self.register_buffer("shift", shift, persistent=False)
        self.register_buffer("scale", scale, persistent=False)

    def forward(self, regions: Tensor) -> Tensor:
        """Read states (B, L, F), or pixels from 0 to 255 (B, 3, S, S)."""
        if self.frozen.kind == "states":
            blank = regions.new_zeros(1, 3, self._side, self._side)
            return self.pool(self.network(regions, pixel_values=blank), None)
        return self.pool(self.network(pixel_values=(regions - self.shift) * self.scale), None)

    def see_example(self) -> Any:
        return self.network(pixel_values=torch.zeros(1, 3, self._side, self._side))


class TextTrunk(Trunk):
    """Goes on from the states of tokens, or from the tokens."""

    def forward(self, texts: Texts) -> Tensor:
        inputs = {"input_ids": texts.tokens, "attention_mask": texts.mask.long()}
        states = () if texts.vectors is None else (texts.vectors,)
        return self.pool(self.network(*states, **inputs), texts.mask)

    def see_example(self) -> Any:
        tokens = torch.ones(1, 2, dtype=torch.long)
        return self.network(input_ids=tokens, attention_mask=torch.ones_like(tokens))


class Towers(InnerProduct, nn.Module):
    """Two towers and their heads; the score is the cosine."""

    def __init__(
        self, config: ModelConfig, *, feature_width: int, text_width: int, **_: object
    ) -> None:
        super().__init__()
        plans = [TowerPlan.of(config, half) for half in ("vision", "text")]
        outputs = [plan.frozen for plan in plans]
        vision, text = (
            None if output.is_vector else (plan, output)
            for plan, output in zip(plans, outputs, strict=True)
        )
        self.image_trunk = None if vision is None else ImageTrunk(*vision)
        self.text_trunk = None if text is None else TextTrunk(*text)
        widths = [
            width if trunk is None else trunk.width
            for width, trunk in ((feature_width, self.image_trunk), (text_width, self.text_trunk))
        ]
        if config.head == "none" and widths[0] != widths[1]:
            raise UserError(
                f"the towers have vectors of width {widths[0]} and {widths[1]}, which cannot be "
                "compared as they are; set model.head to linear or residual."
            )
        with_heads = config.head != "none"
        dropouts = config.feature_dropout, config.word_dropout
        self.image_head, self.text_head = (
            Head(config, width, dropout=dropout) if with_heads else None
            for width, dropout in zip(widths, dropouts, strict=True)
        )
        self._keep_frozen_out_of_files()

    def encode_images(self, regions: Tensor) -> Encoding:
        vectors = self._image_vectors(regions)
        return Encoding(unit(vectors if self.image_head is None else self.image_head(vectors)))

    def encode_texts(self, texts: Texts) -> Encoding:
        vectors = self._text_vectors(texts)
        return Encoding(unit(vectors if self.text_head is None else self.text_head(vectors)))

    def _image_vectors(self, regions: Tensor) -> Tensor:
        """Return one vector of each image. (B, F)"""
        if self.image_trunk is None:
            return regions[:, 0]
        vectors: Tensor = self.image_trunk(regions)
        return vectors

    def _text_vectors(self, texts: Texts) -> Tensor:
        if self.text_trunk is not None:
            vectors: Tensor = self.text_trunk(texts)
            return vectors
        assert texts.vectors is not None
        return texts.vectors

    def fit_inputs(self, regions: Tensor, texts: Texts) -> None:
        """Standardise what the heads read, by some images and texts of the training data."""
        self.eval()
        with torch.no_grad():
            if self.image_head is not None:
                pieces = regions.split(_AT_ONCE)
                self.image_head.standardise(torch.cat([*map(self._image_vectors, pieces)]))
            if self.text_head is not None:
                rows = torch.arange(len(texts.tokens), device=texts.tokens.device).split(_AT_ONCE)
                vectors = [self._text_vectors(texts[piece]) for piece in rows]
                self.text_head.standardise(torch.cat(vectors))
        self.train()

    def pretrained_parameters(self) -> Iterator[nn.Parameter]:
        """Yield the parameters of the towers that learn."""
        for trunk in (self.image_trunk, self.text_trunk):
            if trunk is not None:
                yield from filter(lambda each: each.requires_grad, trunk.network.parameters())

    def train(self, mode: bool = True) -> Towers:
        """Set the mode; a tower without anything that learns stays in evaluation mode.

        So do batch norms: the statistics that they were pretrained with suit small batches and
        pieces of one too, and are not among the weights that are saved.
        """
        super().train(mode)
        for trunk in (self.image_trunk, self.text_trunk):
            if trunk is not None and not any(map(_learns, trunk.network.parameters())):
                trunk.network.eval()
            elif trunk is not None:
                for part in filter(_is_batch_norm, trunk.network.modules()):
                    part.eval()
        return self

    def _keep_frozen_out_of_files(self) -> None:
        """Leave the weights that do not learn out of the state; they are those of the towers."""
        frozen = {name for name, parameter in self.named_parameters() if not _learns(parameter)}
        learning = {name for name, _ in self.named_parameters()} - frozen
        own = {name for name, _ in self.named_buffers() if "_head." in name}
        kept = learning | own

        def drop(_: nn.Module, state: dict[str, Any], prefix: str, __: Any) -> None:
            for name in [name for name in state if name not in kept]:
                del state[name]

        def forgive(_: nn.Module, keys: _IncompatibleKeys) -> None:
            keys.missing_keys[:] = [name for name in keys.missing_keys if name in kept]

        self.register_state_dict_post_hook(drop)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_post_hook(forgive)  # type: ignore[no-untyped-call]


def _learns(parameter: nn.Parameter) -> bool:
    return parameter.requires_grad


def _is_batch_norm(part: nn.Module) -> bool:
    return isinstance(part, _BatchNorm)


def _normalisation(processor: Any) -> tuple[Tensor, Tensor]:
    """Return what is subtracted from pixels of 0 to 255, and the factor after that. (3, 1, 1)"""
    factor = processor.rescale_factor if getattr(processor, "do_rescale", True) else 1.0
    mean, deviation = torch.zeros(3), torch.ones(3)
    if getattr(processor, "do_normalize", True):
        mean, deviation = torch.tensor(processor.image_mean), torch.tensor(processor.image_std)
    return (mean / factor)[:, None, None], (factor / deviation)[:, None, None]


def _checkpoint(network: nn.Module, plan: TowerPlan) -> None:
    """Let the blocks of a network compute what they do not keep a second time."""
    able = (
        part
        for part in network.modules()
        if getattr(part, "supports_gradient_checkpointing", False)
    )
    model: Any = next(able, None)
    if model is None:
        reason = "its blocks cannot be computed twice (model.checkpoint_blocks)"
        raise unusable(plan.name, reason, ROLES[plan.half])
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})


def _add_adapters(blocks: FromBlock, rank: int) -> None:
    """Add low-rank adapters to every linear layer of some blocks."""
    require_packages("peft", extra="towers")
    from peft import LoraConfig, inject_adapter_in_model

    inside = {id(part) for block in blocks.blocks for part in block.modules()}
    names = [
        name
        for name, part in blocks.named_modules()
        if isinstance(part, nn.Linear) and id(part) in inside
    ]
    settings = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=names)
    inject_adapter_in_model(settings, blocks)
