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

from aoq.distributed import ALONE, Processes
from aoq.errors import UserError
from aoq.features.blocks import as_half
from aoq.features.outputs import Output
from aoq.features.pretrained import TEXT
from aoq.features.store import Array, keep_array, open_array
from aoq.features.text_models import TextModel, TextSource
from aoq.progress import progress_bar, track
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


@dataclass(frozen=True, eq=False)
class _Piece:
    """Texts that are computed together, and where what the tower makes of them is kept."""

    texts: Sequence[Ids]
    place: Path
    rows: int

    def open(self) -> Array | None:
        kept = open_array(self.place, mapped=True)
        return kept if kept is not None and kept.ndim == 2 and len(kept) == self.rows else None


def freeze_texts(
    tokens: Sequence[Ids], source: TextSource, *, pad: int, processes: Processes = ALONE
) -> FrozenTexts:
    """Compute what is not in the cache yet; `tokens` are the ids of each text.

    Several processes compute a share each. Afterwards every process computes what is still
    missing, as on machines whose caches differ.
    """
    folder = cache_folder() / "texts" / source.id
    is_vector = Output.parse(source.output).is_vector
    pieces = []
    for start in range(0, len(tokens), _PIECE):
        texts = tokens[start : start + _PIECE]
        rows = len(texts) if is_vector else sum(map(len, texts))
        pieces.append(_Piece(texts, folder / f"{_hash(texts)}.npy", rows))
    if processes.size > 1:
        _open_or_compute(pieces[processes.rank :: processes.size], source, pad=pad)
        processes.barrier()
    opened = _open_or_compute(pieces, source, pad=pad)
    if is_vector:
        return FrozenVectors(np.concatenate(opened))
    ends = [np.cumsum([len(words) for words in piece.texts]) for piece in pieces]
    lengths = np.array([len(words) for words in tokens], dtype=np.int64)
    return FrozenStates(opened, np.concatenate(ends) - lengths, lengths)


def _open_or_compute(pieces: Sequence[_Piece], source: TextSource, *, pad: int) -> list[Array]:
    kept = track(map(_Piece.open, pieces), "Checking texts", total=len(pieces), unit="pieces")
    opened = dict(zip(pieces, kept, strict=True))
    missing = [piece for piece, rows in opened.items() if rows is None]
    if missing:
        model = source.load()
        total = sum(len(piece.texts) for piece in missing)
        with progress_bar("Reading texts", total=total, unit="texts") as update:
            for piece in missing:
                keep_array(piece.place, _compute(model, piece.texts, pad=pad))
                opened[piece] = piece.open()
                update(advance=len(piece.texts))
    for piece, rows in opened.items():
        if rows is None:
            raise UserError(f"{piece.place} in the cache is damaged or gone; start again.")
    return [rows for rows in opened.values() if rows is not None]


def _hash(piece: Sequence[Ids]) -> str:
    lengths = np.array([len(words) for words in piece], dtype=np.int64)
    return hash_parts(lengths.tobytes(), *(words.tobytes() for words in piece))


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
        states = as_half(seen, model.name, TEXT).numpy()
        return [states[row, :length] for row, length in enumerate(lengths.tolist())]

    found: dict[int, Array] = {}
    with worker_threads() as workers:
        for batch, rows in zip(batches, workers.map(compute, batches), strict=True):
            found |= zip(batch.tolist(), rows, strict=True)
    return np.concatenate([found[number] for number in range(len(piece))])
