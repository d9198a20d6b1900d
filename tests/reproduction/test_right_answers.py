"""The tables of right answers in the documents, and the captions that they are measured on."""

from __future__ import annotations

import json
from pathlib import Path

from reproduction.right_answers import (
    RIGHT_ANSWERS,
    losses_table,
    matches_table,
    recipes,
    templated,
)
from tests.conftest import uneven_dataset

DOCS = Path(__file__).parents[2] / "docs"


def test_the_documents_have_the_tables_of_the_results():
    found = json.loads(RIGHT_ANSWERS.read_text("utf-8"))
    assert matches_table(found["matches"]) in (DOCS / "mining.md").read_text("utf-8")
    assert losses_table(found["losses"]) in (DOCS / "training.md").read_text("utf-8")
    assert set(found["losses"]["rows"]) == set(recipes())


def test_templates_keep_three_frequent_words_and_whose_they_are():
    dataset = uneven_dataset(images=6, seed=2)
    words = sorted({word for caption in dataset.captions for word in caption.lower().split()})
    cut = templated(dataset, words[:4])
    assert len(cut.captions) == dataset.n_texts
    assert (cut.positives.pairs == dataset.positives.pairs).all()
    for caption in cut.captions:
        kept = caption.split()
        assert kept == ["something"] or (len(kept) <= 3 and set(kept) <= set(words[:4]))
