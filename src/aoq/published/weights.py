"""Translates the published programs' weights to our names.

A published checkpoint holds one state dict per encoder, with names such as `Rs_GCN_1.W.0.weight`.
The tables below map them to our names; 1x1 convolutions (O, I, 1) become linear maps (O, I).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from torch import Tensor

_TEXT = [
    (r"txt_enc\.embed\.", "text_encoder.embedding."),
    (r"txt_enc\.rnn\.", "text_encoder.gru."),
]
_VSRN = [
    *_TEXT,
    (r"img_enc\.fc\.", "image_encoder.projection."),
    (r"img_enc\.img_rnn\.", "image_encoder.gru."),
    (r"img_enc\.bn\.", "image_encoder.norm."),
    (r"img_enc\.Rs_GCN_([1-4])\.g\.", "image_encoder.graph.{layer}.value."),
    (r"img_enc\.Rs_GCN_([1-4])\.W\.0\.", "image_encoder.graph.{layer}.output."),
    (r"img_enc\.Rs_GCN_([1-4])\.W\.1\.", "image_encoder.graph.{layer}.norm."),
    (r"img_enc\.Rs_GCN_([1-4])\.(theta|phi)\.", "image_encoder.graph.{layer}.{name}."),
    (r"caption_model\.encoder\.vid2hid\.", "captioner.projection."),
    (r"caption_model\.encoder\.rnn\.", "captioner.encoder."),
    (r"caption_model\.decoder\.embedding\.", "captioner.embedding."),
    (r"caption_model\.decoder\.attention\.linear1\.", "captioner.attention.hidden."),
    (r"caption_model\.decoder\.attention\.linear2\.", "captioner.attention.score."),
    (r"caption_model\.decoder\.rnn\.(\w+)_l0$", "captioner.decoder.{name}"),
    (r"caption_model\.decoder\.out\.", "captioner.output."),
]
_REGIONS_AND_WORDS = [  # the first match is used, so _TEXT follows its exception
    (r"img_enc\.fc\.weight_g$", "image_encoder.projection.parametrizations.weight.original0"),
    (r"img_enc\.fc\.weight_v$", "image_encoder.projection.parametrizations.weight.original1"),
    (r"img_enc\.fc\.", "image_encoder.projection."),
    (r"txt_enc\.rnn\.(\w+)_reverse$", "text_encoder.backward_gru.{name}"),
    *_TEXT,
]
_VSE = [*_TEXT, (r"img_enc\.fc\.", "projection.")]
_RENAMES = {
    "vsrn": _VSRN,
    "scan": _REGIONS_AND_WORDS,
    "bfan": _REGIONS_AND_WORDS,
    "vse": _VSE,
}


def our_name(model: str, published: str) -> str:
    """Return our name of a published parameter (`img_enc.*`, `txt_enc.*`, `caption_model.*`)."""
    for pattern, ours in _RENAMES[model]:
        match = re.match(pattern, published)
        if match:
            groups = match.groups()
            layer = int(groups[0]) - 1 if "{layer}" in ours else None
            return (
                ours.format(layer=layer, name=groups[-1] if groups else "")
                + (published[match.end() :])
            )
    raise KeyError(f"{published} is not a parameter of the published {model}")


def from_published(model: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Convert a published state dict to our names and shapes."""
    return {
        our_name(model, name): value.squeeze(-1) if value.ndim == 3 else value
        for name, value in state.items()
    }
