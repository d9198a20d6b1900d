"""Checks of captions: repeated captions, unusual lengths, and leaked words.

If two images share a caption, each is a right answer that counts as wrong. If a caption of a
held-out split is also in train, results are too good, and likewise if a vocabulary holds words that
only test captions have. Some of both is normal if many people write alike; users judge the counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from aoq.data.checks.findings import Finding, error, warning
from aoq.data.checks.images import TEST_SETS, earlier_splits
from aoq.data.checks.resemblance import WordSets, words_of
from aoq.data.dataset import PairDataset
from aoq.data.precomp import captions_file, vocabulary_files
from aoq.data.splits import is_built
from aoq.data.vocabulary import SPECIAL_WORDS, Vocabulary, tokenize
from aoq.errors import UserError
from aoq.parsing import shown
from aoq.types import Ids

FEWEST_WORDS, MOST_WORDS = 3, 60
_AMBIGUOUS = "each image is a right answer that counts as wrong: write what distinguishes them"
_PERHAPS_AMBIGUOUS = "check whether one fits both images; mining can leave such answers out"
_LEAK = "some are normal; many mean that the splits share pictures or were written alike"


def find_repeats(folder: Path, datasets: Sequence[PairDataset]) -> list[Finding]:
    """Find captions that are equal except for case and punctuation."""
    of_image: list[str] = []
    of_others: list[str] = []
    across: list[str] = []
    splits_of_caption: dict[str, tuple[PairDataset, int]] = {}
    for number, dataset in enumerate(datasets):
        earlier = {other.split for other in earlier_splits(datasets, number)}
        owners = owners_of(dataset)
        first: dict[str, int] = {}
        for text, caption in enumerate(dataset.captions):
            key = " ".join(words_of(caption)) or caption
            again = first.setdefault(key, text)
            if again != text:
                (of_image if owners[again] == owners[text] else of_others).append(
                    _twice(folder, (dataset, text), (dataset, again))
                )
            other = splits_of_caption.setdefault(key, (dataset, text))
            if other[0].split in earlier:
                across.append(_twice(folder, (dataset, text), other))
    return [
        *warning("Captions that an image has twice", of_image, "one of them is enough"),
        *warning("Captions of several images", of_others, _AMBIGUOUS),
        *warning("Captions of two splits", across, _LEAK),
    ]


def find_near(folder: Path, datasets: Sequence[PairDataset]) -> list[Finding]:
    """Find captions that differ in one word."""
    texts = [(dataset, text) for dataset in datasets for text in range(dataset.n_texts)]
    split_of = np.repeat(np.arange(len(datasets)), [dataset.n_texts for dataset in datasets])
    owners = np.concatenate([owners_of(dataset) for dataset in datasets] or [np.empty(0, int)])
    sets = WordSets([dataset.captions[text] for dataset, text in texts])

    def places(partners: Ids, of_split: int) -> list[str]:
        found = np.flatnonzero((partners >= 0) & (split_of == of_split))
        pairs = dict.fromkeys((text, int(partners[text])) for text in found.tolist())
        return [
            f"{quoted_place(folder, *texts[one])} and {quoted_place(folder, *texts[other])}"
            for one, other in pairs
            if one < other or (other, one) not in pairs
        ]

    within: list[str] = []
    across: list[str] = []
    for number in range(len(datasets)):
        within += places(sets.partners(owners, among=split_of == number), number)
        earlier = [datasets.index(other) for other in earlier_splits(datasets, number)]
        if earlier:
            is_own = split_of == number
            compared = is_own | np.isin(split_of, earlier)
            across += places(sets.partners(is_own.astype(np.int64), among=compared), number)
    return [
        *warning("Captions of several images but for a word", within, _PERHAPS_AMBIGUOUS),
        *warning("Captions of two splits but for a word", across, _LEAK),
    ]


def find_odd_lengths(folder: Path, datasets: Sequence[PairDataset]) -> list[Finding]:
    short: list[str] = []
    long: list[str] = []
    for dataset in datasets:
        for text, caption in enumerate(dataset.captions):
            words = len(caption.split())
            if words < FEWEST_WORDS:
                short.append(quoted_place(folder, dataset, text))
            elif words > MOST_WORDS:
                long.append(quoted_place(folder, dataset, text))
    return [
        *warning(
            f"Captions of fewer than {FEWEST_WORDS} words", short, "they hardly distinguish images"
        ),
        *warning(f"Captions of more than {MOST_WORDS} words", long, "they make every step slow"),
    ]


# Vocabulary


@dataclass(frozen=True)
class TrainedVocabulary:
    """The vocabulary of a run, and the minimum count of its words in train and dev."""

    file: Path
    min_count: int


def find_vocabulary_leaks(
    folder: Path, datasets: Sequence[PairDataset], *, trained: TrainedVocabulary | None
) -> list[Finding]:
    """Find words that a vocabulary can only have from test captions.

    In a vocabulary of a precomp folder, a word may occur once.
    """
    files = [(file, 1) for file in vocabulary_files(folder)] if not is_built(folder) else []
    if trained is not None:
        files.append((trained.file, trained.min_count))
    if not files:
        return []
    tests = [dataset for dataset in datasets if dataset.split in TEST_SETS]
    held_out = Counter(_words(tests[-1:]))  # testall, if present, contains test
    allowed = Counter(_words(dataset for dataset in datasets if dataset.split not in TEST_SETS))
    leaked: list[str] = []
    strange: list[str] = []
    unreadable: list[str] = []
    for file, needed in files:
        try:
            words = Vocabulary.load(file).words[len(SPECIAL_WORDS) :]
        except UserError as fault:
            unreadable += fault.problems
            continue
        for word in words:
            if allowed[word] >= needed:
                continue
            if held_out[word]:
                leaked.append(
                    f"{file}: {shown(word)} is {allowed[word]} times in train and dev, "
                    f"{held_out[word]} times in test"
                )
            else:
                strange.append(f"{file}: {shown(word)} is {allowed[word]} times in train and dev")
    return [
        *error(
            "Words of the vocabulary that only test captions explain",
            leaked,
            "a vocabulary is made of train and dev alone: make it again, and train again",
        ),
        *warning(
            "Words of the vocabulary that the captions do not explain",
            strange,
            "it was made of other captions, or by another tokenizer",
        ),
        *warning("Vocabularies that cannot be read", unreadable),
    ]


def _words(datasets: Iterable[PairDataset]) -> Iterable[str]:
    return (word for dataset in datasets for text in dataset.captions for word in tokenize(text))


# Small parts


def _twice(folder: Path, one: tuple[PairDataset, int], other: tuple[PairDataset, int]) -> str:
    return f"{quoted_place(folder, *one)} and {place_of(folder, *other)}"


def owners_of(dataset: PairDataset) -> Ids:
    """Return the image of every caption, the first if it has several. (M,)"""
    texts, images = dataset.positives.swapped.pairs.T
    return np.asarray(images[np.unique(texts, return_index=True)[1]])


def place_of(folder: Path, dataset: PairDataset, text: int) -> str:
    """Return where a caption is: its line in a precomp folder, otherwise its split and id."""
    if is_built(folder):
        return f"{dataset.split} {dataset.caption_ids[text]}"
    return f"{captions_file(folder, dataset.split).name}, line {text + 1}"


def quoted_place(folder: Path, dataset: PairDataset, text: int) -> str:
    return f"{shown(dataset.captions[text])} of {place_of(folder, dataset, text)}"
