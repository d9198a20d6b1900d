"""What is nearly the same is found among all, as comparing every pair would find it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageEnhance

from aoq.data.checks.resemblance import Vectors, WordSets, look_alikes
from aoq.data.scenes import write_scenes
from aoq.features.extract import extract_pictures, load_regions
from aoq.features.regions import DEFAULT_SOURCE

WORDS = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k"]
SETS = st.lists(st.sampled_from(WORDS), max_size=len(WORDS), unique=True)


def are_near(one: str, other: str) -> bool:
    """The definition, for two captions."""
    first, second = set(one.split()), set(other.split())
    if (
        not first
        or not second
        or first == second
        or max(len(first - second), len(second - first)) > 1
    ):
        return False
    return 5 * len(first & second) >= 4 * len(first | second)


@given(
    rows=st.lists(st.tuples(SETS.map(" ".join), st.integers(0, 3), st.booleans()), max_size=25),
    base=SETS,
)
def test_partners_are_those_that_comparing_all_pairs_finds(
    rows: list[tuple[str, int, bool]], base: list[str]
) -> None:
    """Variants of one caption are among the captions, so that many are near."""
    variants = [" ".join(base[:skip] + base[skip + 1 :]) for skip in range(len(base))]
    rows = [*rows, *((variant, n % 3, n % 4 > 0) for n, variant in enumerate(variants))]
    captions = [caption for caption, _, _ in rows]
    owners = np.array([owner for _, owner, _ in rows], np.int64)
    among = np.array([looked_at for _, _, looked_at in rows], bool)
    partners = WordSets(captions).partners(owners, among=among).tolist()
    for text, partner in enumerate(partners):
        near = {
            other
            for other in range(len(rows))
            if among[text] and among[other] and owners[text] != owners[other]
            if are_near(captions[text], captions[other])
        }
        assert partner in near if near else partner == -1


@pytest.mark.parametrize(
    ("one", "other", "near"),
    [
        ("a man rides a bike", "A man rides a bike .", False),  # the same
        ("a man rides", "a man rides fast", False),  # three of four
        ("a man rides bikes", "a man rides bikes fast", True),  # four of five
        ("a b c d e f g h", "a b c d e f g x", False),  # seven of nine
        ("a b c d e f g h i", "a b c d e f g h x", True),  # eight of ten
        ("!", "?", False),
        ("a b c d की", "a b c d की कु", True),  # marks belong to their letters
        ("a b c d की", "a b c d कु", False),
    ],
)
def test_four_in_five_words_are_enough_if_only_one_differs(
    one: str, other: str, near: bool
) -> None:
    partners = WordSets([one, other]).partners(np.array([0, 1]))
    assert partners.tolist() == ([1, 0] if near else [-1, -1])


def test_equal_captions_of_others_hide_no_near_one() -> None:
    """Neither where a word is other nor where one is more; the equal ones have all other owners."""
    equal = "a b c d e f g h i"
    for near in ("a b c d e f g h x", "a b c d e f g h"):
        partners = WordSets([equal, equal, near, equal]).partners(np.array([0, 1, 2, 3])).tolist()
        assert partners == [2, 2, partners[2], 2]
        assert partners[2] in {0, 1, 3}


def test_captions_of_one_owner_are_not_partners() -> None:
    assert WordSets(["a dog"] * 3).partners(np.zeros(3, np.int64)).tolist() == [-1] * 3


def test_no_captions_have_no_partners() -> None:
    assert WordSets([]).partners(np.empty(0, np.int64)).tolist() == []


def test_copies_are_found_among_pictures_and_others_are_not() -> None:
    random = np.random.default_rng(0)
    others = random.random((1200, 100), dtype=np.float32)
    pictures = random.random((1100, 100), dtype=np.float32)
    pictures[[3, 700]] = others[[1100, 5]] + random.normal(0, 0.03, (2, 100))
    assert look_alikes(pictures, others) == [(3, 1100), (700, 5)]


def test_likeness_does_not_depend_on_the_unit_or_the_middle_of_a_feature() -> None:
    random = np.random.default_rng(0)
    unit, middle = 10 ** random.uniform(-3, 3, 100), random.normal(0, 50, 100)
    others = random.random((200, 100))
    pictures = random.random((50, 100))
    pictures[7] = others[70] + random.normal(0, 0.03, 100)
    scaled = [(x * unit + middle * unit).astype(np.float32) for x in (pictures, others)]
    assert look_alikes(*scaled) == [(7, 70)]


def test_of_changed_copies_of_real_pictures_the_slightly_changed_are_found(
    tmp_path: Path, own_cache: Path
) -> None:
    """Brighter ones are, and are taken for no other picture; those of a quarter's size are not."""
    write_scenes(tmp_path, size="tiny")
    scenes = sorted(tmp_path.rglob("*.png"))[:64]
    copies: dict[str, list[Path]] = {"brighter": [], "smaller": []}
    for number, scene in enumerate(scenes[:6]):
        with Image.open(scene) as image:
            changed = {
                "brighter": ImageEnhance.Brightness(image).enhance(1.05),
                "smaller": image.resize((image.width // 4, image.height // 4)),
            }
        for kind, copy in changed.items():
            copies[kind].append(tmp_path / f"{kind}{number}.png")
            copy.save(copies[kind][-1])
    others = mean_regions(scenes)
    found = look_alikes(mean_regions(copies["brighter"]), others)
    assert len(found) >= 4
    assert all(copy == scene for copy, scene in found)
    assert look_alikes(mean_regions(copies["smaller"]), others) == []


def mean_regions(pictures: list[Path]) -> Vectors:
    stored = extract_pictures(pictures, DEFAULT_SOURCE).stored
    regions = (load_regions(place, DEFAULT_SOURCE) for place in stored.values())
    return np.stack([rows.mean(axis=0, dtype=np.float32) for rows in regions])


def test_features_that_are_all_equal_are_not_copies() -> None:
    assert look_alikes(np.ones((70, 80), np.float32), np.ones((70, 80), np.float32)) == []
