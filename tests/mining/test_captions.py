"""Captions that say the same, against plain loops over sets of words."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aoq.errors import UserError
from aoq.mining import captions as module
from aoq.mining.captions import NearCaptions, same_in_batch, with_equal_captions, words_of
from aoq.types import Positives
from tests.conftest import uneven_dataset
from tests.mining.test_report import few_words

WORDS = ["a", "dog", "Dog", "cat", "runs", "sits", "red", ".", ",", "!", "man's"]


@st.composite
def cases(draw):
    """Captions of few words, so that many are alike, under an uneven relation."""
    captions = draw(st.lists(st.lists(st.sampled_from(WORDS), max_size=6).map(" ".join)))
    n_images = draw(st.integers(1, 6))
    image = st.integers(0, n_images - 1)
    pairs = [(draw(image), text) for text in range(len(captions))]
    pairs += [(draw(image), text) for text in range(0, len(captions), 4)]
    return Positives.from_pairs(pairs, n_images=n_images, n_texts=len(captions)), captions


def pairs_of_everything(positives):
    return np.arange(positives.n_images)[:, None], np.arange(positives.n_texts)[None, :]


def test_case_and_punctuation_do_not_count():
    assert words_of("Two dogs, a MAN's hat - outside!") == words_of("two dogs a man's hat outside")
    assert words_of("... , !") == []


@settings(deadline=None)
@given(cases())
def test_an_image_gets_every_text_with_the_words_of_one_of_its_captions(case):
    positives, captions = case
    enlarged = with_equal_captions(positives, captions)
    wanted = {
        (image, other)
        for image, text in positives.pairs.tolist()
        for other in range(len(captions))
        if other == text or words_of(captions[other]) == words_of(captions[text]) != []
    }
    assert enlarged.pairs.tolist() == [list(pair) for pair in sorted(wanted)]
    assert (enlarged.n_images, enlarged.n_texts) == (positives.n_images, positives.n_texts)


def test_a_caption_of_a_thousand_images_belongs_to_all_of_them():
    ids = np.arange(1002)
    positives = Positives.from_pairs(np.stack([ids, ids], 1), n_images=1002, n_texts=1002)
    enlarged = with_equal_captions(positives, ["A photo."] * 1000 + ["a dog", "a cat"])
    assert enlarged.texts_per_image().tolist() == [1000] * 1000 + [1, 1]


def test_more_pairs_than_memory_holds_are_refused_with_the_caption_that_makes_them(monkeypatch):
    monkeypatch.setattr(module, "_MOST_PAIRS", 10)
    ids = np.arange(5)
    positives = Positives.from_pairs(np.stack([ids, ids], 1), n_images=5, n_texts=5)
    captions = ["a dog", "A photo.", "a photo", "a photo !", "a cat"]
    with pytest.raises(UserError, match=r"11 positive pairs.*'A photo.' .*3 times"):
        with_equal_captions(positives, captions)
    monkeypatch.setattr(module, "_MOST_PAIRS", 11)
    assert len(with_equal_captions(positives, captions).pairs) == 11


@settings(deadline=None)
@given(cases(), st.sampled_from([0.2, 0.5, 0.55, 0.6, 2 / 3, 0.75, 0.8, 1.0]), st.integers(1, 7))
def test_near_is_the_share_of_words_in_common_with_any_caption_of_the_image(case, share, piece):
    positives, captions = case
    sets = [set(words_of(caption)) for caption in captions]
    wanted = [
        [
            any(
                len(sets[own] & sets[text]) / max(len(sets[own] | sets[text]), 1) >= share
                for own in positives.texts_of(image)
            )
            for text in range(positives.n_texts)
        ]
        for image in range(positives.n_images)
    ]
    near = NearCaptions(positives, captions, share=share)
    images, texts = pairs_of_everything(positives)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_PAIRS_AT_ONCE", piece)
        found = near.contains(images, texts)
        assert found.tolist() == wanted
        # The texts' lists of images: the same pairs, seen from the other side.
        assert near.contains(images.T, texts.T).tolist() == found.T.tolist()


def test_the_words_decide_where_the_bits_of_two_captions_agree():
    """Words 0 and 64 fall on the same bit: the bits alone would call the captions equal."""
    first, *between, last = (f"word{number}" for number in range(65))
    captions = [first, " ".join(between), last]
    positives = Positives.from_pairs([(0, 0), (1, 1), (2, 2)], n_images=3, n_texts=3)
    near = NearCaptions(positives, captions, share=0.5)
    assert near.contains(*pairs_of_everything(positives)).tolist() == np.eye(3).tolist()


def test_long_captions_over_many_words_agree_with_sets():
    random = np.random.default_rng(0)
    rows = [random.integers(200, size=random.integers(1, 30)) for _ in range(40)]
    rows += [np.append(row[1:], random.integers(200, size=1)) for row in rows]  # all but a word
    captions = [" ".join(f"word{word}" for word in row) for row in rows]
    ids = np.arange(len(captions))
    positives = Positives.from_pairs(np.stack([ids // 2, ids], 1), n_images=40, n_texts=80)
    found = NearCaptions(positives, captions, share=0.7).contains(*pairs_of_everything(positives))
    sets = [set(caption.split()) for caption in captions]
    alike = np.array([[len(one & two) / len(one | two) >= 0.7 for two in sets] for one in sets])
    np.testing.assert_array_equal(found, alike[0::2] | alike[1::2])
    assert 80 < found.sum() < 200


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10_000))
def test_captions_that_say_the_same_in_a_batch_are_those_of_all_pairs_of_pairs(seed):
    dataset = few_words(uneven_dataset(images=10, seed=seed))
    positives, captions = dataset.positives, dataset.captions
    pairs = positives.pairs.tolist()
    same = sum(
        set(words_of(captions[one])) == set(words_of(captions[other]))
        for image, one in pairs
        for other_image, other in pairs
        if image != other_image
    )
    expected = 15 * same / (len(pairs) * (len(pairs) - 1))
    assert same_in_batch(positives, captions, batch_size=16) == pytest.approx(expected)
