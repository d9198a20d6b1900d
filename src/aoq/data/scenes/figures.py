"""The shapes of things: a table of parts for each kind.

A figure lives in the square from -1-1j to 1+1j with y pointing down; points are complex numbers,
so that the drawing turns and scales a figure by one multiplication. A part is a set of polygons
that share one paint and one outline. The paint "body" takes the colour and pattern of the thing,
"shade" a darker tone of it, and every other paint is fixed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Points = NDArray[np.complex128]


class Part(NamedTuple):
    """Polygons drawn together, later parts over earlier ones."""

    paint: str
    polygons: tuple[Points, ...]


class Arms(NamedTuple):
    """The arms that a holder adds to its figure: at rest, or with one reaching out to hold."""

    resting: tuple[Part, ...]
    reaching: tuple[Part, ...]
    hand: Part
    grip: complex


PAINTS = {
    "ink": (45, 40, 55),
    "paper": (252, 250, 242),
    "wood": (139, 94, 60),
    "leaf": (64, 145, 70),
    "glass": (190, 228, 245),
    "metal": (158, 165, 178),
    "amber": (245, 180, 50),
    "cream": (248, 224, 190),
}


def polygon(*points: complex) -> Points:
    """Return a polygon of straight edges."""
    return np.array(points, dtype=np.complex128)


def box(left: float, top: float, right: float, bottom: float) -> Points:
    """Return an upright rectangle."""
    corners = (left, top), (right, top), (right, bottom), (left, bottom)
    return polygon(*(complex(x, y) for x, y in corners))


def arc(
    centre: complex, radius: float, *, span: tuple[float, float] = (0, 360), tall: float = 1
) -> Points:
    """Return points on an ellipse `tall` times as high as wide, clockwise over `span` degrees."""
    steps = 9 + round(16 * radius)
    turn = np.exp(1j * np.radians(np.linspace(*span, steps)))
    points: Points = centre + radius * (turn.real + 1j * tall * turn.imag)
    return points


def ring(centre: complex, *, outer: float, inner: float, span: tuple[float, float]) -> Points:
    """Return a bent band, such as the handle of a cup."""
    there, back = span, span[::-1]
    return np.concatenate([arc(centre, outer, span=there), arc(centre, inner, span=back)])


def part(paint: str, *polygons: Points) -> Part:
    """Return a part of one paint."""
    return Part(paint, polygons)


def _star(points: int, outer: float, inner: float) -> Points:
    radii = np.tile([outer, inner], points)
    turn = np.exp(1j * np.pi * (np.arange(2 * points) / points - 0.5))
    corners: Points = radii * turn + 0.06j
    return corners


def _canopy() -> Points:
    """Return a half disc with three scallops along its lower edge."""
    scallops = [arc(x + 0.02j, 0.32, span=(0, -180), tall=0.45) for x in (0.64, 0.0, -0.64)]
    return np.concatenate([arc(0.02j, 0.96, span=(180, 360)), *scallops])


def _petals() -> tuple[Points, ...]:
    turns = np.exp(2j * np.pi * np.arange(6) / 6)
    return tuple(arc(-0.32j + 0.38 * turn, 0.27) for turn in turns)


FIGURES: dict[str, tuple[Part, ...]] = {
    "ball": (
        part("body", arc(0, 0.92)),
        part("shade", ring(0, outer=0.92, inner=0.72, span=(15, 100))),
        part("paper", ring(0, outer=0.72, inner=0.6, span=(205, 245))),
    ),
    "cup": (
        part("shade", ring(0.42 + 0.1j, outer=0.52, inner=0.28, span=(-80, 80))),
        part("body", polygon(-0.85 - 0.65j, 0.5 - 0.65j, 0.38 + 0.85j, -0.72 + 0.85j)),
        part("shade", arc(-0.175 - 0.65j, 0.675, tall=0.22)),
    ),
    "fish": (
        part("shade", polygon(-0.2 - 0.35j, 0.15 - 0.8j, 0.35 - 0.3j)),
        part(
            "body",
            polygon(-0.35 + 0j, -1 - 0.55j, -0.8 + 0j, -1 + 0.55j),
            arc(0.22, 0.74, tall=0.68),
        ),
        part("paper", arc(0.6 - 0.12j, 0.15)),
        part("ink", arc(0.64 - 0.12j, 0.07)),
    ),
    "star": (part("body", _star(5, 1.05, 0.47)),),
    "book": (
        part("shade", box(-0.72, -0.9, 0.66, 0.9)),
        part("paper", box(-0.6, 0.62, 0.74, 0.84)),
        part("body", box(-0.72, -0.92, 0.74, 0.64)),
        part("shade", box(-0.72, -0.92, -0.48, 0.9)),
        part("paper", box(-0.22, -0.62, 0.5, -0.2)),
    ),
    "umbrella": (
        part(
            "wood",
            box(-0.05, -0.98, 0.05, 0.72),
            ring(0.18 + 0.7j, outer=0.23, inner=0.13, span=(0, 180)),
        ),
        part("body", _canopy()),
    ),
    "clock": (
        part("metal", arc(-0.5 - 0.72j, 0.26), arc(0.5 - 0.72j, 0.26)),
        part("ink", polygon(-0.6 + 0.5j, -0.75 + 0.98j, -0.35 + 0.8j)),
        part("ink", polygon(0.6 + 0.5j, 0.75 + 0.98j, 0.35 + 0.8j)),
        part("body", arc(0.08j, 0.85)),
        part("paper", arc(0.08j, 0.52)),
        part("ink", polygon(-0.05 + 0.12j, -0.04 - 0.32j, 0.04 - 0.32j, 0.05 + 0.12j)),
        part("ink", polygon(0.05j, 0.3 + 0.16j, 0.28 + 0.24j, -0.02 + 0.14j)),
    ),
    "flower": (
        part("leaf", box(-0.06, 0.1, 0.06, 1)),
        part("leaf", arc(-0.3 + 0.68j, 0.26, tall=0.5), arc(0.3 + 0.6j, 0.26, tall=0.5)),
        part("body", *_petals(), arc(-0.32j, 0.3)),
        part("amber", arc(-0.32j, 0.2)),
    ),
    "car": (
        part(
            "body",
            polygon(
                -1 + 0.45j,
                -0.98 - 0.05j,
                -0.62 - 0.12j,
                -0.42 - 0.6j,
                0.32 - 0.6j,
                0.6 - 0.1j,
                0.98 + 0.02j,
                1 + 0.45j,
            ),
        ),
        part("glass", polygon(-0.46 - 0.12j, -0.34 - 0.46j, -0.08 - 0.46j, -0.08 - 0.12j)),
        part("glass", polygon(0.06 - 0.12j, 0.06 - 0.46j, 0.26 - 0.46j, 0.42 - 0.12j)),
        part("amber", arc(0.92 + 0.14j, 0.08)),
        part("ink", arc(-0.55 + 0.45j, 0.26), arc(0.55 + 0.45j, 0.26)),
        part("metal", arc(-0.55 + 0.45j, 0.11), arc(0.55 + 0.45j, 0.11)),
    ),
    "tree": (
        part("wood", polygon(-0.13 + 0.2j, 0.13 + 0.2j, 0.2 + 1j, -0.2 + 1j)),
        part(
            "body",
            arc(-0.42 - 0.1j, 0.42),
            arc(0.42 - 0.1j, 0.42),
            arc(-0.5j, 0.48),
            arc(0.1j, 0.4),
        ),
    ),
    "house": (
        part("wood", box(0.38, -0.85, 0.6, -0.3)),
        part("body", box(-0.74, -0.15, 0.74, 0.95)),
        part("shade", polygon(-0.98 - 0.12j, -1j, 0.98 - 0.12j)),
        part("wood", box(-0.18, 0.38, 0.18, 0.95)),
        part("glass", box(-0.58, 0.08, -0.28, 0.4), box(0.28, 0.08, 0.58, 0.4)),
    ),
    "bird": (
        part("wood", box(-0.14, 0.5, -0.07, 0.95), box(0.1, 0.5, 0.17, 0.95)),
        part("amber", polygon(0.72 - 0.55j, 1.02 - 0.4j, 0.7 - 0.28j)),
        part(
            "body",
            polygon(-0.4 - 0.1j, -1.02 - 0.35j, -0.95 + 0.12j, -0.4 + 0.4j),
            arc(-0.05 + 0.1j, 0.62, tall=0.85),
            arc(0.45 - 0.42j, 0.38),
        ),
        part("shade", polygon(-0.5 - 0.05j, 0.2 - 0.1j, 0.15 + 0.2j, -0.15 + 0.38j)),
        part("ink", arc(0.55 - 0.5j, 0.08)),
    ),
    "boat": (
        part("wood", box(-0.05, -1, 0.04, 0.4)),
        part("body", polygon(0.1 - 0.95j, 0.8 + 0.2j, 0.1 + 0.2j)),
        part("paper", polygon(-0.12 - 0.75j, -0.12 + 0.2j, -0.66 + 0.2j)),
        part("body", polygon(-1 + 0.34j, 1 + 0.34j, 0.62 + 0.88j, -0.62 + 0.88j)),
    ),
    "robot": (
        part("metal", box(-0.04, -1, 0.04, -0.7), arc(-0.98j, 0.1)),
        part("metal", box(-0.3, 0.55, -0.1, 1), box(0.1, 0.55, 0.3, 1)),
        part("body", box(-0.36, -0.8, 0.36, -0.22)),
        part("body", box(-0.44, -0.14, 0.44, 0.62)),
        part("paper", arc(-0.17 - 0.56j, 0.11), arc(0.17 - 0.56j, 0.11)),
        part(
            "ink", arc(-0.17 - 0.56j, 0.05), arc(0.17 - 0.56j, 0.05), box(-0.18, -0.36, 0.18, -0.3)
        ),
    ),
    "bear": (
        part("body", arc(-0.33 - 0.82j, 0.17), arc(0.33 - 0.82j, 0.17)),
        part("body", arc(-0.25 + 0.82j, 0.22, tall=0.8), arc(0.25 + 0.82j, 0.22, tall=0.8)),
        part("body", arc(0.35j, 0.48, tall=1.1)),
        part("body", arc(-0.5j, 0.46, tall=0.9)),
        part("cream", arc(-0.38j, 0.2, tall=0.8)),
        part("ink", arc(-0.44j, 0.08), arc(-0.2 - 0.62j, 0.06), arc(0.2 - 0.62j, 0.06)),
    ),
}

ARMS: dict[str, Arms] = {
    "robot": Arms(
        resting=(part("metal", box(-0.66, -0.1, -0.48, 0.4), box(0.48, -0.1, 0.66, 0.4)),),
        reaching=(
            part("metal", box(-0.66, -0.1, -0.48, 0.4)),
            part("metal", polygon(0.42 - 0.04j, 0.86 - 0.2j, 0.88 - 0.02j, 0.42 + 0.16j)),
        ),
        hand=part("metal", arc(0.84 - 0.1j, 0.14)),
        grip=1.12 - 0.22j,
    ),
    "bear": Arms(
        resting=(
            part("body", arc(-0.52 + 0.25j, 0.16, tall=1.7), arc(0.52 + 0.25j, 0.16, tall=1.7)),
        ),
        reaching=(
            part("body", arc(-0.52 + 0.25j, 0.16, tall=1.7)),
            part("body", polygon(0.3 + 0.05j, 0.82 - 0.22j, 0.88 + 0.02j, 0.36 + 0.36j)),
        ),
        hand=part("body", arc(0.84 - 0.1j, 0.16)),
        grip=1.12 - 0.22j,
    ),
}
