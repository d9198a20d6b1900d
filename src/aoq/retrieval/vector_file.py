"""The vectors of texts or pictures in a file, for other programs.

`.safetensors` holds `vectors` and, as metadata, `ids` (a JSON list), `kind` (images or texts) and
the `model`'s hash. An embedding model makes one vector each, (N, D). A model with cross attention
makes one a region, (N, R, D), or one a word, all texts one after the other, (words, D); `lengths`
(N,) then says how many belong to each text, the marks of its start and end among them. `.npy` holds
the vectors alone, and a `.json` file beside it the ids.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors.torch import save_file

from aoq.errors import UserError, raise_problems
from aoq.parsing import read_lines
from aoq.progress import progress_bar, warn
from aoq.retrieval.encoder import QueryEncoder, ReadText
from aoq.retrieval.photos import read_photos
from aoq.scoring.cross_attention import CrossAttention
from aoq.scoring.encoded import Modality, PackedEncoding, encode_batches, encode_range
from aoq.storage import atomic_file, write_array, write_json
from aoq.types import Encoding

ENDINGS = (".npy", ".safetensors")


@dataclass(frozen=True)
class VectorFile:
    """Vectors with the ids they belong to."""

    kind: Modality
    ids: tuple[str, ...]
    encoded: Encoding | PackedEncoding
    model_hash: str

    def save(self, path: Path) -> None:
        """Write the file in the format of its ending."""
        if isinstance(self.encoded, PackedEncoding) and path.suffix == ".npy":
            raise UserError(
                f"{path} cannot hold texts that have a vector a word and so differ in length; name "
                "a .safetensors file."
            )
        vectors = self.encoded.vectors.cpu()
        if path.suffix == ".npy":
            write_json(_ids_file(path), self.ids)
            write_array(path, vectors.numpy())
            return
        tensors = {"vectors": vectors.contiguous()}
        if isinstance(self.encoded, PackedEncoding):
            tensors["lengths"] = self.encoded.lengths.cpu()
        ids = json.dumps(self.ids, ensure_ascii=False)
        metadata = {"ids": ids, "kind": self.kind, "model": self.model_hash}
        with atomic_file(path) as temporary:
            save_file(tensors, temporary, metadata=metadata)


def files_of(path: Path) -> tuple[Path, ...]:
    """List the files that saving vectors to `path` writes."""
    return (path, _ids_file(path)) if path.suffix == ".npy" else (path,)


def _ids_file(path: Path) -> Path:
    return path.with_suffix(".json")


def encode_lines(encoder: QueryEncoder, file: Path) -> VectorFile:
    """Encode the texts of a file, one a line; the texts themselves are the ids."""
    lines = read_lines(file)
    if not lines:
        raise UserError(f"{file} is empty; expected a text a line.")
    raise_problems(
        [
            f"{file}, line {number}: it has no words; expected a text a line."
            for number, line in enumerate(lines, start=1)
            if not line
        ]
    )
    rows = [encoder.tokenizer.encode(line) for line in lines]
    read = [ReadText.of(line, encoder.tokenizer) for line in lines]
    unknown = [number for number, text in enumerate(read, start=1) if not any(text.known)]
    if unknown:
        warn(
            f"{file}: texts that are made of unknown words only: {len(unknown):,}, first line "
            f"{unknown[0]}; the model cannot tell them apart."
        )
    order = np.argsort([len(row) for row in rows], kind="stable")
    with progress_bar("encode", total=len(rows), unit="texts") as update:
        encoded = encode_batches(
            lambda batch: encoder.encode_texts([lines[row] for row in batch]),
            order,
            device=encoder.device,
            update=update,
            what=f"{file}, text",
        )
    return VectorFile("texts", tuple(lines), encoded, encoder.model_hash)


def encode_folder(encoder: QueryEncoder, folder: Path) -> VectorFile:
    """Encode the pictures below a folder; an id is the path there."""
    dataset = read_photos(folder, encoder.source).dataset()
    collator, ids = encoder.collator(dataset), slice(0, len(dataset))
    with progress_bar("encode", total=len(dataset), unit="images") as update:
        encoded = encode_range(
            encoder.model, collator, "images", ids, batch_size=128, update=update
        )
    return VectorFile("images", dataset.image_ids, encoded, encoder.model_hash)


def require_form(path: Path, encoder: QueryEncoder, kind: Modality) -> Path:
    """Return the path, if its format can hold what is to be written."""
    if path.suffix not in ENDINGS:
        raise UserError(f"{path} ends in neither {' nor '.join(ENDINGS)}; name it like that.")
    packed = kind == "texts" and isinstance(encoder.model, CrossAttention)
    if packed and path.suffix == ".npy":
        raise UserError(
            f"{path} cannot hold texts of {encoder.run}, which have a vector a word and so differ "
            "in length; name a .safetensors file."
        )
    return path
