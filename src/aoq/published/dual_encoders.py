"""Makes a run of a pretrained dual encoder: a CLIP, a SigLIP, or another one of transformers.

The run names the model and holds the hash of its weights, preprocessing and tokenizer, so that
another model under the same name is refused. Nothing is trained and nothing copied, except from a
folder of open_clip, whose weights have other names (`aoq.published.open_clip`). What a run computes
is compared with what the model computes itself before the run is written.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity

from aoq.config import ModelConfig, Recipe
from aoq.data.inputs import Inputs
from aoq.data.splits import splits_of
from aoq.features.pretrained import DUAL, load_dual_encoder, unusable
from aoq.features.regions import RegionSource
from aoq.features.text_models import TextSource
from aoq.features.vision_models import VisionModel
from aoq.models import build_model, find_inputs
from aoq.progress import EventLog, say
from aoq.published.importer import require_free
from aoq.published.open_clip import find_open_clip, write_as_clip
from aoq.recipes import save_recipe
from aoq.runs.checkpoint import save_weights
from aoq.runs.directory import RunDirectory
from aoq.scoring.logits import Logits
from aoq.storage import replacing_folder, write_json
from aoq.types import Texts

_EXAMPLE = "a photo of a dog"
_AGREED = 0.9999  # cosine of our vector and the model's own


@dataclass(frozen=True)
class _Opened:
    """A dual encoder as the two frozen towers of a run."""

    config: ModelConfig
    images: RegionSource
    texts: TextSource
    logits: Logits | None


def import_dual_encoder(
    out: Path,
    name: str,
    *,
    prompt: str = "{}",
    data: Path | None = None,
    force: bool = False,
) -> RunDirectory:
    """Write a run of a pretrained model, by its name on the hub or its folder, into `out`.

    `prompt` is a sentence with {} that every text is put into; `data` is the data set that
    commands use if they are not given another one.
    """
    reads = [path for path in (Path(name), data) if path is not None and path.exists()]
    check = partial(require_free, out, reads=reads, force=force)
    check()
    if data is not None:
        splits_of(data)
    ModelConfig(prompt=prompt)  # refuses a prompt without {} before anything is loaded
    with replacing_folder(out, what="run", check=check) as temporary:
        run = RunDirectory(temporary)
        source = name
        found = find_open_clip(name)
        if found is not None:
            write_as_clip(found, run.pretrained)
            source = str(run.pretrained)
        opened = _open(source, shown_as=name, prompt=prompt)
        _fill(run, opened, place=out, data=data)
        origin = {
            "imported": {"model": name, "images": opened.images.id, "texts": opened.texts.id},
            "logits": None if opened.logits is None else asdict(opened.logits),
        }
        write_json(run.origin, origin)
        EventLog(run.events).write("imported", model=name)
    say(_described(name, opened))
    return RunDirectory(out)


def _open(name: str, *, shown_as: str, prompt: str) -> _Opened:
    """Open the two towers, and check that they compute what the whole model computes."""
    network, missing = load_dual_encoder(name)
    if missing:
        reason = f"its weights are incomplete, {min(missing)} is missing"
        raise unusable(shown_as, reason, DUAL)
    config = ModelConfig(name="towers", image=name, head="none", prompt=prompt)
    inputs = find_inputs(config)
    assert inputs.images is not None
    assert inputs.texts is not None
    _require_same_vectors(shown_as, network, inputs)
    return _Opened(config, inputs.images, inputs.texts, logits_of(network))


def logits_of(network: nn.Module) -> Logits | None:
    """Return what a dual encoder makes of cosines, if it has learned that."""
    scale, bias = (getattr(network, name, None) for name in ("logit_scale", "logit_bias"))
    if not isinstance(scale, Tensor):
        return None
    return Logits(scale.exp().item(), bias.item() if isinstance(bias, Tensor) else None)


def _require_same_vectors(name: str, network: nn.Module, inputs: Inputs) -> None:
    """Compare a picture and a text as the run encodes them with the model's own comparison."""
    from PIL import Image

    assert inputs.images is not None
    assert inputs.texts is not None
    vision, text = cast("VisionModel", inputs.images.load()), inputs.texts.load()
    noise = np.asarray(vision.canvas.fill(Image.effect_noise((96, 64), 80).convert("RGB")))
    tokens = torch.tensor([text.tokenizer.encode(_EXAMPLE)])
    texts = Texts(tokens, torch.tensor([tokens.shape[1]]))
    own_text = text(texts)
    assert own_text is not None
    ours = torch.from_numpy(vision([noise])[0]), own_text
    seen = {**vision.prepare([noise]), "input_ids": tokens, "attention_mask": texts.mask.long()}
    try:
        with torch.no_grad():
            compared: Any = network(**seen)
        theirs = compared.image_embeds, compared.text_embeds
        found = [cosine_similarity(a, b).item() for a, b in zip(ours, theirs, strict=True)]
    except Exception as error:  # models raise almost anything
        raise unusable(name, f"it cannot compare a picture and a text: {error}", DUAL) from error
    if min(found) < _AGREED:
        kind = type(network).__name__
        raise unusable(name, f"a {kind} compares other vectors than those of its towers", DUAL)


def _fill(run: RunDirectory, opened: _Opened, *, place: Path, data: Path | None) -> None:
    """Write the files that every run has; `place` is where it will be."""
    inputs = Inputs(opened.images, opened.texts)
    config = opened.config
    if run.pretrained.is_dir():
        config = ModelConfig(**{**vars(config), "image": str(RunDirectory(place).pretrained)})
        inputs = inputs.of_towers(RunDirectory(place).pretrained.absolute())
    recipe = Recipe(data="" if data is None else str(data), rounds="one", model=config).resolved()
    save_recipe(recipe, run.config)
    write_json(run.inputs, inputs.as_dict())
    width = opened.images.load().width
    text = opened.texts.load()
    model = build_model(
        opened.config,
        feature_width=width,
        vocabulary_size=len(text.tokenizer),
        text_width=text.width,
    )
    save_weights(run.model, model, feature_width=width)


def _described(name: str, opened: _Opened) -> str:
    text = opened.texts.load()
    prompt = "" if opened.config.prompt == "{}" else f", as {opened.config.prompt!r}"
    return (
        f"{name}: one vector of width {text.width} a photo and a text; {len(text.tokenizer):,} "
        f"word pieces, texts of up to {text.tokenizer.max_length}{prompt}"
    )
