"""The search of captions: bm25s is the reference, and a caption that is the query is left out."""

from __future__ import annotations

import bm25s
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aoq.errors import UserError
from aoq.retrieval.text import CaptionSearch, words_of

VOCABULARY = ("a", "dog", "cat", "ball", "red", "on", "grass", "übung", "2")
captions = st.lists(
    st.lists(st.sampled_from(VOCABULARY), min_size=1, max_size=12).map(" ".join),
    min_size=2,
    max_size=9,
)


def reference(documents, query):
    ranker = bm25s.BM25(method="lucene")
    ranker.index([words_of(document) for document in documents], show_progress=False)
    known = [word for word in words_of(query) if word in ranker.vocab_dict]
    return ranker.get_scores(known) if known else np.zeros(len(documents))


@given(documents=captions, query=st.lists(st.sampled_from((*VOCABULARY, "zebra")), max_size=6))
def test_columns_add_up_to_what_bm25s_finds(documents, query):
    search = CaptionSearch.build(documents, range(len(documents)))
    found = search.rank_all(" ".join(query), n_images=len(documents))
    np.testing.assert_allclose(found, reference(documents, " ".join(query)), atol=1e-5)


@given(documents=captions, query=st.sampled_from(VOCABULARY))
def test_a_document_that_is_not_indexed_scores_as_if_it_were(documents, query):
    """Scored by the formula, each indexed document gets its own score."""
    search = CaptionSearch.build(documents, range(len(documents)))
    found = search.rank_all(f"{query} ball", n_images=len(documents))
    for document, score in zip(documents, found, strict=True):
        assert search.score_document(f"{query} ball", [document]) == pytest.approx(score, abs=1e-5)


def test_photos_without_captions_have_no_words():
    search = CaptionSearch.build(["a red dog", "a cat"], [3, 1])
    scores = search.rank_all("dog", n_images=5)
    assert np.flatnonzero(scores).tolist() == [3]
    assert len(scores) == 5
    assert not search.rank_all("zebra", n_images=5).any()


def test_a_kept_index_answers_as_before_and_a_damaged_one_is_refused(tmp_path):
    search = CaptionSearch.build(["a red dog", "a cat on grass", "a dog and a dog"], [0, 1, 2])
    search.save(tmp_path / "captions")
    opened = CaptionSearch.open(tmp_path / "captions")
    assert isinstance(opened.scores, np.memmap)
    for query in ("a dog", "grass", "zebra"):
        expected = search.rank_all(query, n_images=3)
        assert np.array_equal(opened.rank_all(query, n_images=3), expected)
    (tmp_path / "captions" / "scores.npy").write_bytes(b"nothing")
    with pytest.raises(UserError, match="make the index again"):
        CaptionSearch.open(tmp_path / "captions")


def test_words_are_found_whatever_their_case_and_script():
    assert words_of("A Dog, ÜBUNG собака 2!") == ["a", "dog", "übung", "собака", "2"]


def test_the_caption_that_shares_the_rarest_words_is_shown():
    search = CaptionSearch.build(["a dog a dog", "a cat", "a red ball"], [0, 1, 2])
    assert search.closest("a red cat", ["a dog", "a ball", "the cat"]) == 2
    assert search.closest("zebra", ["a dog", "a ball"]) == 0
