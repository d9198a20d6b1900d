"""What both libraries start from: the data, the vectors of frozen towers, and the first weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from aoq.config import Recipe
from aoq.data.collate import Collator
from aoq.evaluation.metrics import Metrics
from aoq.models.towers import Towers
from aoq.randomness import seed_torch
from aoq.training.inputs import TrainingData

Judge = Callable[[Collator], Metrics]


@dataclass(frozen=True)
class Start:
    """A training before its first step."""

    recipe: Recipe
    data: TrainingData

    @property
    def test(self) -> Collator:
        assert self.data.test is not None
        return self.data.test

    @property
    def splits(self) -> tuple[Collator, ...]:
        return self.data.train, self.data.dev, self.test

    def build_model(self) -> Towers:
        """Build the model with the weights that aoq's training starts from."""
        seed_torch(self.recipe.seed)
        model = self.data.builder(self.recipe.model)()
        assert isinstance(model, Towers)
        return model

    def photo_vectors(self) -> Mapping[str, Tensor]:
        """Return what the image tower makes of each photo, by its id."""
        vectors: dict[str, Tensor] = {}
        for split in self.splits:
            rows = split.regions(np.arange(len(split.dataset)))[:, 0]
            vectors |= zip(split.dataset.image_ids, rows, strict=True)
        return vectors

    def caption_vectors(self) -> Mapping[str, Tensor]:
        """Return what the frozen text tower makes of each caption, by its words."""
        vectors: dict[str, Tensor] = {}
        for split in self.splits:
            rows = split.texts(np.arange(split.dataset.n_texts)).vectors
            assert rows is not None
            vectors |= zip(split.dataset.captions, rows, strict=True)
        return vectors

    def pairs(self) -> tuple[list[str], list[str]]:
        """Return the caption and the photo's id of every training pair."""
        dataset = self.data.train.dataset
        photos, captions = dataset.positives.pairs.T
        return [dataset.captions[text] for text in captions], [
            dataset.image_ids[image] for image in photos
        ]

    @property
    def steps_per_epoch(self) -> int:
        pairs = len(self.data.train.dataset.positives.pairs)
        return -(-pairs // self.recipe.round_one.batch_size)
