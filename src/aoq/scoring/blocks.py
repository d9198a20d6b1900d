"""All pairs in bounded memory: the data set is encoded once, the score matrix comes in blocks.

Mining and evaluation both read the blocks of this module, so a block size chosen for memory
means the same to both, and neither ever holds the whole matrix.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from aoq.config import BLOCK_SIZE
from aoq.data.collate import Collator
from aoq.errors import UserError
from aoq.progress import progress_bar
from aoq.scoring.protocol import Scorer, TrainableModel
from aoq.types import Encoding


@dataclass(frozen=True)
class Block:
    """Scores of a range of images against a range of texts."""

    images: slice
    texts: slice
    scores: Tensor


@dataclass(frozen=True)
class EncodedDataset:
    """Every image and text of a data set, encoded."""

    images: Encoding
    texts: Encoding


def ranges(total: int, size: int) -> list[slice]:
    """0..total in consecutive pieces of at most `size`."""
    return [slice(start, min(start + size, total)) for start in range(0, total, size)]


def score_blocks(
    scorer: Scorer,
    encoded: EncodedDataset,
    *,
    block_size: int = BLOCK_SIZE,
    description: str = "score",
) -> Iterator[Block]:
    """The score matrix, block by block, images outermost."""
    rows, columns = (ranges(len(part), block_size) for part in (encoded.images, encoded.texts))
    with progress_bar(description, total=len(rows) * len(columns), unit="blocks") as update:
        for images in rows:
            for texts in columns:
                with torch.no_grad():
                    scores = scorer.score_matrix(encoded.images[images], encoded.texts[texts])
                yield Block(images, texts, scores)
                update()


def encode_dataset(
    model: TrainableModel, collator: Collator, *, batch_size: int = 128, description: str = "encode"
) -> EncodedDataset:
    """Encode every image and text once, in evaluation mode."""
    n_images, n_texts = len(collator.dataset), collator.dataset.n_texts
    images: list[Encoding] = []
    texts: list[Encoding] = []
    was_training = model.training
    model.eval()
    with (
        torch.no_grad(),
        progress_bar(description, total=n_images + n_texts, unit="items") as update,
    ):
        for rows in ranges(n_images, batch_size):
            regions = collator.regions(np.arange(rows.start, rows.stop))
            images.append(model.encode_images(regions)[:])
            update(advance=rows.stop - rows.start)
        for rows in ranges(n_texts, batch_size):
            texts.append(model.encode_texts(collator.texts(np.arange(rows.start, rows.stop)))[:])
            update(advance=rows.stop - rows.start)
    model.train(was_training)
    encoded = EncodedDataset(images=concatenate(images), texts=concatenate(texts))
    for part, what in ((encoded.images, "image"), (encoded.texts, "caption")):
        finite = part.vectors.flatten(1).isfinite().all(dim=1)
        if not finite.all():
            raise UserError(
                f"{collator.dataset.name} ({collator.dataset.split}), {what} "
                f"{int(finite.logical_not().nonzero()[0])}: its encoding is not finite; look for "
                "bad features with `aoq data check`, or for a model that diverged."
            )
    return encoded


def concatenate(parts: list[Encoding]) -> Encoding:
    """One encoding of several; shorter ones are padded to the longest."""
    if parts[0].mask is None:
        return Encoding(torch.cat([part.vectors for part in parts]))
    longest = max(part.vectors.shape[1] for part in parts)
    pads = [longest - part.vectors.shape[1] for part in parts]
    pairs = list(zip(parts, pads, strict=True))
    vectors = [nn.functional.pad(part.vectors, (0, 0, 0, pad)) for part, pad in pairs]
    masks = [nn.functional.pad(part.mask, (0, pad)) for part, pad in pairs if part.mask is not None]
    return Encoding(torch.cat(vectors), torch.cat(masks))
