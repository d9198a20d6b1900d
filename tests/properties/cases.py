"""Any relation of images and texts, with scores."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import strategies as st

from aoq.scoring.encoded import EncodedDataset
from aoq.types import Encoding, Positives


@st.composite
def cases(draw):
    """Embeddings and an uneven relation in which every image and every text has a partner."""
    n_images, n_texts = draw(st.integers(3, 9)), draw(st.integers(3, 24))
    random = np.random.default_rng(draw(st.integers(0, 10**6)))
    pairs = [(int(random.integers(n_images)), text) for text in range(n_texts)]
    pairs += [(image, int(random.integers(n_texts))) for image in range(n_images)]
    positives = Positives.from_pairs(pairs, n_images=n_images, n_texts=n_texts)
    images, texts = random.normal(size=(n_images, 5)), random.normal(size=(n_texts, 5))
    if draw(st.booleans()):  # repeated texts, so that scores tie
        texts[: n_texts // 2] = texts[0]
    encoded = EncodedDataset(
        Encoding(torch.tensor(images, dtype=torch.float32)),
        Encoding(torch.tensor(texts, dtype=torch.float32)),
    )
    return encoded, positives


def minable(positives: Positives) -> bool:
    return (
        positives.texts_per_image().max() < positives.n_texts
        and positives.swapped.texts_per_image().max() < positives.n_images
    )
