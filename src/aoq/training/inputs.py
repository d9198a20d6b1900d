"""What every round of a run reads: the splits, checked, and the vocabulary made from them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from aoq.config import ModelConfig, Recipe
from aoq.data.check import check_dataset
from aoq.data.collate import Collator
from aoq.data.opening import open_dataset, splits_of, training_captions
from aoq.data.vocabulary import Vocabulary
from aoq.errors import UserError
from aoq.models import find_maker
from aoq.progress import warn
from aoq.scoring.protocol import TrainableModel

_MANY_UNKNOWN = 0.1  # of the words; of Flickr8k's they are 2 %


@dataclass(frozen=True)
class TrainingData:
    """The splits that a run reads, and the vocabulary, if the model is one of the library's."""

    train: Collator
    dev: Collator
    test: Collator | None = None
    vocabulary: Vocabulary | None = None

    @property
    def feature_width(self) -> int | None:
        """Width of the region features; none where an image is something else."""
        shape = self.train.dataset.features.shape
        return int(shape[2]) if len(shape) == 3 else None

    def builder(self, config: ModelConfig) -> Callable[[], TrainableModel]:
        """What builds a model of the library's for these data; refused where there is none."""
        width, vocabulary = self.feature_width, self.vocabulary
        if vocabulary is None or width is None:
            raise UserError(
                "the library's models read region features and words of a vocabulary, which these "
                "data are not; bring a model that reads them: run_recipe(..., make_model=...)."
            )
        make = find_maker(config.name)
        return partial(make, config, feature_width=width, vocabulary_size=len(vocabulary))


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
    has_test = "test" in splits_of(folder)
    train = _open_split(folder, "train", vocabulary, device=device)
    if recipe.min_word_count > 1 and (share := train.unknown_share()) > _MANY_UNKNOWN:
        warn(
            f"{folder}: {share:.0%} of the words in train captions will be unknown, as they are "
            f"there less than {recipe.min_word_count} times; --min-word-count 1 keeps them all."
        )
    return TrainingData(
        train=train,
        dev=_open_split(folder, "dev", vocabulary, device=device),
        test=Collator(open_dataset(folder, "test"), vocabulary, device=device)
        if has_test
        else None,
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
