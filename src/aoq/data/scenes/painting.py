"""Paints one figure: its outline, its colours and its pattern.

Every figure gets a pale halo and a dark outline, so that it stands out from any backdrop and from
its neighbours, and a pattern that is clipped to its body.
"""

from __future__ import annotations

import colorsys
import math
from dataclasses import dataclass
from functools import cache
from itertools import chain

import numpy as np
from PIL import Image, ImageChops, ImageDraw

from aoq.data.scenes.backdrops import Colour
from aoq.data.scenes.figures import PAINTS, Part, Points, arc, box
from aoq.data.scenes.world import Group

OUTLINE_WIDTH = 5
HALO_WIDTH = 11
HALO: Colour = (255, 255, 255)
SHADE = 0.74
PATTERN_MARGIN = 1.2

TONES: dict[str, Colour] = {
    "red": (222, 38, 38),
    "orange": (250, 122, 16),
    "yellow": (255, 232, 36),
    "green": (30, 158, 64),
    "blue": (36, 92, 226),
    "purple": (134, 48, 190),
    "pink": (255, 140, 200),
    "white": (248, 248, 248),
}
PATTERN_TONES: dict[str, Colour] = dict.fromkeys(TONES, (255, 252, 240)) | {
    "yellow": (96, 90, 84),
    "pink": (172, 36, 108),
    "white": (140, 146, 164),
}
PATTERN_SHAPES: dict[str, tuple[Points, ...]] = {
    "striped": tuple(box(x - 0.1, -1.2, x + 0.1, 1.2) for x in np.arange(-0.88, 1, 0.44)),
    "dotted": tuple(
        arc(complex(x, y), 0.12)
        for y, shift in zip(np.arange(-0.96, 1, 0.32), (0, 0.2) * 4, strict=False)
        for x in np.arange(-1 + shift, 1.1, 0.4)
    ),
}


@dataclass(frozen=True)
class Pose:
    """Where a figure stands: its centre, and its scale and tilt as one complex number."""

    centre: complex
    turn: complex
    mirrored: bool = False

    def place(self, points: Points) -> Points:
        """Place points of a figure on the canvas."""
        facing = -points.conj() if self.mirrored else points
        return facing * self.turn + self.centre


@dataclass(frozen=True)
class Coat:
    """The paint of a thing: a tone for each paint, and a pattern for the body."""

    tones: dict[str, Colour]
    pattern: str
    pattern_tone: Colour


def coat_of(group: Group, random: np.random.Generator) -> Coat:
    """Choose the coat of all members of a group; its tone varies slightly around the colour's."""
    body = _jittered(TONES[group.colour], random)
    red, green, blue = (round(channel * SHADE) for channel in body)
    tones = PAINTS | {"body": body, "shade": (red, green, blue)}
    return Coat(tones, group.pattern, PATTERN_TONES[group.colour])


def _jittered(tone: Colour, random: np.random.Generator) -> Colour:
    hue, lightness, saturation = colorsys.rgb_to_hls(*(channel / 255 for channel in tone))
    hue += random.uniform(-0.006, 0.006)
    lightness *= random.uniform(0.94, 1.04)
    red, green, blue = colorsys.hls_to_rgb(hue % 1, min(lightness, 1), saturation)
    return round(red * 255), round(green * 255), round(blue * 255)


def paint_figure(canvas: Image.Image, parts: tuple[Part, ...], *, pose: Pose, coat: Coat) -> None:
    """Paint the halo first, then the parts from back to front."""
    pen = ImageDraw.Draw(canvas)
    placed = [tuple(pose.place(points) for points in part.polygons) for part in parts]
    outlines = [[_outline(points) for points in polygons] for polygons in placed]
    for outline in chain.from_iterable(outlines):
        pen.line(outline, fill=HALO, width=HALO_WIDTH)
    for part, polygons, of_part in zip(parts, placed, outlines, strict=True):
        for outline in of_part:
            pen.line(outline, fill=coat.tones["ink"], width=OUTLINE_WIDTH)
        for outline in of_part:
            pen.polygon(outline, fill=coat.tones[part.paint])
        if part.paint == "body" and coat.pattern != "plain":
            _paint_pattern(canvas, polygons, pose=pose, coat=coat)


def _outline(points: Points) -> list[float]:
    """Return x, y, x, y and so on, around and past the first corner, so that it closes neatly."""
    around = np.concatenate([points, points[:2]])
    coordinates: list[float] = around.view(np.float64).tolist()  # a complex number is x, y
    return coordinates


def _paint_pattern(
    canvas: Image.Image, polygons: tuple[Points, ...], *, pose: Pose, coat: Coat
) -> None:
    """Paint the pattern inside the polygons; it stays upright when the figure tilts."""
    points = np.concatenate(polygons)
    corner = complex(math.floor(points.real.min()), math.floor(points.imag.min()))
    width, height = math.ceil(np.ptp(points.real)) + 1, math.ceil(np.ptp(points.imag)) + 1
    mask = _mask(tuple(shape - corner for shape in polygons), (width, height))

    sheet = _pattern_sheet(coat.pattern, round(abs(pose.turn)))
    from_corner = corner - pose.centre + complex(*sheet.size) / 2
    left, top = round(from_corner.real), round(from_corner.imag)
    pattern = sheet.crop((left, top, left + width, top + height))
    where = (int(corner.real), int(corner.imag))
    canvas.paste(coat.pattern_tone, where, ImageChops.multiply(mask, pattern))


@cache
def _pattern_sheet(pattern: str, radius: int) -> Image.Image:
    """Return a pattern for figures of this radius, with a margin for tilted ones."""
    half = round(PATTERN_MARGIN * radius)
    shapes = tuple(shape * radius + complex(half, half) for shape in PATTERN_SHAPES[pattern])
    return _mask(shapes, (2 * half, 2 * half))


def _mask(polygons: tuple[Points, ...], size: tuple[int, int]) -> Image.Image:
    mask = Image.new("L", size)
    pen = ImageDraw.Draw(mask)
    for points in polygons:
        pen.polygon(_outline(points), fill=255)
    return mask
