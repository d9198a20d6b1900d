"""The wordings of facts: every fact has one or several.

The module holds tables only, so a new synonym is one more string. Each wording fits wherever its
neighbours do: relations follow "is" as well as a noun ("a cup is held by ...", "a cup held by
..."), and settings and places stand at either end of a sentence.
"""

from __future__ import annotations

from typing import NamedTuple


class Noun(NamedTuple):
    """A name for a kind."""

    one: str
    many: str


NOUNS: dict[str, tuple[Noun, ...]] = {
    "ball": (Noun("ball", "balls"), Noun("sphere", "spheres")),
    "bear": (Noun("bear", "bears"), Noun("teddy bear", "teddy bears")),
    "bird": (Noun("bird", "birds"),),
    "boat": (Noun("boat", "boats"), Noun("ship", "ships")),
    "book": (Noun("book", "books"),),
    "car": (Noun("car", "cars"), Noun("automobile", "automobiles")),
    "clock": (Noun("clock", "clocks"), Noun("alarm clock", "alarm clocks")),
    "cup": (Noun("cup", "cups"), Noun("mug", "mugs")),
    "fish": (Noun("fish", "fish"),),
    "flower": (Noun("flower", "flowers"), Noun("blossom", "blossoms")),
    "house": (Noun("house", "houses"), Noun("cottage", "cottages")),
    "robot": (Noun("robot", "robots"), Noun("android", "androids")),
    "star": (Noun("star", "stars"),),
    "tree": (Noun("tree", "trees"),),
    "umbrella": (Noun("umbrella", "umbrellas"), Noun("parasol", "parasols")),
}

SIZE_WORDS: dict[str, tuple[str, ...]] = {
    "small": ("small", "little", "tiny"),
    "large": ("large", "big"),
}

PATTERN_WORDS: dict[str, tuple[str, ...]] = {
    "plain": ("plain", "unpatterned"),
    "striped": ("striped", "stripy"),
    "dotted": ("dotted", "spotted"),
}

PATTERN_ENDINGS: dict[str, tuple[str, ...]] = {
    "plain": ("without a pattern",),
    "striped": ("with stripes",),
    "dotted": ("with dots", "with spots"),
}

COUNT_WORDS: dict[int, tuple[str, ...]] = {
    2: ("two", "two", "a couple of"),
    3: ("three",),
}

RELATION_WORDS: dict[str, tuple[str, ...]] = {
    "left of": ("left of", "to the left of", "on the left side of"),
    "right of": ("right of", "to the right of", "on the right side of"),
    "above": ("above", "over", "higher up than"),
    "below": ("below", "under", "beneath", "lower down than"),
    "holds": ("holding", "carrying"),
    "held by": ("held by", "carried by", "in the hand of"),
}

SIDE_WORDS: dict[str, tuple[str, ...]] = {
    "left": ("on the left", "in the left half"),
    "right": ("on the right", "in the right half"),
}

HEIGHT_WORDS: dict[str, tuple[str, ...]] = {
    "top": ("at the top", "in the upper half"),
    "bottom": ("at the bottom", "in the lower half"),
}

CORNER_WORDS: dict[tuple[str, str], tuple[str, ...]] = {
    ("top", "left"): ("at the top left", "in the upper left corner"),
    ("top", "right"): ("at the top right", "in the upper right corner"),
    ("bottom", "left"): ("at the bottom left", "in the lower left corner"),
    ("bottom", "right"): ("at the bottom right", "in the lower right corner"),
}

SETTING_WORDS: dict[str, tuple[str, ...]] = {
    "meadow": ("in a meadow", "on green grass", "in a grassy field"),
    "beach": ("on a beach", "on the sand by the sea", "at the seaside"),
    "snow": ("in the snow", "on a snowy day", "in a winter landscape"),
    "night": ("at night", "under a dark night sky", "in the dark"),
    "room": ("in a room", "indoors", "inside a room with a wooden floor"),
    "studio": ("in front of an empty backdrop", "on an empty background"),
}

PICTURES = ("a picture of", "an image of", "a drawing of", "a scene with")
SIGHTS = ("you can see", "we see", "the picture shows", "this image contains")
SHOWN = ("are shown", "can be seen", "are visible", "appear together")
JOINTS = (", and", ", while", ", whereas")
