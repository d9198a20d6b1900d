"""Words and their ids."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aoq.data.splits import training_captions
from aoq.data.vocabulary import END, SPECIAL_WORDS, START, UNKNOWN, Vocabulary, tokenize
from aoq.errors import UserError


@pytest.mark.parametrize(
    ("caption", "words"),
    [
        ("A dog runs.", ["a", "dog", "runs", "."]),
        ("Two dogs. One cat!", ["two", "dogs", ".", "one", "cat", "!"]),
        ("A man's hat isn't red", ["a", "man", "'s", "hat", "is", "n't", "red"]),
        ('He says "go"', ["he", "says", "``", "go", "''"]),
        ("white,black", ["white", ",", "black"]),
        ("A cafe\u0301", ["a", "caf\u00e9"]),
        ("  ", []),
    ],
)
def test_captions_are_split_as_nltk_splits_them(caption, words):
    assert tokenize(caption) == words


def test_the_tokenizer_is_loaded_without_the_rest_of_nltk_which_stays_whole():
    code = (
        "import sys; from aoq.data.vocabulary import tokenize; tokenize('a dog'); "
        "assert not {'nltk', 'scipy'} & set(sys.modules); "
        "from nltk.metrics import edit_distance; assert edit_distance('a', 'ab') == 1"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_rare_words_are_unknown_and_ids_follow_first_appearance():
    vocabulary = Vocabulary.build(["the dog the dog", "the dog a cat the dog"], min_count=4)
    assert vocabulary.words == (*SPECIAL_WORDS, "the", "dog")
    assert vocabulary.encode("The cat!") == [START, 4, UNKNOWN, UNKNOWN, END]


def test_a_vocabulary_survives_the_way_to_disk_and_back(tmp_path):
    vocabulary = Vocabulary.build(["über die brücke"] * 4)
    vocabulary.save(tmp_path / "vocabulary.json")
    assert Vocabulary.load(tmp_path / "vocabulary.json") == vocabulary


def test_a_published_vocabulary_of_scan_is_read(tmp_path):
    words = [*SPECIAL_WORDS, "dog"]
    content = {
        "word2idx": {word: i for i, word in enumerate(words)},
        "idx2word": {str(i): word for i, word in enumerate(words)},
        "idx": len(words),
    }
    (tmp_path / "scan.json").write_text(json.dumps(content))
    assert Vocabulary.load(tmp_path / "scan.json").encode("dog") == [START, 4, END]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("no json", "is not a vocabulary"),
        ("[]", "is not a vocabulary"),
        ('{"word2idx": {"a": 7}}', "without gaps"),
        ('{"word2idx": {"a": 0, "b": 1, "c": 2, "d": 3}}', "ids 0 to 3"),
    ],
)
def test_a_damaged_vocabulary_is_refused(tmp_path, content, sentence):
    path = tmp_path / "vocabulary.json"
    path.write_text(content)
    with pytest.raises(UserError, match=sentence):
        Vocabulary.load(path)


def test_words_of_test_captions_never_enter_the_vocabulary(precomp):
    captions = precomp / "test_caps.txt"
    captions.write_text(captions.read_text().replace("ball", "zeppelin"))
    assert "zeppelin" in captions.read_text()
    vocabulary = Vocabulary.build(training_captions(precomp), min_count=1)
    assert "zeppelin" not in vocabulary.words
    assert "ball" in vocabulary.words


@given(st.text(max_size=60))
def test_any_text_can_be_encoded(caption):
    ids = Vocabulary.build(["a b c"], min_count=1).encode(caption)
    assert ids[0] == START
    assert ids[-1] == END
