"""An encoded data set, the input of mining, evaluation and search.

Word encodings of a whole data set are stored without padding, because one long caption would make
all others as long; rows are padded when they are selected, to the longest among them.

Here everything stays in memory; `aoq.scoring.encoding_files` keeps larger data sets on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Generic, Literal, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from aoq.data.collate import Collator
from aoq.errors import UserError
from aoq.progress import progress_bar
from aoq.scoring.protocol import TrainableModel
from aoq.threads import worker_threads
from aoq.types import Encoding, Ids, Positives, require_count

E = TypeVar("E")
E_co = TypeVar("E_co", covariant=True)
Modality = Literal["images", "texts"]


class Rows(Sized, Protocol[E_co]):
    """Encoded images or texts, of which rows can be selected for scoring."""

    def __getitem__(self, rows: slice | Tensor) -> E_co: ...

    @property
    def nbytes(self) -> int:
        """Memory of all rows while none is selected."""
        ...

    @property
    def row_nbytes(self) -> int:
        """Maximum memory of a selected row."""
        ...


@dataclass(frozen=True)
class EncodedDataset(Generic[E]):
    """Every image and text of a data set, encoded."""

    images: Rows[E]
    texts: Rows[E]
    device: str | torch.device = "cpu"

    def require_fit(self, positives: Positives) -> None:
        """Raise a `UserError` if `positives` is about other numbers of images and texts."""
        found = len(self.images), len(self.texts)
        expected = positives.n_images, positives.n_texts
        if found != expected:
            raise UserError(
                f"{found[0]:,} images and {found[1]:,} texts are encoded, and positives is about "
                f"{expected[0]:,} and {expected[1]:,}; take both from the same split."
            )


@dataclass(frozen=True)
class PackedEncoding:
    """Word vectors of many texts, one after the other; text i has `lengths[i]` of them."""

    vectors: Tensor  # (words of all texts, D)
    lengths: Tensor  # (M,)

    @cached_property
    def starts(self) -> Tensor:
        """The index of each text's first word. (M,)"""
        return self.lengths.cumsum(dim=0) - self.lengths

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, rows: slice | Tensor) -> Encoding:
        places, mask = word_places(self.starts[rows], self.lengths[rows])
        vectors = self.vectors[places.masked_fill(~mask, 0)]
        return Encoding(vectors.masked_fill_(~mask[..., None], 0.0), mask)

    @property
    def nbytes(self) -> int:
        return self.vectors.nbytes + self.starts.nbytes + self.lengths.nbytes

    @property
    def row_nbytes(self) -> int:
        return int(self.lengths.max()) * self.vectors[0].nbytes


