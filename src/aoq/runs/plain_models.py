"""Dual encoders as folders that transformers and sentence-transformers load.

transformers knows towers without heads: a CLIP or a SigLIP as it was, or two towers side by side.
sentence-transformers routes texts and pictures to modules of their own: a tower, its pooling, and
linear layers, by which `head_layers` expresses every head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from aoq.errors import UserError
from aoq.features.blocks import vector_of
from aoq.features.outputs import Output, OutputKind
from aoq.features.pretrained import Half, load_processor, load_tokenizer
from aoq.features.tokenizers import PieceTokenizer
from aoq.models.encoders import unit
from aoq.models.heads import Head
from aoq.models.tower_weights import WholeTower

_MODALITY: dict[Half, str] = {"vision": "image", "text": "text"}
_METHOD: dict[Half, str] = {"vision": "get_image_features", "text": "get_text_features"}


@dataclass(frozen=True)
class DualEncoder:
    """An image and a text tower with the heads that join them."""

    image: WholeTower
    text: WholeTower
    image_head: Head | None
    text_head: Head | None
    prompt: str
    "What a text is put into before it is read."

    @property
    def is_one_network(self) -> bool:
        return self.image.network is self.text.network


@dataclass(frozen=True)
class Vectors:
    """What a folder makes of some texts and pictures. (N, D)"""

    texts: Tensor
    photos: Tensor


# transformers


def save_for_transformers(encoder: DualEncoder, folder: Path) -> None:
    """Save towers without heads as a CLIP, a SigLIP or two towers side by side."""
    _require_own_vectors(encoder)
    network = encoder.image.network if encoder.is_one_network else _side_by_side(encoder)
    network.save_pretrained(folder)
    _tokenizer(encoder.text).save_pretrained(folder)
    load_processor(encoder.image.name).save_pretrained(folder)


def read_by_transformers(
    folder: Path, texts: Sequence[str], pictures: Sequence[Any], *, prompt: str
) -> Vectors:
    """Load a folder and encode texts and pictures; texts are put into the prompt first."""
    from transformers import AutoModel

    name = str(folder)
    model: Any = AutoModel.from_pretrained(name).eval()
    words = load_tokenizer(name)(
        [prompt.replace("{}", text) for text in texts],
        padding=PieceTokenizer(name).padding or True,
        truncation=True,
        return_tensors="pt",
    )
    pixels = load_processor(name)(images=list(pictures), return_tensors="pt")
    with torch.no_grad():
        by_text, by_picture = model.get_text_features(**words), model.get_image_features(**pixels)
    own = Output("pooled")
    return Vectors(unit(vector_of(by_text, own)), unit(vector_of(by_picture, own)))


def _require_own_vectors(encoder: DualEncoder) -> None:
    instead = "choose --format sentence-transformers"
    if encoder.image_head is not None:
        raise UserError(
            "the run has heads on its towers, for which the models of transformers have no place; "
            f"{instead}, or train with --model.head none."
        )
    for tower, flag in ((encoder.image, "image"), (encoder.text, "text")):
        if tower.reading.kind != "pooled":
            raise UserError(
                f"the run reads {tower.name} by its {tower.reading.kind} state, which the dual "
                f"encoders of transformers do not; {instead}, or train a tower that has a vector "
                f"of its own with --model.{flag}-pooling own."
            )
        if tower.is_dual and not encoder.is_one_network:
            raise UserError(
                f"the run uses one half of {tower.name} with another tower, and transformers has "
                f"no model of both; {instead}."
            )


def _side_by_side(encoder: DualEncoder) -> Any:
    from transformers import VisionTextDualEncoderConfig, VisionTextDualEncoderModel

    towers = (encoder.image, encoder.text)
    vision, text = map(_without_projection, towers)
    weights = [
        torch.eye(tower.network.config.hidden_size)
        if tower.projection is None
        else tower.projection.weight
        for tower in towers
    ]
    config = VisionTextDualEncoderConfig.from_vision_text_configs(
        vision.config, text.config, projection_dim=len(weights[0])
    )
    model = VisionTextDualEncoderModel(config, vision_model=vision, text_model=text).eval()
    with torch.no_grad():
        model.visual_projection.weight.copy_(weights[0])
        model.text_projection.weight.copy_(weights[1])
    return model


def _without_projection(tower: WholeTower) -> Any:
    """Return a network as `AutoModel` knows it, which leaves out the projection of one tower."""
    from transformers import AutoModel

    if tower.projection is None:
        return tower.network
    network: Any = AutoModel.from_config(tower.network.config)
    weights = tower.network.state_dict()
    network.load_state_dict({name: weights[name] for name in network.state_dict()})
    return network.eval()


def _tokenizer(tower: WholeTower) -> Any:
    """Return the tokenizer of a text tower, which reads texts as the run does."""
    pieces = PieceTokenizer(tower.name)
    # Gemma's tokenizer in lower case has a class of its own.
    kind = "Siglip2Tokenizer" if pieces.lowers else "AutoTokenizer"
    tokenizer = load_tokenizer(tower.name, kind=kind)
    tokenizer.model_max_length = pieces.max_length
    if pieces.padding:  # the tower reads the padding too
        names = ["input_ids"]
        tokenizer.model_input_names = tokenizer.init_kwargs["model_input_names"] = names
    return tokenizer


# sentence-transformers


def save_for_sentence_transformers(encoder: DualEncoder, folder: Path) -> None:
    """Save towers and heads as modules; texts and pictures take routes of their own."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Normalize, Router

    prompts = _prompts(encoder.prompt)
    with TemporaryDirectory() as scratch:
        routes = _routes(encoder, Path(scratch))
        is_one_route = routes["image"] == routes["text"]
        first = routes["text"] if is_one_route else [Router(routes)]
        model = SentenceTransformer(modules=[*first, Normalize()], device="cpu", **prompts)
        model.save_pretrained(str(folder), create_model_card=False)


