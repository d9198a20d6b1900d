"""Scenes, and the facts that are true of them.

A scene holds only what can be said about a picture: which things, how many, how they look, where
they are, who holds what, and the setting. Everything else (jitter, light, noise) belongs to the
drawing. So two scenes are equal exactly when no sentence can distinguish them.

The facts of a scene are a set; a sentence states a subset of them. A sentence is therefore false of
another scene as soon as it states one fact that the other scene lacks. Kinds are distinct within a
scene, so a kind's name identifies its group and "two balls" is never ambiguous.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations
from typing import NamedTuple

HOLDERS = ("robot", "bear")
HOLDABLE = ("ball", "cup", "fish", "star", "book", "umbrella", "clock", "flower")
KINDS = (*HOLDERS, *HOLDABLE, "car", "tree", "house", "bird", "boat")
COLOURS = ("red", "orange", "yellow", "green", "blue", "purple", "pink", "white")
PATTERNS = ("plain", "striped", "dotted")
SIZES_OF_THINGS = ("small", "large")
COUNTS = (1, 2, 3)
SETTINGS = ("meadow", "beach", "snow", "night", "room", "studio")

ROWS = ("top", "bottom")
COLUMNS = ("left", "right")
FEWEST_GROUPS, MOST_GROUPS = 2, 4

CONVERSE = {"left of": "right of", "above": "below", "holds": "held by"}


class Cell(NamedTuple):
    """A quarter of the picture."""

    row: int
    column: int


CELLS = tuple(Cell(row, column) for row in range(len(ROWS)) for column in range(len(COLUMNS)))


class Fact(NamedTuple):
    """A true statement, such as `Fact("ball", "left of", "cup")`."""

    subject: str
    predicate: str
    value: str


@dataclass(frozen=True, order=True)
class Group:
    """One to three equal things in one cell; a held group shares the cell of its holder."""

    cell: Cell
    held: bool
    kind: str
    colour: str
    pattern: str
    size: str
    count: int

    @property
    def is_handy(self) -> bool:
        """Whether a hand can hold it."""
        return self.kind in HOLDABLE and self.size == "small" and self.count == 1

    @property
    def has_hands_free(self) -> bool:
        """Whether it can hold something."""
        return self.kind in HOLDERS and self.size == "large" and self.count == 1


@dataclass(frozen=True)
class Scene:
    """Groups in a setting; build it with `Scene.of`, which puts the groups in order."""

    setting: str
    groups: tuple[Group, ...]

    @classmethod
    def of(cls, setting: str, groups: Iterable[Group]) -> Scene:
        """Return the same scene for these groups, whatever order they are given in."""
        return cls(setting, tuple(sorted(groups)))

    def in_cell(self, cell: Cell) -> tuple[Group, ...]:
        """Return the group that stands in a cell, followed by the group that it holds."""
        return tuple(group for group in self.groups if group.cell == cell)


def can_be_drawn(scene: Scene) -> bool:
    """Return whether every group fits its cell and the kinds are distinct."""
    kinds = Counter(group.kind for group in scene.groups)
    return (
        FEWEST_GROUPS <= len(scene.groups) <= MOST_GROUPS
        and max(kinds.values()) == 1
        and all(group.size == "small" for group in scene.groups if group.count > 1)
        and all(_fits(scene.in_cell(cell)) for cell in CELLS)
    )


def _fits(groups: tuple[Group, ...]) -> bool:
    """Return whether a cell is empty, or has one group, or a holder and what it holds."""
    match groups:
        case ():
            return True
        case (alone,):
            return not alone.held
        case (holder, held):
            return held.held and not holder.held and holder.has_hands_free and held.is_handy
    return False


@lru_cache(maxsize=64)
def facts(scene: Scene) -> frozenset[Fact]:
    """Return everything that is true of a scene; no two scenes have the same facts."""
    return frozenset(_facts(scene))


def _facts(scene: Scene) -> Iterator[Fact]:
    yield Fact("scene", "setting", scene.setting)
    for group in scene.groups:
        yield Fact(group.kind, "count", str(group.count))
        yield Fact(group.kind, "colour", group.colour)
        yield Fact(group.kind, "size", group.size)
        yield Fact(group.kind, "pattern", group.pattern)
        yield Fact(group.kind, "height", ROWS[group.cell.row])
        yield Fact(group.kind, "side", COLUMNS[group.cell.column])
    for first, second in permutations(scene.groups, 2):
        for relation in _relations(first, second):
            yield Fact(first.kind, relation, second.kind)
            yield Fact(second.kind, CONVERSE[relation], first.kind)


def _relations(first: Group, second: Group) -> Iterator[str]:
    if first.cell.column < second.cell.column:
        yield "left of"
    if first.cell.row < second.cell.row:
        yield "above"
    if first.cell == second.cell and second.held:
        yield "holds"


def holds(stated: frozenset[Fact], scene: Scene) -> bool:
    """Return whether all stated facts are true of the scene."""
    return stated <= facts(scene)