def word_places(starts: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Return the indices of the words of some texts, and the mask of valid ones. (B, T)"""
    positions = torch.arange(int(lengths.max()), device=lengths.device)
    return starts[:, None] + positions, positions < lengths[:, None]


def encode_dataset(
    model: TrainableModel, collator: Collator, *, batch_size: int = 128, description: str = "encode"
) -> EncodedDataset[Encoding]:
    """Encode every image and text once, in evaluation mode."""
    if not isinstance(collator, Collator):
        raise UserError(
            f"the data are a {type(collator).__name__}; expected a Collator, which reads batches: "
            "aoq.Collator(dataset, vocabulary)."
        )
    require_count("batch_size", batch_size)
    images, texts = slice(0, len(collator.dataset)), slice(0, collator.dataset.n_texts)
    total = images.stop + texts.stop
    with evaluation_mode(model), progress_bar(description, total=total, unit="items") as update:
        encode = partial(encode_range, model, collator, batch_size=batch_size, update=update)
        return EncodedDataset(
            images=encode("images", images), texts=encode("texts", texts), device=collator.device
        )


@contextmanager
def evaluation_mode(model: TrainableModel) -> Iterator[None]:
    """Use a model without dropout and gradients; restore its mode afterwards."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(was_training)


def encode_range(
    model: TrainableModel,
    collator: Collator,
    kind: Modality,
    ids: slice,
    *,
    batch_size: int,
    update: Callable[..., None],
) -> Encoding | PackedEncoding:
    """Encode consecutive images or texts; texts of similar length form batches.

    `update` receives the size of every batch, as the bars of `aoq.progress` expect.
    """
    order = np.arange(ids.start, ids.stop)
    if kind == "texts":
        order = order[np.argsort(collator.text_lengths[ids], kind="stable")]

    def encode(batch: Ids) -> Encoding:
        if kind == "images":
            part = model.encode_images(collator.regions(batch))
        else:
            part = model.encode_texts(collator.texts(batch))
        if not isinstance(part, Encoding) or len(part) != len(batch):
            is_encoding = isinstance(part, Encoding)
            found = f"{len(part)} rows" if is_encoding else f"a {type(part).__name__}"
            raise UserError(
                f"encode_{kind} returned {found} of {len(batch)} {kind}; expected an aoq.Encoding "
                "with a row for each."
            )
        return part

    dataset, noun = collator.dataset, "image" if kind == "images" else "caption"
    return encode_batches(
        encode,
        order,
        batch_size=batch_size,
        device=collator.device,
        update=update,
        what=f"{dataset.name} ({dataset.split}), {noun}",
    )


def encode_batches(
    encode: Callable[[Ids], Encoding],
    order: Ids,
    *,
    batch_size: int = 128,
    device: str | torch.device,
    update: Callable[..., None],
    what: str,
) -> Encoding | PackedEncoding:
    """Encode ids in the given order, and return the encodings in the order of the ids.

    Each thread encodes a batch by itself, so encodings do not depend on the number of threads.
    `what` names the ids in the error for an encoding that is not finite.
    """

    def encode_batch(batch: Ids) -> Encoding:
        with torch.no_grad():  # applies to one thread
            return encode(batch).without_context()

    batches = [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
    parts = []
    with worker_threads(device) as workers:
        for part in workers.map(encode_batch, batches):
            parts.append(part)
            update(advance=len(part))
    _require_finite(parts, order, what=what)
    return concatenate(parts, order=torch.from_numpy(order - order.min()))


def concatenate(parts: list[Encoding], *, order: Tensor | None = None) -> Encoding | PackedEncoding:
    """Concatenate all parts; `order` gives the position of each row, if it is not its own.

    The list is emptied on the way, so that nothing is held twice.
    """
    order = torch.arange(sum(map(len, parts))) if order is None else order
    vectors = parts[0].vectors
    masks = [part.mask for part in parts if part.mask is not None]
    whole: Encoding | PackedEncoding
    if not masks:
        whole = Encoding(vectors.new_empty(len(order), *vectors.shape[1:]))
    else:
        unordered = torch.cat([mask.sum(dim=1) for mask in masks])
        lengths = torch.empty_like(unordered)
        lengths[order] = unordered
        whole = PackedEncoding(vectors.new_empty(int(lengths.sum()), vectors.shape[2]), lengths)
    start = 0
    while parts:
        part = parts.pop(0)
        rows = order[start : start + len(part)]
        if isinstance(whole, Encoding):
            whole.vectors[rows] = part.vectors
        else:
            places, mask = word_places(whole.starts[rows], whole.lengths[rows])
            whole.vectors[places[mask]] = part.vectors[part.mask]
        start += len(part)
    return whole


def _require_finite(parts: list[Encoding], ids: Ids, *, what: str) -> None:
    finite = torch.cat([part.vectors.flatten(1).isfinite().all(dim=1) for part in parts])
    if not finite.all():
        first = int(ids[~finite.cpu().numpy()].min())
        raise UserError(
            f"{what} {first}: its encoding is not finite; look for bad features with "
            "`aoq data check`, or for a model that diverged."
        )
