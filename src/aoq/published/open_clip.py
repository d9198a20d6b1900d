"""Writes a CLIP of open_clip as one of transformers, which computes the same vectors.

open_clip publishes `open_clip_config.json` and `open_clip_model.safetensors`, on the hub or in
folders. Its plain vision transformer and its plain text transformer are those of CLIP: weights only
have other names, and the three projections of attention lie in one matrix. Towers of timm and of
Hugging Face, ResNets and all other settings are refused, because transformers' CLIP would compute
something else.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from aoq.errors import UserError, require_packages
from aoq.features.pretrained import DUAL, fetch_files, read_beside, unusable
from aoq.storage import atomic_file, read_json, write_json

if TYPE_CHECKING:
    from transformers import CLIPConfig

_ON_HUB = "hf-hub:"
SETTINGS = "open_clip_config.json"
WEIGHTS = "open_clip_model.safetensors"
_TOKENIZER = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
    *("vocab.json", "merges.txt"),
)
_MEAN = [0.48145466, 0.4578275, 0.40821073]
_STD = [0.26862954, 0.26130258, 0.27577711]
_RESAMPLE = {"bilinear": 2, "bicubic": 3}
# What is left out of a config, and what the towers of CLIP need of other settings.
_VISION = {"layers": 12, "width": 768, "head_width": 64, "mlp_ratio": 4.0, "patch_size": 16}
_VISION |= {"image_size": 224}
_TEXT = {"layers": 12, "width": 512, "heads": 8, "mlp_ratio": 4.0, "context_length": 77}
_TEXT |= {"vocab_size": 49408}
_USUAL = {
    "pool_type": ("tok", "argmax"),
    "proj_type": ("linear",),
    "pos_embed_type": ("learnable",),
}
_UNUSED = ("patch_dropout", "output_tokens")  # in training, or of nothing that is computed here

_RENAMED = [
    (r"^visual\.conv1\.", "vision_model.embeddings.patch_embedding."),
    (r"^visual\.class_embedding$", "vision_model.embeddings.class_embedding"),
    (r"^visual\.positional_embedding$", "vision_model.embeddings.position_embedding.weight"),
    (r"^visual\.ln_pre\.", "vision_model.pre_layrnorm."),
    (r"^visual\.ln_post\.", "vision_model.post_layernorm."),
    (r"^visual\.proj$", "visual_projection.weight"),
    (r"^visual\.transformer\.resblocks\.", "vision_model.encoder.layers."),
    (r"^token_embedding\.", "text_model.embeddings.token_embedding."),
    (r"^positional_embedding$", "text_model.embeddings.position_embedding.weight"),
    (r"^ln_final\.", "text_model.final_layer_norm."),
    (r"^text_projection$", "text_projection.weight"),
    (r"^transformer\.resblocks\.", "text_model.encoder.layers."),
    (r"(layers\.\d+\.)ln_([12])\.", r"\1layer_norm\2."),
    (r"(layers\.\d+\.)mlp\.c_fc\.", r"\1mlp.fc1."),
    (r"(layers\.\d+\.)mlp\.c_proj\.", r"\1mlp.fc2."),
    (r"(layers\.\d+\.)attn\.", r"\1self_attn."),
]
_TURNED = ("visual_projection.weight", "text_projection.weight")  # stored as (in, out)
_JOINED = re.compile(r"(.*self_attn\.)in_proj_(weight|bias)")


def find_open_clip(name: str) -> Path | None:
    """Return the folder of a model of open_clip; None if the name is that of another model.

    A name on the hub is written as open_clip writes it, hf-hub:NAME. timm saves a config.json
    beside its models too, which names no model of transformers.
    """
    if name.startswith(_ON_HUB):
        name = name.removeprefix(_ON_HUB)
        folder = fetch_files(name, (SETTINGS, WEIGHTS, *_TOKENIZER), DUAL)
        if not (folder / SETTINGS).is_file():
            raise unusable(name, f"it has no {SETTINGS}", DUAL)
        return folder
    folder = Path(name)
    if not (folder / SETTINGS).is_file():
        return None
    is_of_transformers = "model_type" in (read_beside(name, "config.json") or {})
    return None if is_of_transformers else folder


def write_as_clip(source: Path, folder: Path) -> None:
    """Write the model of an open_clip folder as transformers reads it."""
    require_packages("transformers", extra="transformers")
    from transformers import CLIPModel

    settings = read_json(source / SETTINGS)
    tokenizer = [source / name for name in _TOKENIZER if (source / name).is_file()]
    if not tokenizer:
        raise _refused(source, f"it has no tokenizer; expected {_TOKENIZER[0]} beside {SETTINGS}")
    try:
        config = _config_of(settings.get("model_cfg"), source)
        vision: Any = config.vision_config
        given = settings.get("preprocess_cfg") or {}
        preprocessing = _preprocessing_of(given, source, vision.image_size)
        with torch.device("meta"):
            expected = {name: each.shape for name, each in CLIPModel(config).state_dict().items()}
        weights = translate_weights(_read_weights(source))
    except UserError:
        raise
    except Exception as error:  # damaged files make transformers and torch raise almost anything
        reason = " ".join(f"{type(error).__name__} {error}".split())[:200]
        raise _refused(source, f"its files do not fit together: {reason}") from error
    found = {name: each.shape for name, each in weights.items()}
    for name in sorted(expected.keys() | found.keys()):
        if expected.get(name) != found.get(name):
            raise _refused(source, f"{name} is {_shape(found, name)}, not {_shape(expected, name)}")
    folder.mkdir()
    write_json(folder / "config.json", {**config.to_dict(), "architectures": ["CLIPModel"]})
    write_json(folder / "preprocessor_config.json", preprocessing)
    for file in tokenizer:
        with atomic_file(folder / file.name) as temporary:
            shutil.copyfile(file, temporary)
    with atomic_file(folder / "model.safetensors") as temporary:
        save_file(weights, temporary, metadata={"format": "pt"})


def translate_weights(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Give the weights of open_clip the names and shapes of transformers' CLIP."""
    found: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        new = name.removeprefix("text.")  # of a model with `custom_text`
        for pattern, replacement in _RENAMED:
            new = re.sub(pattern, replacement, new)
        if new in _TURNED:
            tensor = tensor.T
        joined = _JOINED.fullmatch(new)
        parts = {new: tensor}
        if joined:
            start, kind = joined.groups()
            names = [f"{start}{letter}_proj.{kind}" for letter in "qkv"]
            parts = dict(zip(names, tensor.chunk(3), strict=True))
        found |= {part: each.float().contiguous() for part, each in parts.items()}
    return found


