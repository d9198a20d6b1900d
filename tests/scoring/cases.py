"""What tests of scores share."""

from __future__ import annotations

from itertools import product

import torch

from aoq.scoring.blocks import ranges


def score_blocks(scorer, encoded, *, block_size):
    """The score matrix block by block: which images, which texts, and their scores."""
    rows, columns = (ranges(len(part), block_size) for part in (encoded.images, encoded.texts))
    for images, texts in product(rows, columns):
        with torch.no_grad():
            scores = scorer.score_matrix(encoded.images[images], encoded.texts[texts])
        yield images, texts, scores