def read_by_sentence_transformers(
    folder: Path, texts: Sequence[str], pictures: Sequence[Any], *, prompt: str
) -> Vectors:
    """Load a folder and encode texts and pictures; the folder knows the prompt."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device="cpu")
    by_text, by_picture = (
        model.encode(list(each), convert_to_tensor=True, show_progress_bar=False)
        for each in (texts, pictures)
    )
    return Vectors(by_text, by_picture)


def _prompts(prompt: str) -> dict[str, Any]:
    start, _, end = prompt.partition("{}")
    if end:
        raise UserError(
            f"the run puts texts into {prompt!r}, and sentence-transformers only knows prompts "
            "before a text; choose --format transformers, or train with a --model.prompt that "
            "ends with {}."
        )
    return {"prompts": {"text": start}, "default_prompt_name": "text"} if start else {}


def _routes(encoder: DualEncoder, scratch: Path) -> dict[str, list[Any]]:
    """Return the modules of texts and those of pictures; both halves of a network share one."""
    towers = (encoder.text, encoder.image)
    kinds = [_kind_of(tower) for tower in towers]
    readers: dict[tuple[int, OutputKind], Any] = {}
    routes = {}
    for tower, kind, head in zip(
        towers, kinds, (encoder.text_head, encoder.image_head), strict=True
    ):
        key = (id(tower.network), kind)
        if key not in readers:
            used = [
                each
                for each, its_kind in zip(towers, kinds, strict=True)
                if (id(each.network), its_kind) == key
            ]
            readers[key] = _reader_of(tower, kind, used, scratch / str(len(readers)))
        routes[_MODALITY[tower.half]] = [readers[key], *_after(tower, kind, head)]
    return routes


def _reader_of(
    tower: WholeTower, kind: OutputKind, used: Sequence[WholeTower], scratch: Path
) -> Any:
    """Return the module that runs a network; `used` are the halves of it that are read."""
    from sentence_transformers.base.modules import Transformer

    scratch.mkdir()
    _without_projection(tower).save_pretrained(scratch)
    if tower.half == "text" or tower.is_dual:
        _tokenizer(tower).save_pretrained(scratch)
    if tower.half == "vision" or tower.is_dual:
        load_processor(tower.name).save_pretrained(scratch)
    output = "pooler_output" if kind == "pooled" else "last_hidden_state"
    outputs = {
        _MODALITY[each.half]: {
            "method": _METHOD[each.half] if each.is_dual else "forward",
            "method_output_name": output,
        }
        for each in used
    }
    padding = PieceTokenizer(tower.name).padding if "text" in outputs else False
    return Transformer(
        str(scratch),
        modality_config=outputs,
        module_output_name="sentence_embedding" if kind == "pooled" else "token_embeddings",
        processing_kwargs={"text": {"padding": padding}} if padding else None,
    )


def _kind_of(tower: WholeTower) -> OutputKind:
    """Return how a tower is read; one without a vector of its own is read by its first token."""
    kind = tower.reading.kind
    if kind != "pooled" or tower.is_dual:
        return kind
    network = _without_projection(tower)
    if tower.half == "text":
        inputs = load_tokenizer(tower.name)("a photo", return_tensors="pt")
    else:
        blank = np.zeros((32, 32, 3), np.uint8)
        inputs = load_processor(tower.name)(images=[blank], return_tensors="pt")
    with torch.no_grad():
        seen = network(**inputs)
    return "cls" if getattr(seen, "pooler_output", None) is None else "pooled"


def _after(tower: WholeTower, kind: OutputKind, head: Head | None) -> list[Any]:
    """Return the modules after a network: pooling, the projection of a single tower, the head."""
    from sentence_transformers.base.modules import Dense
    from sentence_transformers.sentence_transformer.modules import Pooling

    config = tower.network.config
    width = getattr(config, f"{tower.half}_config", config).hidden_size
    modules = [] if kind == "pooled" else [Pooling(width, kind)]
    layers = [] if head is None else head_layers(head)
    if tower.projection is not None:
        layers.insert(0, Layer(tower.projection.weight, None))
    return modules + [
        Dense(
            layer.weight.shape[1],
            layer.weight.shape[0],
            bias=layer.bias is not None,
            activation_function=nn.GELU() if layer.is_gelu else None,
            init_weight=layer.weight.detach().clone(),
            init_bias=None if layer.bias is None else layer.bias.detach().clone(),
        )
        for layer in layers
    ]


@dataclass(frozen=True)
class Layer:
    """A linear layer, and whether a GELU follows."""

    weight: Tensor
    bias: Tensor | None
    is_gelu: bool = False


def head_layers(head: Head) -> list[Layer]:
    """Write a head as linear layers, each followed by a GELU or by nothing.

    Its standardisation joins the first layer: W (x - m) s + b = (W s) x + b - (W s) m.
    A residual head W x + U gelu(V x) is two layers, because gelu(z) - gelu(-z) = z.
    """
    weight, bias = _with_standardisation(head.linear, head)
    if head.residual is None:
        return [Layer(weight, bias)]
    hidden, *_, outer = cast("tuple[nn.Linear, ...]", tuple(head.residual))
    inner_weight, inner_bias = _with_standardisation(hidden, head)
    one = torch.eye(len(weight))
    return [
        Layer(
            torch.cat([weight, -weight, inner_weight]),
            torch.cat([bias, -bias, inner_bias]),
            is_gelu=True,
        ),
        Layer(torch.cat([one, -one, outer.weight], dim=1), outer.bias),
    ]


def _with_standardisation(layer: nn.Linear, head: Head) -> tuple[Tensor, Tensor]:
    weight: Tensor = layer.weight * head.scale
    return weight, layer.bias - weight @ head.mean
