"""Captions with one word swapped: the rules on small examples, and the shares that are right."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from aoq.data.dataset import PairDataset
from aoq.data.splits import open_dataset
from aoq.errors import UserError
from aoq.runs.checkpoint import load_run
from aoq.training.two_rounds import run_recipe
from reproduction.__main__ import details
from reproduction.details import (
    ALL,
    BLIND,
    DETAIL_RESULTS,
    detail_tables,
    measure_details,
    score_swaps,
    shares,
)
from reproduction.swaps import KINDS, Swap, find_swaps, swap, words_in
from tests.experiments.cases import built_folder
from tests.training.cases import cca_recipe

WORDS = {
    form: 1
    for groups in KINDS.values()
    for group in groups
    for sense in group
    for form in sense.forms
}
ENOUGH = Counter(WORDS)


def only(word):
    """Counts by which this word is drawn, wherever it can be."""
    return Counter({word: 10**12})


def swapped(caption, kind, *others, counts=ENOUGH):
    """Swap a word of the first of a photo's captions."""
    named = frozenset(word for each in (caption, *others) for word in words_in(each))
    return swap(caption, kind, named=named, counts=counts)


def dataset_of(*photos):
    """A data set with these captions of each photo."""
    captions = [caption for photo in photos for caption in photo]
    owners = [number for number, photo in enumerate(photos) for _ in photo]
    pairs = list(zip(owners, range(len(captions)), strict=True))
    return PairDataset.of(np.zeros((len(photos), 2, 3), np.float32), captions, pairs)


@pytest.mark.parametrize("kind", KINDS)
def test_a_swap_changes_one_word_into_another_of_its_group(kind):
    caption = "Two dogs and a red ball on the left ."
    word, other, text = swapped(caption, kind)
    before, after = words_in(caption), words_in(text)
    changed = {pair for pair in zip(before, after, strict=True) if pair[0] != pair[1]}
    assert changed - {("a", "an")} == {(word, other)}
    (group,) = (g for g in KINDS[kind] if any(word in sense.forms for sense in g))
    assert any(other in sense.forms for sense in group)


@pytest.mark.parametrize("kind", KINDS)
def test_no_word_of_a_group_means_the_same_as_another(kind):
    for group in KINDS[kind]:
        forms = [form for sense in group for form in sense.forms]
        assert len(set(forms)) == len(forms)
        assert len({len(sense.forms) for sense in group}) == 1
        assert not any(sense.others & {*forms} for sense in group)


def test_a_plural_takes_the_place_of_a_plural():
    assert swapped("Dogs run", "object", counts=only("cats")) == ("dogs", "cats", "Cats run")


def test_no_word_is_taken_that_another_caption_of_the_photo_names():
    group = KINDS["object"][2]
    rest = [sense.forms[0] for sense in group[1:-1]]
    assert swapped("a dog", "object", *rest)[1] == group[-1].forms[0]
    assert swapped("a dog", "object", *rest, "two bulls") is None  # they are cows


@pytest.mark.parametrize("other", ["a lady", "girls play", "a female player"])
def test_a_person_is_not_swapped_where_a_caption_names_the_other_sex(other):
    assert swapped("a man", "object") == ("man", "woman", "a woman")
    assert swapped("a man", "object", other) is None


def test_an_article_and_a_capital_letter_follow_the_word():
    orange, red = only("orange"), only("red")
    assert swapped("A red cat", "colour", counts=orange)[2] == "An orange cat"
    assert swapped("he has an orange cat", "colour", counts=red)[2] == "he has a red cat"
    assert swapped("Red cats", "colour", counts=orange)[2] == "Orange cats"


@pytest.mark.parametrize(
    ("caption", "is_side"),
    [
        ("a man looks to the left", True),
        ("a cup in her right hand", True),
        ("the wave is right behind him", False),
        ("a skier has left a trail", False),
    ],
)
def test_left_and_right_are_sides_after_an_article_or_an_owner(caption, is_side):
    assert (swapped(caption, "side") is not None) == is_side


@pytest.mark.parametrize(
    "caption", ["a black-and-white photo", "a two-wheeled cart", "no such word"]
)
def test_parts_of_words_are_not_swapped(caption):
    assert all(swapped(caption, kind) is None for kind in KINDS)


def test_the_draw_depends_on_the_caption_and_prefers_frequent_words():
    counts = Counter({"red": 30, "white": 300})
    found = [swapped(f"a black dog {number}", "colour", counts=counts) for number in range(200)]
    assert found == [
        swapped(f"a black dog {number}", "colour", counts=counts) for number in range(200)
    ]
    others = Counter(other for _, other, _ in found)
    assert 0 < others["red"] < 40
    assert others["white"] > 150