def _config_of(settings: Any, source: Path) -> CLIPConfig:
    from transformers import CLIPConfig

    if not isinstance(settings, dict):
        raise _refused(source, f"{SETTINGS} has no model_cfg")
    extra = set(settings) - {"embed_dim", "vision_cfg", "text_cfg", "quick_gelu", "custom_text"}
    if extra:
        raise _refused(source, f"it has {min(extra)}")
    activation = {"hidden_act": "quick_gelu" if settings.get("quick_gelu") else "gelu"}
    vision = _settled(settings.get("vision_cfg", {}), _VISION, source, half="vision")
    text = _settled(settings.get("text_cfg", {}), _TEXT, source, half="text")
    return CLIPConfig(
        projection_dim=settings["embed_dim"],
        vision_config={
            **_sizes(vision, heads=vision["width"] // vision["head_width"]),
            **activation,
            "patch_size": vision["patch_size"],
            "image_size": vision["image_size"],
        },
        text_config={
            **_sizes(text, heads=text["heads"]),
            **activation,
            "vocab_size": text["vocab_size"],
            "max_position_embeddings": text["context_length"],
            "eos_token_id": 2,  # the state of the largest id is taken, as open_clip does
        },
    )


def _settled(given: Mapping[str, Any], usual: Mapping[str, Any], source: Path, *, half: str) -> Any:
    """Return the settings of a tower; refuse those that CLIP's does not have."""
    for name, value in given.items():
        is_fine = name in usual or name in _UNUSED or value in (None, False, *_USUAL.get(name, ()))
        if not is_fine:
            raise _refused(source, f"its {half} tower has {name} {value!r}")
    settled = {**usual, **{name: given[name] for name in usual if name in given}}
    if not all(type(value) in (int, float) for value in settled.values()):
        raise _refused(source, f"its {half} tower is not a plain transformer")
    return settled


def _sizes(tower: Mapping[str, Any], *, heads: int) -> dict[str, int]:
    return {
        "hidden_size": tower["width"],
        "intermediate_size": int(tower["width"] * tower["mlp_ratio"]),
        "num_hidden_layers": tower["layers"],
        "num_attention_heads": heads,
    }


def _preprocessing_of(given: Mapping[str, Any], source: Path, side: int) -> dict[str, Any]:
    mode, resample = given.get("resize_mode", "shortest"), given.get("interpolation", "bicubic")
    if mode not in ("shortest", "squash") or resample not in _RESAMPLE:
        raise _refused(source, f"its pictures are resized by {mode} and {resample}")
    square = {"height": side, "width": side}
    return {
        "image_processor_type": "CLIPImageProcessor",
        "do_center_crop": mode == "shortest",
        "crop_size": square,
        "size": {"shortest_edge": side} if mode == "shortest" else square,
        "resample": _RESAMPLE[resample],
        "image_mean": given.get("mean", _MEAN),
        "image_std": given.get("std", _STD),
        **dict.fromkeys(("do_resize", "do_rescale", "do_normalize", "do_convert_rgb"), True),
        "rescale_factor": 1 / 255,
    }


def _read_weights(source: Path) -> dict[str, Tensor]:
    path = source / WEIGHTS
    if not path.is_file():
        raise _refused(source, f"it has no {WEIGHTS}, and pickled weights are never read")
    try:
        return load_file(path)
    except SafetensorError as error:
        raise _refused(source, f"{WEIGHTS} is damaged: {error}") from None


def _shape(shapes: Mapping[str, torch.Size], name: str) -> str:
    return f"of the shape {tuple(shapes[name])}" if name in shapes else "missing"


def _refused(source: Path, reason: str) -> UserError:
    return UserError(
        f"{source} cannot be read as a CLIP of open_clip ({reason}); expected a plain vision and a "
        "plain text transformer; look for the same model in the format of transformers."
    )
