"""A data set, encoded once: what mining, evaluation and search score.

Word encodings of a whole data set are kept without padding, because one long caption would make
every other one as long; rows are padded when they are taken out, to the longest among them.
"""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from aoq.data.collate import Collator
from aoq.errors import UserError
from aoq.progress import progress_bar
from aoq.scoring.protocol import TrainableModel
from aoq.types import Encoding, Ids

E = TypeVar("E")
E_co = TypeVar("E_co", covariant=True)


class Rows(Sized, Protocol[E_co]):
    """Encoded images or texts, of which some can be taken out to be scored."""

    def __getitem__(self, rows: slice | Tensor) -> E_co: ...

    @property
    def nbytes(self) -> int:
        """Memory of all of them."""
        ...

    @property
    def row_nbytes(self) -> int:
        """Memory of one, taken out, at the most."""
        ...


@dataclass(frozen=True)
class EncodedDataset(Generic[E]):
    """Every image and text of a data set, encoded."""

    images: Rows[E]
    texts: Rows[E]
    device: str | torch.device = "cpu"


@dataclass(frozen=True)
class PackedEncoding:
    """Vectors of the words of many texts, one after the other; text i has `lengths[i]` of them."""

    vectors: Tensor  # (words of all texts, D)
    starts: Tensor  # (M,)
    lengths: Tensor  # (M,)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, rows: slice | Tensor) -> Encoding:
        starts, lengths = self.starts[rows], self.lengths[rows]
        positions = torch.arange(int(lengths.max()), device=lengths.device)
        mask = positions < lengths[:, None]
        places = (starts[:, None] + positions).masked_fill(~mask, 0)
        return Encoding(self.vectors[places].masked_fill_(~mask[..., None], 0.0), mask)

    @property
    def nbytes(self) -> int:
        return self.vectors.nbytes + self.starts.nbytes + self.lengths.nbytes

    @property
    def row_nbytes(self) -> int:
        return int(self.lengths.max()) * self.vectors[0].nbytes


def encode_dataset(
    model: TrainableModel, collator: Collator, *, batch_size: int = 128, description: str = "encode"
) -> EncodedDataset[Encoding]:
    """Encode every image and text once, in evaluation mode; texts of similar length together."""
    n_images, n_texts = len(collator.dataset), collator.dataset.n_texts
    by_length = np.argsort(collator.text_lengths, kind="stable")
    images, texts = [], []
    was_training = model.training
    model.eval()
    with (
        torch.no_grad(),
        progress_bar(description, total=n_images + n_texts, unit="items") as update,
    ):
        for start in range(0, n_images, batch_size):
            ids = np.arange(start, min(start + batch_size, n_images))
            images.append(model.encode_images(collator.regions(ids)).without_context())
            update(advance=len(ids))
        for start in range(0, n_texts, batch_size):
            ids = by_length[start : start + batch_size]
            texts.append(model.encode_texts(collator.texts(ids)).without_context())
            update(advance=len(ids))
    model.train(was_training)
    source = f"{collator.dataset.name} ({collator.dataset.split})"
    _require_finite(images, np.arange(n_images), what=f"{source}, image")
    _require_finite(texts, by_length, what=f"{source}, caption")
    return EncodedDataset(
        images=concatenate(images),
        texts=concatenate(texts, order=torch.from_numpy(by_length)),
        device=collator.device,
    )


def concatenate(parts: list[Encoding], *, order: Tensor | None = None) -> Rows[Encoding]:
    """All parts as one; `order` says which id each row has, if not its place.

    The list is emptied on the way, so that nothing is held twice.
    """
    order = torch.arange(sum(map(len, parts))) if order is None else order
    masks = [part.mask for part in parts if part.mask is not None]
    vectors = parts[0].vectors
    if not masks:
        whole, places = vectors.new_empty(len(order), *vectors.shape[1:]), order
    else:
        lengths = torch.cat([mask.sum(dim=1) for mask in masks])
        n_words = int(lengths.sum())
        whole, places = vectors.new_empty(n_words, vectors.shape[2]), torch.arange(n_words)
    start = 0
    while parts:
        part = parts.pop(0)
        rows = part.vectors if part.mask is None else part.vectors[part.mask]
        whole[places[start : start + len(rows)]] = rows
        start += len(rows)
    if not masks:
        return Encoding(whole)
    starts, by_id = lengths.cumsum(dim=0) - lengths, order.argsort()
    return PackedEncoding(whole, starts[by_id], lengths[by_id])


def _require_finite(parts: list[Encoding], ids: Ids, *, what: str) -> None:
    finite = torch.cat([part.vectors.flatten(1).isfinite().all(dim=1) for part in parts])
    if not finite.all():
        first = int(ids[~finite.cpu().numpy()].min())
        raise UserError(
            f"{what} {first}: its encoding is not finite; look for bad features with "
            "`aoq data check`, or for a model that diverged."
        )
