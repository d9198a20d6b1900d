"""All pairs in bounded memory: how large a block of the score matrix may be.

Mining and evaluation both take the size of their blocks from here, so a memory budget means the
same to both, and neither ever holds the whole matrix.
"""

from __future__ import annotations

import math
from typing import TypeVar

from aoq.config import BLOCK_SIZE, parse_memory
from aoq.errors import UserError
from aoq.scoring.encoded import EncodedDataset

E = TypeVar("E")
# What a score costs while its block is read: itself, masks, and the copies that selection makes.
_BYTES_A_SCORE = 24
# What a scorer works on beside the block: the tiles of cross attention.
_WORKSPACE = 128 * 2**20


def ranges(stop: int, size: int, *, start: int = 0) -> list[slice]:
    """start..stop in consecutive pieces of at most `size`."""
    return [slice(first, min(first + size, stop)) for first in range(start, stop, size)]


def block_size_within(
    memory: str | None, encoded: EncodedDataset[E], *, beside: int = 0, blocks: int = 1
) -> int:
    """The largest block that fits a budget (such as "2GiB") together with the encodings.

    A block of b x b holds b^2 scores and, taken out of the encodings, b images and b texts.
    `beside` is what else has to fit, in bytes, `blocks` how many blocks are held at a time.
    """
    if memory is None:
        return BLOCK_SIZE
    held = encoded.images.nbytes + encoded.texts.nbytes + beside + blocks * _WORKSPACE
    left = (parse_memory(memory) - held) / blocks
    taken_out = encoded.images.row_nbytes + 2 * encoded.texts.row_nbytes  # texts, and by length
    if left < taken_out + _BYTES_A_SCORE:
        raise UserError(
            f"a memory of {memory} is too small: what has to be held and the work on it take "
            f"{held / 2**30:.2f} GiB; allow at least {math.ceil(held / 2**30 + 0.5)}GiB."
        )
    root = math.sqrt(taken_out**2 + 4 * _BYTES_A_SCORE * left)
    return min(
        int((root - taken_out) / (2 * _BYTES_A_SCORE)), max(len(encoded.images), len(encoded.texts))
    )
