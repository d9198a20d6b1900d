"""The scenes keep their promises: true sentences, near twins, clean splits, the same files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from aoq.data.scenes import (
    SIZES,
    Fact,
    Group,
    Scene,
    SplitSizes,
    describe,
    draw,
    facts,
    families,
    holds,
    write_scenes,
)
from aoq.data.scenes.backdrops import BACKDROPS
from aoq.data.scenes.drawing import SIDE
from aoq.data.scenes.families import CHANGES, Family, sample_family, sample_scene, twins_by
from aoq.data.scenes.figures import ARMS, FIGURES
from aoq.data.scenes.language import phrases
from aoq.data.scenes.painting import TONES
from aoq.data.scenes.words import NOUNS, PATTERN_WORDS, SETTING_WORDS, SIZE_WORDS
from aoq.data.scenes.world import COLOURS, HOLDABLE, HOLDERS, KINDS, SETTINGS, Cell, can_be_drawn
from aoq.errors import UserError

A_FEW = SplitSizes(train=60, dev=20, test=20)
seeds = st.integers(0, 2**32)


def rivals(scene: Scene, family: Family) -> list[Scene]:
    return [other for other in family if other != scene]


def all_families(seed: int = 0) -> Iterator[Family]:
    return chain.from_iterable(families(A_FEW, seed=seed).values())


def thing(kind: str, cell: tuple[int, int], **details: object) -> Group:
    defaults = {"held": False, "colour": "red", "pattern": "plain", "size": "large", "count": 1}
    return Group(cell=Cell(*cell), kind=kind, **(defaults | details))  # type: ignore[arg-type]


# What is true


def test_the_facts_of_a_scene_are_what_one_sees() -> None:
    cup = thing("cup", (0, 0), held=True, size="small", colour="blue")
    scene = Scene.of("snow", [cup, thing("robot", (0, 0)), thing("tree", (1, 1))])
    true = {
        Fact("robot", "holds", "cup"),
        Fact("cup", "held by", "robot"),
        Fact("cup", "above", "tree"),
        Fact("tree", "right of", "robot"),
        Fact("cup", "colour", "blue"),
        Fact("tree", "side", "right"),
        Fact("scene", "setting", "snow"),
    }
    false = {
        Fact("robot", "left of", "cup"),
        Fact("tree", "above", "cup"),
        Fact("cup", "colour", "red"),
        Fact("scene", "setting", "beach"),
    }
    assert holds(frozenset(true), scene)
    assert not any(holds(frozenset({fact}), scene) for fact in false)


@settings(max_examples=50, deadline=None)
@given(seeds)
def test_scenes_with_the_same_facts_are_equal(seed: int) -> None:
    family = sample_family(5, Random(seed))
    assert len({facts(scene) for scene in family}) == len(family)


def test_a_scene_does_not_depend_on_the_order_of_its_groups() -> None:
    groups = [thing("cup", (0, 1)), thing("tree", (1, 0))]
    assert Scene.of("beach", groups) == Scene.of("beach", reversed(groups))


@pytest.mark.parametrize(
    "groups",
    [
        [thing("cup", (0, 0))],
        [thing("cup", (0, 0)), thing("cup", (0, 1))],
        [thing("cup", (0, 0)), thing("tree", (0, 0))],
        [thing("cup", (0, 0), count=2), thing("tree", (0, 1))],
        [thing("tree", (0, 0)), thing("cup", (0, 0), held=True, size="small")],
        [thing("robot", (0, 0)), thing("house", (0, 0), held=True, size="small")],
    ],
    ids=["one group", "kind twice", "cell taken", "two large", "a tree holds", "house held"],
)
def test_what_does_not_fit_is_not_drawn(groups: list[Group]) -> None:
    assert not can_be_drawn(Scene.of("room", groups))


# Families


@settings(max_examples=50, deadline=None)
@given(seeds)
def test_every_sampled_scene_and_twin_can_be_drawn(seed: int) -> None:
    base, *twins = sample_family(5, Random(seed))
    assert can_be_drawn(base)
    assert all(can_be_drawn(twin) for twin in twins)


@settings(max_examples=50, deadline=None)
@given(seeds)
def test_a_twin_differs_from_its_base_by_one_change(seed: int) -> None:
    base, *twins = sample_family(5, Random(seed))
    one_change_away = {twin for change in CHANGES for twin in twins_by(change, base)}
    assert one_change_away.issuperset(twins)
    assert base not in one_change_away


@pytest.mark.parametrize("change", CHANGES)
def test_every_change_happens(change: str) -> None:
    random = Random(1)
    assert any(twins_by(change, sample_scene(random)) for _ in range(50))


def test_swapped_hands_change_who_holds_what() -> None:
    fish = thing("fish", (0, 0), size="small", held=True)
    cup = thing("cup", (1, 1), size="small")
    base = Scene.of("room", [thing("bear", (0, 0)), fish, cup])
    (twin,) = twins_by("hands swapped", base)
    assert holds(frozenset({Fact("bear", "holds", "fish")}), base)
    assert holds(frozenset({Fact("bear", "holds", "cup")}), twin)


def test_no_scene_occurs_twice_in_any_split() -> None:
    scenes = list(chain.from_iterable(all_families()))
    assert len(set(scenes)) == len(scenes)


def test_families_have_two_to_five_members_and_fill_each_split_exactly() -> None:
    for seed in range(5):
        for split, of_split in families(A_FEW, seed=seed).items():
            assert sum(map(len, of_split)) == getattr(A_FEW, split)
            assert {len(family) for family in of_split} <= {2, 3, 4, 5}


# Sentences


def test_every_sentence_is_true_of_its_own_scene() -> None:
    for number, family in enumerate(all_families()):
        for scene in family:
            for phrase in phrases(scene, seed=number, rivals=rivals(scene, family)):
                assert holds(phrase.facts, scene)


def test_at_least_three_of_five_sentences_are_false_of_each_rival() -> None:
    for number, family in enumerate(all_families()):
        for scene in family:
            sentences = phrases(scene, seed=number, rivals=rivals(scene, family))
            for rival in rivals(scene, family):
                assert sum(not holds(sentence.facts, rival) for sentence in sentences) >= 3


def test_a_picture_has_five_different_sentences_of_readable_length() -> None:
    for number, family in enumerate(all_families()):
        for scene in family:
            sentences = describe(scene, seed=number, rivals=rivals(scene, family))
            assert len(set(sentences)) == 5
            for sentence in sentences:
                assert 6 <= len(sentence.split()) <= 25
                assert re.fullmatch(r"[A-Z][a-z, ]+\.", sentence)


ADJECTIVES = {
    **{colour: ("colour", colour) for colour in COLOURS},
    **{word: ("size", size) for size, words in SIZE_WORDS.items() for word in words},
    **{word: ("pattern", name) for name, words in PATTERN_WORDS.items() for word in words},
}
NAMES = {name: kind for kind, nouns in NOUNS.items() for noun in nouns for name in noun}
NOUN_PHRASE = re.compile(
    rf"\b(an?|the|two|three|a couple of)((?: (?:{'|'.join(ADJECTIVES)}))*)"
    rf" ({'|'.join(sorted(NAMES, key=len, reverse=True))})\b"
)
COUNTS = {"a": 1, "an": 1, "two": 2, "a couple of": 2, "three": 3}


def test_read_as_plain_text_the_nouns_of_a_sentence_have_the_looks_of_the_scene() -> None:
    for number, family in enumerate(all_families()):
        for scene in family:
            groups = {group.kind: group for group in scene.groups}
            for sentence in describe(scene, seed=number, rivals=rivals(scene, family)):
                found = NOUN_PHRASE.findall(sentence.lower())
                assert found
                for determiner, adjectives, name in found:
                    group = groups[NAMES[name]]
                    assert COUNTS.get(determiner, group.count) == group.count
                    for adjective in adjectives.split():
                        attribute, value = ADJECTIVES[adjective]
                        assert getattr(group, attribute) == value


def test_the_vocabulary_is_small_but_not_tiny() -> None:
    words: set[str] = set()
    for family in chain.from_iterable(families(SplitSizes(400, 2, 2), seed=0).values()):
        for number, scene in enumerate(family):
            for sentence in describe(scene, seed=number, rivals=rivals(scene, family)):
                words.update(re.findall("[a-z]+", sentence.lower()))
    assert 120 <= len(words) <= 220


# Pictures


def test_everything_that_can_be_in_a_scene_has_a_shape_a_tone_and_a_word() -> None:
    assert set(FIGURES) == set(NOUNS) == set(KINDS)
    assert set(ARMS) == set(HOLDERS)
    assert set(TONES) == set(COLOURS)
    assert set(BACKDROPS) == set(SETTING_WORDS) == set(SETTINGS)


def test_a_picture_depends_on_its_scene_and_seed_only() -> None:
    scene, other = sample_family(2, Random(0))
    first = np.asarray(draw(scene, seed=3))
    draw(other, seed=4)
    assert first.shape == (SIDE, SIDE, 3)
    assert np.array_equal(first, np.asarray(draw(scene, seed=3)))
    assert not np.array_equal(first, np.asarray(draw(scene, seed=5)))


def painted_differently(one: Scene, other: Scene, seed: int) -> tuple[int, int]:
    """The lowest row and rightmost column in which the pictures of two scenes differ."""
    first, second = (np.asarray(draw(scene, seed=seed)) for scene in (one, other))
    rows, columns = np.nonzero((first != second).any(axis=2))
    return rows.max(), columns.max()


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(KINDS), st.sampled_from([("small", 1), ("large", 1), ("small", 3)]), seeds)
def test_a_group_stays_in_its_cell(kind: str, look: tuple[str, int], seed: int) -> None:
    size, count = look
    red, blue = (
        Scene("studio", (thing(kind, (0, 0), size=size, count=count, colour=colour),))
        for colour in ("red", "blue")
    )
    assert max(painted_differently(red, blue, seed)) < SIDE // 2


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(HOLDERS), st.sampled_from(HOLDABLE), seeds)
def test_what_is_held_stays_in_the_cell_of_its_holder(holder: str, kind: str, seed: int) -> None:
    red, blue = (
        Scene(
            "studio",
            (
                thing(holder, (0, 0)),
                thing(kind, (0, 0), held=True, size="small", colour=colour),
            ),
        )
        for colour in ("red", "blue")
    )
    assert max(painted_differently(red, blue, seed)) < SIDE // 2


# Files


def test_the_files_are_complete_and_the_same_for_the_same_seed(tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    write_scenes(tmp_path / "a", size="tiny", progress=lambda *call: calls.append(call))
    write_scenes(tmp_path / "b", size="tiny")
    write_scenes(tmp_path / "c", size="tiny", seed=1)
    texts = [(tmp_path / name / "captions.jsonl").read_bytes() for name in "abc"]
    assert texts[0] == texts[1] != texts[2]
    assert calls == [(done, 80) for done in range(1, 81)]

    records = [json.loads(line) for line in texts[0].splitlines()]
    assert len(records) == 5 * 80
    for split in ("train", "dev", "test"):
        names = {record["image"] for record in records if record["split"] == split}
        count = getattr(SIZES["tiny"], split)
        assert names == {f"pictures/{split}-{number:05d}.png" for number in range(count)}
    for record in records[::5]:
        one, two = (Image.open(tmp_path / name / record["image"]) for name in "ab")
        assert np.array_equal(np.asarray(one), np.asarray(two))
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == [
        "captions.jsonl",
        "pictures",
    ]


def test_an_unknown_size_names_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"'huge'.*tiny, small, large"):
        write_scenes(tmp_path, size="huge")
