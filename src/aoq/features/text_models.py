"""Uses any text model of Hugging Face's transformers as a frozen text tower, by hub name or folder.

A text tower reads word pieces and returns one vector of the whole text, or the states of its
tokens. Its own vector is what its dual encoder compares with images, where it has one; the pooling
that sentence-transformers saved with it; else its pooler's output. `TextSource` states all that its
output depends on, and is saved with every model that goes on from it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from aoq.errors import UserError
from aoq.features.blocks import BeforeBlock, as_half, require_blocks, vector_of
from aoq.features.outputs import Output, OutputKind
from aoq.features.pretrained import (
    TEXT,
    describe_network,
    has_text_tower,
    load_half,
    read_beside,
    unusable,
)
from aoq.features.tokenizers import PieceTokenizer
from aoq.features.vision_models import hash_network, in_precision
from aoq.parsing import shown
from aoq.types import Texts

_POOLING = "1_Pooling/config.json"  # of sentence-transformers
_MODES: dict[str, OutputKind] = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
}


@dataclass(frozen=True)
class TextSource:
    """How texts are turned into what a model goes on from, so that others are treated equally."""

    tower: str = field(compare=False)
    "A text model of transformers: its name on the hub, or its folder, which may move."
    id: str
    "Hash of network, weights, tokenizer, prompt and output: the key of what is kept of texts."
    output: str
    "The network's own vector, another one, states that reach a block, or tokens (`Output`)."
    prompt: str = "{}"

    @classmethod
    def of_tower(cls, name: str, output: Output, *, prompt: str = "{}") -> Self:
        """Describe what a tower makes of texts with its current weights."""
        if Path(name).is_dir():
            name = str(Path(name).resolve())
        return cls(name, load_text_model(name, output, prompt).id, str(output), prompt)

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Self:
        """Read what `as_dict` wrote; raise a `UserError` for anything else."""
        names = ("tower", "id", "output", "prompt")
        if set(fields) != set(names) or not all(isinstance(fields[name], str) for name in names):
            raise UserError(f"{shown(fields)} is not a source of texts; expected {names}.")
        Output.parse(fields["output"])
        return cls(**fields)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def reads_tokens(self) -> bool:
        """Whether nothing of the tower is frozen, so that a model goes on from tokens."""
        return Output.parse(self.output).kind == "input"

    def load(self) -> TextModel:
        """Load the tower; raise a `UserError` if it has changed."""
        model = load_text_model(self.tower, Output.parse(self.output), self.prompt)
        if model.id != self.id:
            raise UserError(
                f"{self.tower} is not the text tower of this model: it is {model.id}; expected "
                f"{self.id}; restore its weights and its tokenizer, or train again."
            )
        return model


class TextModel:
    """A text model, or the text half of an image-text model, with its tokenizer."""

    def __init__(self, name: str, output: Output, prompt: str = "{}") -> None:
        self.name = name
        self.output = output
        self.tokenizer = PieceTokenizer(name, prompt=prompt)
        network, missing = _load(name, output)
        self._reading = own_reading(name, output)
        self._require_fit(name, network)
        self.id = f"{Path(name).name}-{self._digest(network, missing)}-{output}"
        self.network: nn.Module | None = network
        if output.kind == "input":
            self.network = None
        elif output.kind == "states":
            require_blocks(name, network, TEXT, at_least=output.block)
            self.network = BeforeBlock(network, output.block)
        self.width = self._read_nothing(name)

    def __call__(self, texts: Texts) -> Tensor | None:
        """Return a vector of each text (B, F), the states of its tokens (B, T, F), or nothing."""
        if self.network is None:
            return None
        mask = texts.mask
        with torch.no_grad(), in_precision(self.output):
            seen = self.network(input_ids=texts.tokens, attention_mask=mask.long())
            rows = seen if isinstance(seen, Tensor) and seen.ndim == 3 else None
            if rows is None:
                rows = vector_of(seen, self._reading, mask)
        return rows.float()

    def _digest(self, network: nn.Module, missing: set[str]) -> str:
        """Hash the whole network, also what a model goes on from, and the tokenizer."""
        described = [str(self._reading), self.tokenizer.digest, describe_network(network)]
        return hash_network(described, network, without=missing)

    def _require_fit(self, name: str, network: nn.Module) -> None:
        """Refuse a tokenizer with more pieces than the network has vectors for."""
        known = max(table.num_embeddings for table in _embeddings(network))
        if len(self.tokenizer) > known:
            reason = f"its tokenizer has {len(self.tokenizer):,} pieces and it knows {known:,}"
            raise unusable(name, reason, TEXT)

    def _read_nothing(self, name: str) -> int:
        """Read a text, to check the output and find its width; 0 if there is no output."""
        try:
            ids = torch.tensor([self.tokenizer.encode("a photo")])
            rows = self(Texts(ids, torch.tensor([ids.shape[1]])))
            if rows is not None and rows.ndim == 3:
                as_half(rows, name, TEXT)
        except UserError:
            raise
        except Exception as error:  # models raise almost anything
            raise unusable(name, f"it cannot read a text: {error}", TEXT) from error
        return 0 if rows is None else rows.shape[-1]


@lru_cache(maxsize=4)
def load_text_model(name: str, output: Output, prompt: str = "{}") -> TextModel:
    """Load a text tower with its weights; it stays in memory for later calls."""
    return TextModel(name, output, prompt)


def own_reading(name: str, output: Output) -> Output:
    """Return how a tower's own vector is read: as sentence-transformers saved it, if it did."""
    if output.kind != "pooled" or has_text_tower(name):  # half of a dual encoder
        return output
    modes = read_beside(name, _POOLING)
    for mode, kind in _MODES.items():
        if modes is not None and modes.get(mode):
            return replace(output, kind=kind)
    return output


def _load(name: str, output: Output) -> tuple[nn.Module, set[str]]:
    """Load a text tower, and the names of weights that are missing in its files."""
    reading = own_reading(name, output)
    model, missing = load_half(name, "text", projected=True, role=TEXT)
    needed = [key for key in sorted(missing) if reading.kind == "pooled" or "pooler" not in key]
    if needed:
        raise unusable(name, f"its weights are incomplete, {needed[0]} is missing", TEXT)
    if not _embeddings(model):
        raise unusable(name, f"it is a {type(model).__name__}, without a text tower", TEXT)
    return model, missing


def _embeddings(network: nn.Module) -> list[nn.Embedding]:
    """Return the tables of pieces, and of positions and types, which are smaller."""
    return [part for part in network.modules() if isinstance(part, nn.Embedding)]
