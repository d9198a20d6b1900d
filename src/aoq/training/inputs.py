"""What every round of a run reads: the splits, checked, and the vocabulary made from them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from aoq.config import Recipe
from aoq.data.check import check_dataset
from aoq.data.collate import Collator
from aoq.data.dataset import open_dataset, training_captions
from aoq.data.vocabulary import Vocabulary
from aoq.errors import UserError
from aoq.progress import warn


@dataclass(frozen=True)
class TrainingData:
    """The splits and the vocabulary that every round of a run reads."""

    train: Collator
    dev: Collator
    vocabulary: Vocabulary

    @property
    def feature_width(self) -> int:
        return int(self.train.dataset.features.shape[2])


def default_device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def open_training_data(recipe: Recipe, *, checked: bool = False) -> TrainingData:
    """Check the data set, unless that has been done, and open what training reads."""
    if not recipe.data:
        raise UserError("no data set is named; add --data FOLDER (see `aoq data build --help`).")
    folder, device = Path(recipe.data), default_device()
    if not checked:
        report = check_dataset(folder)
        report.raise_for_errors()
        for warning in report.warnings:
            warn(warning)
    vocabulary = Vocabulary.build(training_captions(folder), min_count=recipe.min_word_count)
    return TrainingData(
        train=_open_split(folder, "train", vocabulary, device=device),
        dev=_open_split(folder, "dev", vocabulary, device=device),
        vocabulary=vocabulary,
    )


def _open_split(folder: Path, split: str, vocabulary: Vocabulary, *, device: str) -> Collator:
    """One split as batches; says so where captions hold no word that the model will know."""
    collator = Collator(open_dataset(folder, split), vocabulary, device=device)
    unknown = collator.unknown_texts()
    if len(unknown):
        example = collator.dataset.captions[unknown[0]]
        warn(
            f"{folder}: {len(unknown):,} {split} captions are made of unknown words only, such as "
            f"{example!r}."
        )
    return collator
