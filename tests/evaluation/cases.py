"""Small data sets as an encoder would leave them, and ranks by plain loops."""

from __future__ import annotations

import numpy as np
import torch

from aoq.evaluation.protocols import JudgedFold
from aoq.evaluation.ranks import pair_ranks_in_blocks
from aoq.scoring.encoded import EncodedDataset
from aoq.scoring.inner_product import InnerProduct
from aoq.types import Encoding, Positives


def in_order(n_images, texts_per_image=5):
    texts = np.arange(n_images * texts_per_image)
    pairs = np.stack([texts // texts_per_image, texts], axis=1)
    return Positives.from_pairs(pairs, n_images=n_images, n_texts=len(texts))


def uneven(n_images, seed=0):
    """One to four texts an image, in any order, and every third text has a second image."""
    random = np.random.default_rng(seed)
    owners = random.permutation(np.repeat(np.arange(n_images), random.integers(1, 5, n_images)))
    pairs = [(int(image), text) for text, image in enumerate(owners)]
    pairs += [(int(random.integers(n_images)), text) for text in range(0, len(owners), 3)]
    return Positives.from_pairs(pairs, n_images=n_images, n_texts=len(owners))


def encode(positives, *, seed=0, noise=1.0, width=6):
    """Vectors in which a text is one of its images with noise."""
    random = np.random.default_rng(seed)
    images = random.normal(size=(positives.n_images, width))
    owner = [positives.images_of(text)[0] for text in range(positives.n_texts)]
    texts = images[owner] + noise * random.normal(size=(positives.n_texts, width))
    single = (torch.tensor(part, dtype=torch.float32) for part in (images, texts))
    return EncodedDataset(*map(Encoding, single))


def matrix_of(encoded):
    return (encoded.images.vectors.double() @ encoded.texts.vectors.double().T).numpy()


def judged(positives, **kwargs):
    encoded = encode(positives, **kwargs)
    return JudgedFold(positives, pair_ranks_in_blocks(InnerProduct(), encoded, positives))


def ranks_in_blocks(scorer, encoded, positives, **kwargs):
    """The best right answer of every query."""
    return pair_ranks_in_blocks(scorer, encoded, positives, **kwargs).best(positives)


def looped_pair_ranks(matrix, positives):
    """(rank of the image, rank of the text) of every pair, from 1."""
    ranks = []
    for image, text in positives.pairs.tolist():
        right = matrix[image, text]
        own_texts, own_images = positives.texts_of(image), positives.images_of(text)
        texts = [j for j in range(positives.n_texts) if j not in own_texts]
        images = [i for i in range(positives.n_images) if i not in own_images]
        ranks.append(
            (
                1 + sum(matrix[i, text] >= right for i in images),
                1 + sum(matrix[image, j] >= right for j in texts),
            )
        )
    return ranks
