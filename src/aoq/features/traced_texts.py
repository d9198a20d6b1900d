"""Text towers as a search loads them: traced once, so that transformers need not be imported.

Importing transformers and building a network takes three seconds, reading a sentence milliseconds.
The tower is therefore recorded by torch's tracer and kept in the cache with its tokenizer, if it
then computes the same for texts of other lengths; torch reads that alone. (A program of
torch.export takes longer to import what reads it than transformers does.) Its weights are in a file
of their own that is mapped: torch would copy and check those of a program, half of which, the
vectors of words that do not occur, are never needed. What is kept belongs to the files that the
tower was read from, by their sizes and times, and is not used once they differ.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from aoq.errors import UserError
from aoq.features.outputs import Output
from aoq.features.pretrained import quiet_transformers
from aoq.features.text_models import TextModel, TextSource
from aoq.features.tokenizers import PieceTokenizer
from aoq.storage import (
    atomic_folder,
    cache_folder,
    hash_parts,
    read_json,
    remove_folder,
    write_json,
)
from aoq.types import Texts

_PROGRAM, _WEIGHTS = "program.pt", "weights.safetensors"
_TOKENIZER, _ABOUT = "tokenizer.json", "about.json"
_TRIED = ("a", "A photo of a red ball!", "two trees above a dog in the snow, and çà là", "x " * 200)
_AGREED = 1e-5


@dataclass(frozen=True)
class TracedTextSource(TextSource):
    """Loads the traced tower, if it is kept, else the tower itself."""

    def load(self) -> TextModel:
        traced = load_traced(self)
        return super().load() if traced is None else traced


def traced(source: TextSource) -> TextSource:
    """Return what loads the same tower faster."""
    return TracedTextSource(**vars(source))


class TracedTextModel(TextModel):
    """A text tower whose network was recorded."""

    def __init__(self, folder: Path, about: dict[str, Any], output: Output) -> None:
        self.output = output
        self.id = about["id"]
        self.width = about["width"]
        self.tokenizer = PieceTokenizer.of(
            FastPieces(folder / _TOKENIZER, about["ids"]), **about["tokenizer"]
        )
        with _quiet():
            self.network = torch.jit.load(folder / _PROGRAM)
        _set_weights(self.network, load_file(folder / _WEIGHTS))

    def __call__(self, texts: Texts) -> Tensor | None:
        assert self.network is not None
        # Optimizing the program takes longer than reading the few texts of a search.
        plain = torch.jit.optimized_execution(False)  # type: ignore[attr-defined]
        with torch.no_grad(), plain:
            rows: Tensor = self.network(texts.tokens, texts.lengths)
        return rows


class FastPieces:
    """A fast tokenizer of transformers without transformers: what `PieceTokenizer` asks of it."""

    is_fast = True

    def __init__(self, path: Path, ids: dict[str, Any]) -> None:
        from tokenizers import Tokenizer

        self.backend_tokenizer: Any = Tokenizer.from_file(str(path))
        self.pad_token_id = ids["pad"]
        self.unk_token_id = ids["unknown"]
        self.eos_token_id = ids["end"]
        self._pad = ids["pad_token"]

    def __len__(self) -> int:
        return int(self.backend_tokenizer.get_vocab_size(with_added_tokens=True))

    def __call__(
        self,
        text: str,
        *,
        truncation: bool,
        max_length: int,
        padding: str | bool,
        return_offsets_mapping: bool = False,
    ) -> dict[str, list[Any]]:
        self.backend_tokenizer.enable_truncation(max_length)
        if padding == "max_length":
            self.backend_tokenizer.enable_padding(
                length=max_length, pad_id=self.pad_token_id, pad_token=self._pad
            )
        else:
            self.backend_tokenizer.no_padding()
        found = self.backend_tokenizer.encode(text)
        return {"input_ids": found.ids, "offset_mapping": found.offsets}


@lru_cache(maxsize=4)
def load_traced(source: TextSource) -> TextModel | None:
    """Load the traced tower of a source; None if it is not kept, or its files have changed."""
    folder = _place(source)
    with suppress(UserError, OSError, ValueError, KeyError, TypeError, RuntimeError):
        about = read_json(folder / _ABOUT)
        is_whole = about["weights"] == _state_of(folder / _WEIGHTS)
        if is_whole and about["id"] == source.id and about["files"] == _files_of(source.tower):
            return TracedTextModel(folder, about, Output.parse(source.output))
    return None


def keep_traced(source: TextSource) -> bool:
    """Trace a tower that makes vectors and keep it, unless it is kept; return whether it is."""
    output = Output.parse(source.output)
    if not output.is_vector or isinstance(load_traced(source), TracedTextModel):
        return output.is_vector
    model, files = source.load(), _files_of(source.tower)
    tokenizer = model.tokenizer
    if not files or not tokenizer.is_fast or model.network is None:
        return False
    about = {
        "id": model.id,
        "width": model.width,
        "files": files,
        "ids": tokenizer.special_ids,
        "tokenizer": tokenizer.settings,
    }
    with suppress(OSError, UserError), _replacing(_place(source)) as folder:
        with _quiet():
            _save_program(_trace(model), folder)
        about["weights"] = _state_of(folder / _WEIGHTS)
        tokenizer.save_pieces(folder / _TOKENIZER)
        write_json(folder / _ABOUT, about)
        if not _agree(model, TracedTextModel(folder, about, output)):
            raise UserError("it computes something else")  # leaves nothing behind
        return True
    return False


@contextmanager
def _replacing(place: Path) -> Iterator[Path]:
    """Yield a folder to fill, which takes the place of one that is out of date."""
    if place.exists():
        remove_folder(place)
    with atomic_folder(place, what="text tower") as folder:
        yield folder


def _trace(model: TextModel) -> Any:
    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = model.network

        def forward(self, tokens: Tensor, lengths: Tensor) -> Any:
            return model(Texts(tokens, lengths))

    example = torch.tensor([model.tokenizer.encode(_TRIED[1])])
    with torch.no_grad(), quiet_transformers():
        return torch.jit.trace(
            Reader().eval(), (example, torch.tensor([example.shape[1]])), check_trace=False
        )


def _save_program(program: Any, folder: Path) -> None:
    """Write a program and its weights to files of their own."""
    weights = {name: tensor.clone() for name, tensor in program.state_dict().items()}
    save_file(weights, folder / _WEIGHTS)
    _set_weights(program, {name: tensor.new_empty(0) for name, tensor in weights.items()})
    torch.jit.save(program, folder / _PROGRAM)
    _set_weights(program, weights)


def _set_weights(program: Any, weights: Mapping[str, Tensor]) -> None:
    for name, tensor in program.state_dict(keep_vars=True).items():
        tensor.data = weights[name]


def _agree(model: TextModel, other: TextModel) -> bool:
    """Compare ids and vectors of texts of different lengths."""
    for text in _TRIED:
        ids = model.tokenizer.encode(text)
        if ids != other.tokenizer.encode(text):
            return False
        texts = Texts(torch.tensor([ids]), torch.tensor([len(ids)]))
        ours, theirs = model(texts), other(texts)
        if ours is None or theirs is None or not torch.allclose(ours, theirs, atol=_AGREED):
            return False
    return True


def _place(source: TextSource) -> Path:
    described = json.dumps([source.id, source.prompt, source.tower])
    return cache_folder() / "towers" / hash_parts(described.encode())[:32]


def _files_of(tower: str) -> dict[str, list[int]]:
    """Describe the files of a tower by their sizes and times; empty if they are not known."""
    folder = Path(tower)
    if not folder.is_dir():
        folder = _snapshot_of(tower)
    found = {}
    for path in sorted(folder.rglob("*")) if folder.is_dir() else ():
        if path.is_file():
            found[str(path)] = _state_of(path)
    return found


def _state_of(path: Path) -> list[int]:
    state = path.stat()
    return [state.st_size, state.st_mtime_ns]


def _snapshot_of(name: str) -> Path:
    """Return where the cache of Hugging Face holds the files of a model."""
    from huggingface_hub import try_to_load_from_cache

    config = try_to_load_from_cache(name, "config.json")
    return Path(config).parent if isinstance(config, str) else Path()


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the tracer's warnings: of its age, and of lengths, which are compared afterwards."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
