"""The relation of positives."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aoq.errors import UserError
from aoq.types import Positives


@st.composite
def relations(draw):
    n_images, n_texts = draw(st.integers(1, 8)), draw(st.integers(1, 12))
    pair = st.tuples(st.integers(0, n_images - 1), st.integers(0, n_texts - 1))
    pairs = draw(st.lists(pair, max_size=30))
    return set(pairs), Positives.from_pairs(pairs, n_images=n_images, n_texts=n_texts)


@given(relations())
def test_a_relation_answers_as_a_set_of_pairs_would(case):
    pairs, positives = case
    images, texts = np.arange(positives.n_images), np.arange(positives.n_texts)
    table = positives.contains(images[:, None], texts[None, :])
    assert {(int(i), int(t)) for i, t in np.argwhere(table)} == pairs
    for image in images:
        assert positives.texts_of(image).tolist() == sorted(t for i, t in pairs if i == image)
    for text in texts:
        assert positives.images_of(text).tolist() == sorted(i for i, t in pairs if t == text)


@given(relations(), st.data())
def test_a_block_holds_just_the_pairs_inside_it(case, data):
    pairs, positives = case
    first_image = data.draw(st.integers(0, positives.n_images))
    first_text = data.draw(st.integers(0, positives.n_texts))
    images = slice(first_image, data.draw(st.integers(first_image, positives.n_images)))
    texts = slice(first_text, data.draw(st.integers(first_text, positives.n_texts)))
    rows, columns = positives.within(images, texts)
    found = {
        (int(r) + images.start, int(c) + texts.start) for r, c in zip(rows, columns, strict=True)
    }
    assert found == {
        (i, t)
        for i, t in pairs
        if images.start <= i < images.stop and texts.start <= t < texts.stop
    }


@given(relations(), st.data())
def test_the_pairs_among_some_images_and_texts_are_those_of_the_relation(case, data):
    _, positives = case

    def some(count):
        ids = data.draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=9))
        return np.array(ids)

    images, texts = some(positives.n_images), some(positives.n_texts)
    expected = positives.contains(images[:, None], texts[None, :])
    np.testing.assert_array_equal(positives.among(images, texts), expected)


def test_pairs_outside_the_data_set_are_refused():
    with pytest.raises(UserError, match="outside"):
        Positives.from_pairs([(0, 5)], n_images=2, n_texts=5)
