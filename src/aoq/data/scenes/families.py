"""Scenes in families: a base scene and its near twins.

A twin differs from its base in exactly one detail, so distinguishing them needs that detail.
Every kind of difference is a generator in `CHANGES` that enumerates all the twins it can make;
twins that cannot be drawn are dropped. No scene occurs in two families.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from random import Random
from typing import Any

from aoq.data.scenes.world import (
    CELLS,
    COLOURS,
    COUNTS,
    HOLDABLE,
    HOLDERS,
    KINDS,
    PATTERNS,
    SETTINGS,
    SIZES_OF_THINGS,
    Cell,
    Group,
    Scene,
    can_be_drawn,
)

Family = tuple[Scene, ...]
Change = Callable[[Scene], Iterator[Scene]]

SMALLEST_FAMILY, LARGEST_FAMILY = 2, 5


@dataclass(frozen=True)
class SplitSizes:
    """Numbers of pictures."""

    train: int
    dev: int
    test: int


def families(sizes: SplitSizes, *, seed: int) -> dict[str, tuple[Family, ...]]:
    """Sample the families of each split; a family is never divided between splits."""
    random = Random(f"families {seed}")
    seen: set[Scene] = set()
    return {
        split: tuple(_families(pictures, random=random, seen=seen))
        for split, pictures in (("train", sizes.train), ("dev", sizes.dev), ("test", sizes.test))
    }


def _families(pictures: int, *, random: Random, seen: set[Scene]) -> Iterator[Family]:
    missing = pictures
    while missing:
        family = sample_family(_family_size(missing, random), random)
        if seen.isdisjoint(family):
            seen.update(family)
            missing -= len(family)
            yield family


def _family_size(missing: int, random: Random) -> int:
    """Choose a size that leaves no single scene over, because a family needs two."""
    sizes = [
        size
        for size in range(SMALLEST_FAMILY, LARGEST_FAMILY + 1)
        if missing - size == 0 or missing - size >= SMALLEST_FAMILY
    ]
    return random.choice(sizes)


def sample_family(size: int, random: Random) -> Family:
    """Sample a base scene and `size - 1` different twins of it."""
    family = [sample_scene(random)]
    while len(family) < size:
        change = random.choice(tuple(CHANGES))
        twins = [twin for twin in twins_by(change, family[0]) if twin not in family]
        if twins:
            family.append(random.choice(twins))
    return tuple(family)


def sample_scene(random: Random) -> Scene:
    """Sample two to four groups, up to two of them in the hands of others."""
    total = random.choices((2, 3, 4), (1, 2, 2))[0]
    pairs = random.choice((0, 0, 1, 1, total // 2))
    holders = random.sample(HOLDERS, pairs)
    held = random.sample(HOLDABLE, pairs)
    others = [kind for kind in KINDS if kind not in (*holders, *held)]
    alone = random.sample(others, total - 2 * pairs)
    cells = random.sample(CELLS, total - pairs)

    groups = [
        _sample_group(kind, cell, random) for kind, cell in zip(alone, cells[pairs:], strict=True)
    ]
    for holder, thing, cell in zip(holders, held, cells[:pairs], strict=True):
        groups.append(replace(_sample_group(holder, cell, random), size="large", count=1))
        groups.append(replace(_sample_group(thing, cell, random), size="small", count=1, held=True))
    return Scene.of(random.choice(SETTINGS), groups)


def _sample_group(kind: str, cell: Cell, random: Random) -> Group:
    count = random.choices(COUNTS, (3, 1, 1))[0]
    return Group(
        cell=cell,
        held=False,
        kind=kind,
        colour=random.choice(COLOURS),
        pattern=random.choice(PATTERNS),
        size=random.choice(SIZES_OF_THINGS) if count == 1 else "small",
        count=count,
    )


def twins_by(change: str, base: Scene) -> tuple[Scene, ...]:
    """Return all scenes that differ from the base by one change of this name."""
    return tuple(twin for twin in CHANGES[change](base) if twin != base and can_be_drawn(twin))


def _with(scene: Scene, **changed: Group) -> Scene:
    """Replace some groups of a scene, identified by their kind."""
    return Scene.of(scene.setting, (changed.get(group.kind, group) for group in scene.groups))


def _another(attribute: str, values: tuple[str, ...] | tuple[int, ...]) -> Change:
    """Return a change that gives one group another value of an attribute."""

    def change(scene: Scene) -> Iterator[Scene]:
        for group in scene.groups:
            for value in values:
                changed: dict[str, Any] = {attribute: value}
                yield _with(scene, **{group.kind: replace(group, **changed)})

    return change


def _another_setting(scene: Scene) -> Iterator[Scene]:
    for setting in SETTINGS:
        yield replace(scene, setting=setting)


def _colours_swapped(scene: Scene) -> Iterator[Scene]:
    for a, b in combinations(scene.groups, 2):
        recoloured = {a.kind: replace(a, colour=b.colour), b.kind: replace(b, colour=a.colour)}
        yield _with(scene, **recoloured)


def _places_swapped(scene: Scene) -> Iterator[Scene]:
    """Swap everything in one cell with everything in another."""
    for here, there in combinations(sorted({group.cell for group in scene.groups}), 2):
        other = {here: there, there: here}
        moved = (replace(group, cell=other.get(group.cell, group.cell)) for group in scene.groups)
        yield Scene.of(scene.setting, moved)


def _hands_swapped(scene: Scene) -> Iterator[Scene]:
    """Swap what is held with something else that is held or could be."""
    for a, b in combinations(scene.groups, 2):
        if (a.held or b.held) and a.cell != b.cell:
            moved = {
                a.kind: replace(a, cell=b.cell, held=b.held),
                b.kind: replace(b, cell=a.cell, held=a.held),
            }
            yield _with(scene, **moved)


CHANGES: dict[str, Change] = {
    "colour": _another("colour", COLOURS),
    "kind": _another("kind", KINDS),
    "size": _another("size", SIZES_OF_THINGS),
    "pattern": _another("pattern", PATTERNS),
    "count": _another("count", COUNTS),
    "setting": _another_setting,
    "colours swapped": _colours_swapped,
    "places swapped": _places_swapped,
    "hands swapped": _hands_swapped,
}
