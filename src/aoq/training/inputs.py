"""What every round of a run reads: the checked splits, and the vocabulary made from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain
from pathlib import Path

from torch import Tensor

from aoq.config import MIN_WORD_COUNT, ModelConfig, Recipe
from aoq.data.checks.dataset import check_dataset
from aoq.data.collate import Collator
from aoq.data.dataset import PairDataset
from aoq.data.inputs import Inputs
from aoq.data.splits import open_dataset, splits_of
from aoq.data.vocabulary import Vocabulary
from aoq.distributed import ALONE, Processes, default_device
from aoq.errors import UserError
from aoq.features.tokenizers import Tokenizer
from aoq.models import find_inputs, find_maker
from aoq.progress import warn
from aoq.scoring.blocks import evenly_spread
from aoq.scoring.protocol import FitsInputs, TrainableModel
from aoq.types import SPLITS, Texts

_MANY_UNKNOWN = 0.1  # of the words; of Flickr8k's they are 2 %
_FITTED = 512  # images, and texts of a tower, by which inputs are scaled
_COUNTED = 100_000  # texts whose words are counted
_SMALL = 10_000  # captions of train: each word can have a vector of its own


@dataclass(frozen=True)
class TrainingData:
    """The splits that a run reads, and by what, if the model is one of the library's."""

    train: Collator
    dev: Collator
    test: Collator | None = None
    vocabulary: Vocabulary | None = None
    min_word_count: int = MIN_WORD_COUNT
    "What the vocabulary was made with."
    inputs: Inputs = field(default_factory=Inputs)
    "The frozen networks that read images and texts, if the model has any."

    def settle(self, recipe: Recipe) -> Recipe:
        """Set the recipe's minimum word count to that of these data, if it leaves it open."""
        return replace(recipe, min_word_count=recipe.min_word_count or self.min_word_count)

    @property
    def feature_width(self) -> int | None:
        """Width of the region features; None if images are not what the library's models read."""
        shape = self.train.dataset.features.shape
        return int(shape[2]) if len(shape) == 3 or self.inputs.images else None

    @cached_property
    def _examples(self) -> tuple[Tensor, Texts]:
        """Images and texts by which inputs are scaled: every model of a run reads the same."""
        images, texts = len(self.train.dataset), self.train.dataset.n_texts
        read = _COUNTED if self.inputs.texts is None else _FITTED
        return (
            self.train.regions(evenly_spread(images, _FITTED)),
            self.train.texts(evenly_spread(texts, read)),
        )

    def builder(self, config: ModelConfig) -> Callable[[], TrainableModel]:
        """Return a function that builds a model of the library for these data."""
        tokenizer: Tokenizer | None = self.vocabulary
        width, text_width = self.feature_width, 0
        if self.inputs.texts is not None:
            tower = self.inputs.texts.load()
            tokenizer, text_width = tower.tokenizer, tower.width
        if tokenizer is None or width is None:
            raise UserError(
                "the library's models read region features and words of a vocabulary, which these "
                "data are not; bring a model that reads them: run_recipe(..., make_model=...)."
            )
        make = partial(
            find_maker(config.name),
            config,
            feature_width=width,
            vocabulary_size=len(tokenizer),
            text_width=text_width,
        )

        def build() -> TrainableModel:
            model = make().to(self.train.device)  # where what it is to read is
            if config.fits_inputs and isinstance(model, FitsInputs):
                model.fit_inputs(*self._examples)
            return model

        return build


def open_training_data(
    recipe: Recipe, *, checked: bool = False, processes: Processes = ALONE
) -> TrainingData:
    """Check the data set, unless it is `checked`, and open what training reads.

    Several processes share the work of frozen networks, if all of them call this.
    """
    if not recipe.data:
        raise UserError("no data set is named; add --data FOLDER (see `aoq data build --help`).")
    folder, device = Path(recipe.data), default_device()
    splits = _open_splits(folder) if checked else _check_splits(folder)
    for split in ("train", "dev"):
        if split not in splits:
            open_dataset(folder, split)  # says what the folder holds instead
    inputs = find_inputs(recipe.model, splits["train"].source)
    splits = {split: inputs.view(dataset, processes=processes) for split, dataset in splits.items()}
    if inputs.texts is not None:
        return _with_tower(splits, inputs, device=device, processes=processes)
    usual = 1 if splits["train"].n_texts < _SMALL else MIN_WORD_COUNT
    min_count = recipe.min_word_count or usual
    captions = chain(splits["train"].captions, splits["dev"].captions)  # never those of test
    vocabulary = Vocabulary.build(captions, min_count=min_count)
    train, dev = (Collator(splits[name], vocabulary, device=device) for name in ("train", "dev"))
    if min_count > 1 and (share := train.unknown_share()) > _MANY_UNKNOWN:
        warn(
            f"{folder}: {share:.0%} of the words in train captions occur fewer than {min_count} "
            "times and will be unknown; --min-word-count 1 keeps them all."
        )
    for collator in (train, dev):
        _warn_of_unknown(folder, collator)
    test = None
    if "test" in splits:
        test = Collator(splits["test"], vocabulary, device=device)
    return TrainingData(train, dev, test, vocabulary, min_count, inputs)


def _with_tower(
    splits: Mapping[str, PairDataset], inputs: Inputs, *, device: str, processes: Processes
) -> TrainingData:
    """Read the splits by a frozen text tower and its tokenizer."""
    assert inputs.texts is not None
    tokenizer = inputs.texts.load().tokenizer
    read = {
        split: Collator(dataset, tokenizer, device=device, texts_from=inputs.texts)
        for split, dataset in splits.items()
    }
    for collator in read.values():
        collator.read_in_shares(processes)
    return TrainingData(read["train"], read["dev"], read.get("test"), inputs=inputs)


def _open_splits(folder: Path) -> Mapping[str, PairDataset]:
    return {split: open_dataset(folder, split) for split in splits_of(folder) if split in SPLITS}


def _check_splits(folder: Path) -> Mapping[str, PairDataset]:
    """Check a data set and return its splits, which the check has opened."""
    report = check_dataset(folder)
    report.raise_for_errors()
    report.warn_in_one_line()
    return report.datasets


def _warn_of_unknown(folder: Path, split: Collator) -> None:
    """Warn of captions without any word that the model will know."""
    unknown, dataset = split.unknown_texts(), split.dataset
    if len(unknown):
        warn(
            f"{folder}: captions of {dataset.split} that are made of unknown words only: "
            f"{len(unknown):,}, such as {dataset.captions[unknown[0]]!r}."
        )
