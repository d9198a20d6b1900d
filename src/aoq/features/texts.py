"""What a frozen text tower makes of many texts: computed once, kept, and read as it is needed.

Texts are computed in pieces of a few thousand, each kept under the hash of its words' ids: an
interrupted run continues where it stopped, losing the piece under way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from aoq.errors import UserError
from aoq.features.outputs import Output
from aoq.features.store import Array, keep_array, open_array
from aoq.features.text_models import TextModel, TextSource
from aoq.progress import progress_bar
from aoq.storage import cache_folder, hash_parts
from aoq.threads import worker_threads
from aoq.types import Ids, Texts

_PIECE = 2_048  # texts
_BATCH = 32


@dataclass(frozen=True)
class FrozenVectors:
    """One vector of each text."""

    rows: Array  # (M, F)

    def __getitem__(self, ids: Ids) -> Tensor:
        return torch.from_numpy(self.rows[ids])


@dataclass(frozen=True)
class FrozenStates:
    """The states of each text's tokens, one after the other, on disk."""

    pieces: Sequence[Array]  # (tokens of the piece, F)
    starts: Ids  # of each text's states in its piece
    lengths: Ids

    def __getitem__(self, ids: Ids) -> Tensor:
        """Return the states of some texts, padded with zeros. (B, T, F)"""
        return pad_sequence([self._read(number) for number in ids.tolist()], batch_first=True)

    def _read(self, number: int) -> Tensor:
        piece, start = self.pieces[number // _PIECE], self.starts[number]
        return torch.from_numpy(piece[start : start + self.lengths[number]].astype(np.float32))


FrozenTexts = FrozenVectors | FrozenStates


def freeze_texts(tokens: Sequence[Ids], source: TextSource, *, pad: int) -> FrozenTexts:
    """Compute what is not in the cache yet; `tokens` are the ids of each text."""
    pieces = [tokens[start : start + _PIECE] for start in range(0, len(tokens), _PIECE)]
    folder = cache_folder() / "texts" / source.id
    places = [folder / f"{_hash(piece)}.npy" for piece in pieces]
    is_vector = Output.parse(source.output).is_vector
    rows = [len(piece) if is_vector else sum(map(len, piece)) for piece in pieces]
    missing = [number for number, place in enumerate(places) if _open(place, rows[number]) is None]
    if missing:
        model = source.load()
        total = sum(len(pieces[number]) for number in missing)
        with progress_bar("Reading texts", total=total, unit="texts") as update:
            for number in missing:
                keep_array(places[number], _compute(model, pieces[number], pad=pad))
                update(advance=len(pieces[number]))
    opened = [_require(place, count) for place, count in zip(places, rows, strict=True)]
    if is_vector:
        return FrozenVectors(np.concatenate(opened))
    ends = [np.cumsum([len(words) for words in piece]) for piece in pieces]
    lengths = np.array([len(words) for words in tokens], dtype=np.int64)
    return FrozenStates(opened, np.concatenate(ends) - lengths, lengths)


def _hash(piece: Sequence[Ids]) -> str:
    lengths = np.array([len(words) for words in piece], dtype=np.int64)
    return hash_parts(lengths.tobytes(), *(words.tobytes() for words in piece))


def _open(place: Path, rows: int) -> Array | None:
    kept = open_array(place, mapped=True)
    return kept if kept is not None and kept.ndim == 2 and len(kept) == rows else None


def _require(place: Path, rows: int) -> Array:
    kept = _open(place, rows)
    if kept is None:
        raise UserError(f"{place} in the cache is damaged or gone; start again.")
    return kept


def _compute(model: TextModel, piece: Sequence[Ids], *, pad: int) -> Array:
    """Compute the texts of a piece; those of similar length together."""
    order = np.argsort([len(words) for words in piece], kind="stable")
    batches = [order[start : start + _BATCH] for start in range(0, len(order), _BATCH)]

    def compute(batch: Ids) -> list[Array]:
        words = [torch.from_numpy(piece[number]) for number in batch]
        lengths = torch.tensor([len(ids) for ids in words])
        tokens = pad_sequence(words, batch_first=True, padding_value=pad)
        seen = model(Texts(tokens, lengths))
        assert seen is not None
        if seen.ndim == 2:
            return list(seen[:, None].numpy())
        states = seen.to(torch.float16).numpy()
        return [states[row, :length] for row, length in enumerate(lengths.tolist())]

    found: dict[int, Array] = {}
    with worker_threads() as workers:
        for batch, rows in zip(batches, workers.map(compute, batches), strict=True):
            found |= zip(batch.tolist(), rows, strict=True)
    return np.concatenate([found[number] for number in range(len(piece))])
