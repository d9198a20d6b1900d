"""The vectors of a store as rows that are numbered through an index."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from aoq.retrieval.stores.protocol import VectorStore
from aoq.types import Encoding, Ids


@dataclass(frozen=True, eq=False)
class StoreRows:
    """Encoded images or texts in a store; memory holds only the selected rows."""

    store: VectorStore
    keys: Ids  # (N,)
    width: int
    device: str | torch.device = "cpu"

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, rows: slice | Tensor) -> Encoding:
        selected = rows if isinstance(rows, slice) else rows.cpu().numpy()
        return Encoding(torch.from_numpy(self.store.vectors(self.keys[selected])).to(self.device))

    @property
    def nbytes(self) -> int:
        return self.keys.nbytes

    @property
    def row_nbytes(self) -> int:
        return 4 * self.width