def test_each_caption_has_at_most_one_swap_of_a_kind_by_the_words_of_its_own_photo():
    dataset = dataset_of(["two dogs in red", "a cat"], ["a black bird", "three horses"])
    found = find_swaps(dataset, ENOUGH)
    assert [(each.image, each.caption, each.kind, each.word) for each in found] == [
        (0, 0, "colour", "red"),
        (0, 0, "number", "two"),
        (0, 0, "object", "dogs"),
        (0, 1, "object", "cat"),
        (1, 2, "colour", "black"),
        (1, 2, "object", "bird"),
        (1, 3, "number", "three"),
        (1, 3, "object", "horses"),
    ]
    assert {each.other for each in found[2:4]}.isdisjoint({"dog", "dogs", "cat", "cats"})


def made(image, *, kind="colour", to_rarer=False):
    return Swap(image, 0, kind, "a", "b", "", to_rarer)


def test_shares_are_counted_by_kind_and_over_both_splits():
    dev = [made(0), made(0), made(1, kind="number")]
    found = shares([dev, [made(0)]], [np.array([True, False, True]), np.array([True])])
    assert found["colour"]["share"] == pytest.approx(2 / 3)
    assert (found["colour"]["dev"], found["colour"]["test"]) == (0.5, 1.0)
    assert (found["colour"]["photos"], found["colour"]["swaps"]) == (2, 3)
    assert (found["number"]["share"], found["side"]["share"]) == (1.0, None)
    assert found[ALL]["swaps"] == 4


def test_a_preference_for_frequent_words_gains_nothing_in_the_balanced_share():
    swaps = [made(image, to_rarer=image % 4 > 0) for image in range(80)]
    found = shares([swaps, []], [np.array([each.to_rarer for each in swaps]), np.array([], bool)])
    assert found["colour"]["share"] == pytest.approx(0.75)
    assert found["colour"]["balanced"] == found["colour"]["balanced_interval"][0] == 0.5


def test_swaps_of_one_photo_are_drawn_together():
    """Ten swaps a photo that are all right or all wrong tell as much as one."""
    one = [made(image) for image in range(40)]
    ten = [made(image) for image in range(40) for _ in range(10)]
    found = [
        shares([swaps, []], [np.array([each.image % 2 == 0 for each in swaps]), np.array([], bool)])
        for swaps in (one, ten)
    ]
    assert found[0]["colour"]["interval"] == found[1]["colour"]["interval"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run on captions of dogs that can be swapped, and its data set."""
    root = tmp_path_factory.mktemp("details")
    data = built_folder(root / "data", caption="two brown dogs on the left of a cat, photo")
    run_recipe(root / "run", cca_recipe(data))
    return root / "run", data


def test_scores_are_those_of_the_pairs_one_by_one(trained):
    run, data = trained
    loaded = load_run(run)
    dataset = open_dataset(data, "test")
    text = "two brown dogs on the left of a cat, photo photo 3"
    swaps = [Swap(k, k, "colour", "", "", text, to_rarer=False) for k in range(len(dataset))]
    right = score_swaps(loaded, dataset, swaps)
    for each, is_right in zip(swaps, right, strict=True):
        assert score_swaps(loaded, dataset, [each])[0] == is_right
        same = replace(each, text=dataset.captions[each.caption])
        assert not score_swaps(loaded, dataset, [same])[0]  # a tie is not right


def test_runs_are_added_to_the_results_beside_each_other(trained, tmp_path):
    run, data = trained
    results = tmp_path / "details.json"
    measure_details({"one": run}, data, results=results)
    details(run, labels=("two",), results=results)
    rows = json.loads(results.read_text("utf-8"))["rows"]
    assert list(rows) == [BLIND, "one", "two"]
    assert rows["one"] == rows["two"]
    assert str(run.parent) not in results.read_text("utf-8")
    assert all(table.count("\n| ") == 4 for table in detail_tables(results).values())


def test_runs_of_one_name_have_to_be_told_apart():
    with pytest.raises(UserError, match="--labels"):
        details(Path("a/seed-0"), Path("b/seed-0"))


def test_kept_results_are_within_their_intervals_and_the_blind_row_is_chance_where_balanced():
    rows = json.loads(DETAIL_RESULTS.read_text("utf-8"))["rows"]
    assert len(rows) > 1
    for row in rows.values():
        for kind in (*KINDS, ALL):
            found = row[kind]
            assert found["swaps"] == rows[BLIND][kind]["swaps"]
            assert found["interval"][0] <= found["share"] <= found["interval"][1]
    assert {rows[BLIND][kind]["balanced"] for kind in (*KINDS, ALL)} == {0.5}
