"""Scores all pairs in bounded memory: the size of a block of the score matrix.

Mining and evaluation both use this block size, so a memory budget has the same meaning for both,
and neither ever holds the whole matrix.
"""

from __future__ import annotations

import math
from typing import TypeVar

import numpy as np
import torch

from aoq.config import parse_memory
from aoq.errors import UserError
from aoq.scoring.encoded import EncodedDataset
from aoq.types import Ids

E = TypeVar("E")
BLOCK_SIZE = 1024  # images and texts of a block, if memory allows
_ROWS_TAKEN_OUT = 64 * 2**20  # maximum bytes of encodings that a block reads
# Bytes per score while its block is read: the score, masks, and the copies made by selection.
_BYTES_A_SCORE = 24
# Working memory of a scorer besides the block: the tiles of cross attention.
_WORKSPACE = 128 * 2**20


def ranges(stop: int, size: int, *, start: int = 0) -> list[slice]:
    """Split start..stop into consecutive pieces of at most `size`."""
    return [slice(first, min(first + size, stop)) for first in range(start, stop, size)]


def evenly_spread(total: int, count: int) -> Ids:
    """Choose at most `count` of 0..total, evenly spread from the first to the last.

    >>> evenly_spread(10, 4).tolist(), evenly_spread(3, 4).tolist()
    ([0, 3, 6, 9], [0, 1, 2])
    """
    size = min(total, count)
    return np.arange(size) * (total - 1) // max(size - 1, 1)


def block_size_for(memory: str | None, encoded: EncodedDataset[E], *, beside: int) -> int:
    """Choose blocks that are large enough to be fast, and small enough for the budget."""
    row = max(encoded.images.row_nbytes, encoded.texts.row_nbytes)
    usual = max(64, min(BLOCK_SIZE, _ROWS_TAKEN_OUT // row))
    if memory is None:
        return usual
    threads = torch.get_num_threads()
    return min(usual, block_size_within(memory, encoded, beside=beside, blocks=threads))


def block_size_within(
    memory: str | None, encoded: EncodedDataset[E], *, beside: int = 0, blocks: int = 1
) -> int:
    """Return the largest block that fits a budget (such as "2GiB") together with the encodings.

    A block of b x b holds b^2 scores and, selected from the encodings, b images and b texts.
    `beside` is the size of other data in bytes, `blocks` the number of blocks held at a time.
    """
    if memory is None:
        return BLOCK_SIZE
    held = encoded.images.nbytes + encoded.texts.nbytes + beside + blocks * _WORKSPACE
    left = (parse_memory(memory) - held) / blocks
    taken_out = encoded.images.row_nbytes + 2 * encoded.texts.row_nbytes  # texts, and by length
    if left < taken_out + _BYTES_A_SCORE:
        raise UserError(
            f"a memory of {memory} is too small: encodings and working memory take "
            f"{held / 2**30:.2f} GiB; allow at least {math.ceil(held / 2**30 + 0.5)}GiB."
        )
    root = math.sqrt(taken_out**2 + 4 * _BYTES_A_SCORE * left)
    return min(
        int((root - taken_out) / (2 * _BYTES_A_SCORE)), max(len(encoded.images), len(encoded.texts))
    )
