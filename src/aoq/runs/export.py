"""Saves a trained dual encoder for those who do not use aoq.

The folder is a plain one of transformers or of sentence-transformers, with the vectors of the run:
it is loaded and compared with the run before it appears. What it cannot express is refused.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import torch

from aoq.config import RoundName
from aoq.errors import UserError, require_packages
from aoq.features.outputs import Output
from aoq.features.pretrained import quiet_transformers
from aoq.features.regions import PictureReader
from aoq.folders import written_folder
from aoq.models.tower_weights import whole_towers
from aoq.models.towers import TowerPlan, Towers
from aoq.progress import warn
from aoq.runs.best_round import best_round
from aoq.runs.checkpoint import TrainedRun, load_run
from aoq.runs.plain_models import (
    DualEncoder,
    Vectors,
    read_by_sentence_transformers,
    read_by_transformers,
    save_for_sentence_transformers,
    save_for_transformers,
)

Format = Literal["transformers", "sentence-transformers"]
_TEXTS = ("A dog, in the snow!", "two children play with a red ball on the left of a house")
_ROUNDED = {"float32": 5e-3, "bfloat16": 5e-2}  # what is kept of photos, by its precision


class _Read(Protocol):
    def __call__(
        self, folder: Path, texts: tuple[str, ...], pictures: list[Any], *, prompt: str
    ) -> Vectors: ...


@dataclass(frozen=True)
class _Library:
    """How a library saves and reads a dual encoder."""

    save: Callable[[DualEncoder, Path], None]
    read: _Read


_LIBRARIES: dict[Format, _Library] = {
    "transformers": _Library(save_for_transformers, read_by_transformers),
    "sentence-transformers": _Library(
        save_for_sentence_transformers, read_by_sentence_transformers
    ),
}


def export_run(
    run: Path | str,
    out: Path | str,
    *,
    format: Format = "transformers",  # noqa: A002
    round: RoundName | None = None,  # noqa: A002
    force: bool = False,
) -> Path:
    """Save the best round of a run, or the one that is named, as a folder of another library."""
    require_packages(format.replace("-", "_"), extra="hub")
    path, out, library = best_round(run, round).path, Path(out), _LIBRARIES[format]
    written = written_folder(out, what="exported model", force=force, sources=[path])
    with written as folder, quiet_transformers():
        trained = load_run(path)
        encoder = _encoder_of(trained, path)
        library.save(encoder, folder)
        _compare(trained, folder, library, encoder.prompt)
    if format == "transformers" and encoder.prompt != "{}":
        warn(f"put texts into {encoder.prompt!r} before the tokenizer, as the run does.")
    return out


def _encoder_of(trained: TrainedRun, run: Path) -> DualEncoder:
    model, config = trained.model, trained.recipe.model
    if not isinstance(model, Towers):
        raise UserError(
            f"{run} holds a {config.name}, which no other library has; only towers can be exported,"
            " as `aoq run towers` trains them: push this run instead (`aoq push`)."
        )
    if "generalised" in (config.image_pooling, config.text_pooling):
        raise UserError(
            f"{run} pools by what it has learned of ranks (generalised), which no other library "
            "has; train with --model.image-pooling and --model.text-pooling own, cls or mean."
        )
    images, texts = trained.inputs.images, trained.inputs.texts
    assert images is not None
    assert texts is not None
    config = replace(config, image=images.backbone, text=texts.tower)
    plans = TowerPlan.of(config, "vision"), TowerPlan.of(config, "text")
    image, text = whole_towers(model, plans)
    return DualEncoder(image, text, model.image_head, model.text_head, config.prompt)


def _compare(trained: TrainedRun, folder: Path, library: _Library, prompt: str) -> None:
    """Refuse a folder whose vectors are not those of the run."""
    assert trained.inputs.images is not None
    picture = _picture()
    with torch.no_grad():
        ours = _vectors_of(trained, picture)
    try:
        theirs = library.read(folder, _TEXTS, [picture], prompt=prompt)
    except Exception as error:  # models raise almost anything
        raise UserError(f"this run cannot be read by another library ({error}).") from error
    kept = Output.parse(trained.inputs.images.output)
    is_rounded = kept.kind == "states" or kept.precision != "float32"
    allowed = {"texts": 1e-4, "photos": _ROUNDED[kept.precision] if is_rounded else 1e-4}
    for what, tolerance in allowed.items():
        own, read = getattr(ours, what), getattr(theirs, what)
        if own.shape != read.shape or not torch.allclose(own, read, atol=tolerance, rtol=0):
            raise UserError(
                f"the vectors of {what} are not those of the run when the folder is read again, so "
                "it is not kept: this tower does more than the library knows; try the other "
                "--format, or train with another pooling."
            )


def _vectors_of(trained: TrainedRun, picture: Any) -> Vectors:
    """Encode the example texts and a picture by the run."""
    assert trained.inputs.images is not None
    content = io.BytesIO()
    picture.save(content, format="PNG")
    regions = PictureReader(trained.inputs.images).regions(content.getvalue())
    model = trained.model
    by_picture = model.encode_images(torch.from_numpy(regions[None]).float()).vectors
    return Vectors(model.encode_texts(trained.read_texts(_TEXTS)).vectors, by_picture)


def _picture() -> Any:
    """Draw a picture that is not square, of colours at random."""
    from PIL import Image

    pixels = np.random.default_rng(0).integers(0, 256, size=(48, 64, 3), dtype=np.uint8)
    return Image.fromarray(pixels)
