"""Batches of tensors."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from aoq.data.collate import Collator
from aoq.data.dataset import PairDataset
from aoq.data.vocabulary import END, START, Vocabulary
from aoq.errors import UserError
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
    assert (known.unknown_share(), strange.unknown_share()) == (0, 1)


def dataset_of(images) -> PairDataset:
    captions = [f"caption {number}" for number in range(len(images))]
    return PairDataset.of(images, captions, [(number, number) for number in range(len(images))])


def letters(caption: str) -> list[int]:
    return [ord(letter) for letter in caption]


def test_any_function_from_a_caption_to_word_ids_is_a_tokenizer():
    dataset = PairDataset.of(np.zeros((1, 2, 3)), ["abc", "a"], [(0, 0), (0, 1)])
    collator = Collator(dataset, letters, pad=7)
    texts = collator.texts(np.array([1, 0]))
    assert texts.tokens.tolist() == [[97, 7, 7], [97, 98, 99]]
    assert texts.lengths.tolist() == collator.text_lengths[[1, 0]].tolist() == [1, 3]
    assert texts.mask.tolist() == [[True, False, False], [True, True, True]]
    assert collator.unknown_texts().tolist() == []


def test_another_data_set_is_read_in_the_same_way():
    collator = Collator(dataset_of(np.zeros((1, 2, 3))), letters, pad=7)
    other = PairDataset.of(np.zeros((1, 2, 3)), ["z", "zz"], [(0, 0), (0, 1)])
    texts = collator.with_dataset(other).texts(np.array([0, 1]))
    assert texts.tokens.tolist() == [[122, 7], [122, 122]]


@pytest.mark.parametrize("made", [{"input_ids": [1, 2]}, [[1, 2]], [], [1.5], "words"])
def test_what_is_not_a_list_of_word_ids_is_refused_with_its_caption(made):
    collator = Collator(dataset_of(np.zeros((2, 2, 3))), lambda caption: made)
    with pytest.raises(UserError, match=r"'caption 0'; expected a list of word ids"):
        collator.texts(np.array([1]))


@pytest.mark.parametrize(
    ("stored", "read"),
    [
        (np.uint8, torch.uint8),
        (np.int64, torch.int64),
        (np.float16, torch.float32),
        (np.float64, torch.float32),
    ],
)
def test_whole_numbers_stay_and_fractions_become_float32(stored, read):
    pixels = np.arange(2 * 3 * 4 * 4).reshape(2, 3, 4, 4).astype(stored)
    regions = Collator(dataset_of(pixels), letters).regions(np.array([1, 0]))
    assert regions.dtype == read
    assert regions.tolist() == pixels[[1, 0]].tolist()


def test_arrays_that_run_backwards_are_read():
    pixels = np.arange(2 * 3 * 4 * 4, dtype=np.uint8).reshape(2, 3, 4, 4)[:, ::-1, :, ::-1]
    assert Collator(dataset_of(pixels), letters).regions(np.array([1])).tolist() == [
        pixels[1].tolist()
    ]


def test_images_read_on_demand_are_the_batch_s_own():
    class Kept:
        pixels = np.arange(24, dtype=np.float32).reshape(2, 3, 2, 2)

        def __len__(self):
            return 2

        def __getitem__(self, ids):
            kept = self.pixels[ids[0] : ids[0] + 1]  # a view
            if len(ids) > 1:
                return self.pixels[ids]
            kept.flags.writeable = False
            return kept

    regions = Collator(dataset_of(Kept()), letters).regions(np.array([1]))
    regions.zero_()
    assert Kept.pixels[1].any()
