"""The word count of small data sets, which is 1 unless somebody says otherwise."""

from __future__ import annotations

import pytest

from aoq.config import MIN_WORD_COUNT
from aoq.recipes import load_recipe
from aoq.runs.directory import RunDirectory
from aoq.training import inputs
from aoq.training.inputs import open_training_data
from aoq.training.two_rounds import train_round
from tests.training.cases import small_recipe


@pytest.fixture
def rare(precomp):
    """A data set in which every train caption has three words that no other has."""
    file = precomp / "train_caps.txt"
    lines = file.read_text().splitlines()
    words = [
        f"{line} {'abcdefghij'[n % 10]}{'klmnopqrst'[n // 10]}zz own{n}x rare{n}y"
        for n, line in enumerate(lines)
    ]
    file.write_text("\n".join(words) + "\n")
    return precomp


def test_a_small_set_keeps_all_words(rare):
    data = open_training_data(small_recipe(rare, min_word_count=None))
    assert data.min_word_count == 1
    assert data.train.unknown_share() == 0


def test_an_explicit_word_count_wins(rare, capsys):
    data = open_training_data(small_recipe(rare, min_word_count=4))
    assert data.min_word_count == 4
    assert "--min-word-count 1 keeps them all" in capsys.readouterr().err


def test_a_large_set_has_the_paper_s_count(precomp, monkeypatch):
    monkeypatch.setattr(inputs, "_SMALL", 10)
    data = open_training_data(small_recipe(precomp, min_word_count=None))
    assert data.min_word_count == MIN_WORD_COUNT


def test_a_run_stores_the_count_that_it_used_and_continues(rare, tmp_path):
    recipe = small_recipe(rare, min_word_count=None)
    for _ in range(2):
        train_round(tmp_path / "run", recipe, open_training_data(recipe), which="one")
    assert load_recipe(RunDirectory(tmp_path / "run").config).min_word_count == 1


def test_warnings_about_the_data_are_one_line(precomp, capsys):
    open_training_data(small_recipe(precomp))
    told = [line for line in capsys.readouterr().err.splitlines() if "warning" in line]
    assert len(told) == 1
    assert "about the data; see `aoq data check" in told[0].replace("\n", " ")
