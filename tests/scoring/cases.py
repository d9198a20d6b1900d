"""What tests of scores share."""

from __future__ import annotations

from itertools import product

import torch

from aoq.config import ModelConfig
from aoq.data.collate import Collator
from aoq.data.vocabulary import Vocabulary
from aoq.models import build_model
from aoq.scoring.blocks import ranges

REGION_MODELS = ("vsrn", "scan", "bfan", "vse", "bow")  # those that need no pretrained towers


def score_blocks(scorer, encoded, *, block_size):
    """The score matrix block by block: which images, which texts, and their scores."""
    rows, columns = (ranges(len(part), block_size) for part in (encoded.images, encoded.texts))
    for images, texts in product(rows, columns):
        with torch.no_grad():
            scores = scorer.score_matrix(encoded.images[images], encoded.texts[texts])
        yield images, texts, scores


def small_model(name, *, vocabulary, **options):
    torch.manual_seed(0)
    config = ModelConfig(name=name, joint_width=8, word_width=5, caption_width=6, **options)
    return build_model(config, feature_width=6, vocabulary_size=len(vocabulary)).eval()


def collator_of(dataset):
    return Collator(dataset, Vocabulary.build(dataset.captions, min_count=1))


def vocabulary_of(dataset):
    return Vocabulary.build(dataset.captions, min_count=1)
