"""Mining with an embedding model, and the caption loss of VSRN.

Baselines are plain loops written for the purpose: mining one anchor at a time with a full sort, and
the caption decoder one word at a time to its full length.
"""

from __future__ import annotations

import numpy as np
import torch

from aoq.config import MiningConfig
from aoq.mining.candidates import Provenance
from aoq.mining.offline import mine
from aoq.models.captioner import CaptionModel, caption_labels
from aoq.scoring.encoded import EncodedDataset
from aoq.scoring.inner_product import InnerProduct
from aoq.types import Encoding, Positives, Texts
from benchmarks.harness import Comparison, Task

IMAGES, TEXTS, WIDTH = 2_000, 10_000, 1024
DEPTH_TEXTS, DEPTH_IMAGES = 300, 60
BATCH, REGIONS, MAX_WORDS = 128, 36, 60


def mining_tasks() -> tuple[Task, Task]:
    random = torch.Generator().manual_seed(0)
    images = torch.nn.functional.normalize(torch.randn(IMAGES, WIDTH, generator=random))
    texts = torch.nn.functional.normalize(torch.randn(TEXTS, WIDTH, generator=random))
    ids = np.arange(TEXTS)
    pairs = np.stack([ids // (TEXTS // IMAGES), ids], axis=1)
    positives = Positives.from_pairs(pairs, n_images=IMAGES, n_texts=TEXTS)
    encoded = EncodedDataset(Encoding(images), Encoding(texts))
    config = MiningConfig(depth_texts=DEPTH_TEXTS, depth_images=DEPTH_IMAGES)

    def ours() -> object:
        return mine(
            InnerProduct(), encoded, positives, config=config, provenance=Provenance("", "")
        )

    def one_at_a_time() -> object:
        lists = []
        for image in range(IMAGES):
            scores = texts @ images[image]
            scores[torch.from_numpy(positives.texts_of(image))] = -torch.inf
            lists.append(scores.argsort(descending=True)[:DEPTH_TEXTS])
        for text in range(TEXTS):
            scores = images @ texts[text]
            scores[torch.from_numpy(positives.images_of(text))] = -torch.inf
            lists.append(scores.argsort(descending=True)[:DEPTH_IMAGES])
        return lists

    return ours, one_at_a_time


def caption_tasks() -> tuple[Task, Task]:
    torch.manual_seed(0)
    model = CaptionModel(
        region_width=WIDTH,
        width=512,
        word_width=300,
        vocabulary_size=8_000,
        dropout=0.0,
        max_words=MAX_WORDS,
    )
    regions = torch.randn(BATCH, REGIONS, WIDTH)
    lengths = torch.randint(8, 18, (BATCH,))
    tokens = torch.randint(4, 8_000, (BATCH, 18)) * (torch.arange(18) < lengths[:, None])
    texts = Texts(tokens, lengths)

    def ours() -> object:
        return model(regions, texts).backward()

    def word_by_word() -> object:
        labels, mask = caption_labels(texts, max_words=MAX_WORDS)
        padding = (0, MAX_WORDS - labels.shape[1])
        labels = torch.nn.functional.pad(labels, padding)
        mask = torch.nn.functional.pad(mask, padding)
        states, last = model.encoder(model.projection(regions))
        hidden, losses = last[0], []
        for step in range(MAX_WORDS - 1):
            repeated = hidden[:, None].expand_as(states)
            joined = torch.cat([states, repeated], dim=2)
            scores = model.attention.score(torch.tanh(model.attention.hidden(joined)))
            attended = (scores.softmax(dim=1) * states).sum(dim=1)
            words = model.embedding(labels[:, step])
            hidden = model.decoder(torch.cat([words, attended], dim=1), hidden)
            logits = model.output(hidden).log_softmax(dim=1)
            loss = torch.nn.functional.nll_loss(logits, labels[:, step + 1], reduction="none")
            losses.append(loss * mask[:, step + 1])
        return (torch.stack(losses).sum() / BATCH).backward()

    return ours, word_by_word


COMPARISONS = [
    Comparison(
        name="mining",
        what=f"both lists of {IMAGES:,} images x {TEXTS:,} texts, D {WIDTH}, one pass in blocks",
        baseline="one anchor at a time, each direction on its own, full sort",
        setup=mining_tasks,
        repeats=3,
    ),
    Comparison(
        name="caption loss",
        what=f"forward and backward, batch {BATCH}, {REGIONS} regions, captions of 8 to 17 words",
        baseline=f"one word at a time for all {MAX_WORDS} positions",
        setup=caption_tasks,
        repeats=3,
    ),
]
