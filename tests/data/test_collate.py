"""Batches of tensors."""

from __future__ import annotations

import numpy as np
import torch

from aoq.data.collate import Collator
from aoq.data.vocabulary import END, START, Vocabulary
from tests.conftest import uneven_dataset


def collator_of(dataset, *, captions=None) -> Collator:
    return Collator(dataset, Vocabulary.build(captions or dataset.captions, min_count=1))


def test_texts_are_padded_to_the_longest_of_the_batch():
    dataset = uneven_dataset()
    texts = collator_of(dataset).texts(np.arange(dataset.n_texts))
    words = [len(caption.split()) for caption in dataset.captions]
    assert texts.lengths.tolist() == [count + 2 for count in words]
    assert texts.tokens.shape == (dataset.n_texts, max(words) + 2)
    for row, length in zip(texts.tokens, texts.lengths, strict=True):
        assert row[0] == START
        assert row[length - 1] == END
        assert not row[length:].any()


def test_half_precision_features_become_float32_and_the_file_stays_as_it_is(tmp_path):
    stored = np.arange(24, dtype=np.float16).reshape(2, 3, 4)
    np.save(tmp_path / "features.npy", stored)
    mapped = np.load(tmp_path / "features.npy", mmap_mode="r")
    dataset = uneven_dataset(images=2)
    object.__setattr__(dataset, "features", mapped)
    regions = collator_of(dataset).regions(np.array([1, 0, 1]))
    assert regions.dtype == torch.float32
    torch.testing.assert_close(regions, torch.from_numpy(stored[[1, 0, 1]]).float())
    regions.zero_()
    np.testing.assert_array_equal(np.load(tmp_path / "features.npy"), stored)


def test_texts_of_unknown_words_only_are_found():
    dataset = uneven_dataset()
    known = collator_of(dataset)
    assert known.unknown_texts().tolist() == []
    strange = collator_of(dataset, captions=["something else"])
    assert strange.unknown_texts().tolist() == list(range(dataset.n_texts))
