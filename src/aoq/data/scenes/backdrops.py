"""The settings of scenes: each one is a stack of wavy bands with specks strewn over them.

The bands make a setting recognisable at a glance; the specks, the waves and the height of the
horizon vary with the seed and are never mentioned in a sentence.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw

Colour = tuple[int, int, int]


@dataclass(frozen=True)
class Band:
    """A strip from `top` down to the lower edge, both as fractions of the picture's height."""

    top: float
    colour: Colour
    wave: float = 0.0


@dataclass(frozen=True)
class Specks:
    """Small clutter between two heights."""

    number: int
    colour: Colour
    between: tuple[float, float]
    radius: tuple[float, float]


@dataclass(frozen=True)
class Backdrop:
    """Bands from back to front, then specks."""

    bands: tuple[Band, ...]
    specks: tuple[Specks, ...]


BACKDROPS: dict[str, Backdrop] = {
    "meadow": Backdrop(
        bands=(
            Band(0.0, (168, 216, 244)),
            Band(0.24, (150, 200, 120), wave=0.04),
            Band(0.34, (126, 184, 92), wave=0.02),
        ),
        specks=(
            Specks(28, (100, 160, 74), (0.4, 1.0), (0.004, 0.008)),
            Specks(12, (236, 240, 190), (0.4, 1.0), (0.004, 0.006)),
        ),
    ),
    "beach": Backdrop(
        bands=(
            Band(0.0, (190, 228, 246)),
            Band(0.2, (72, 160, 200)),
            Band(0.36, (150, 208, 218), wave=0.012),
            Band(0.4, (238, 214, 160), wave=0.015),
        ),
        specks=(Specks(32, (206, 178, 126), (0.46, 1.0), (0.003, 0.007)),),
    ),
    "snow": Backdrop(
        bands=(
            Band(0.0, (176, 192, 212)),
            Band(0.26, (206, 218, 232), wave=0.05),
            Band(0.38, (232, 239, 246), wave=0.02),
        ),
        specks=(Specks(40, (252, 253, 255), (0.0, 1.0), (0.003, 0.009)),),
    ),
    "night": Backdrop(
        bands=(
            Band(0.0, (24, 28, 66)),
            Band(0.45, (34, 44, 84), wave=0.04),
            Band(0.62, (30, 58, 72), wave=0.03),
        ),
        specks=(Specks(36, (230, 230, 200), (0.0, 0.45), (0.002, 0.006)),),
    ),
    "room": Backdrop(
        bands=(
            Band(0.0, (226, 208, 188)),
            Band(0.42, (250, 246, 238)),
            Band(0.46, (172, 122, 84)),
            Band(0.6, (164, 114, 78)),
            Band(0.78, (172, 122, 84)),
        ),
        specks=(Specks(28, (212, 190, 168), (0.0, 0.4), (0.006, 0.01)),),
    ),
    "studio": Backdrop(
        bands=(Band(0.0, (196, 200, 204)),),
        specks=(Specks(14, (184, 188, 192), (0.0, 1.0), (0.003, 0.006)),),
    ),
}

WAVE_POINTS = 17
LARGEST_SHIFT_OF_THE_HORIZON = 0.03


def paint_backdrop(setting: str, *, side: int, random: np.random.Generator) -> Image.Image:
    """Paint a square picture of an empty setting."""
    backdrop = BACKDROPS[setting]
    canvas = Image.new("RGB", (side, side), backdrop.bands[0].colour)
    pen = ImageDraw.Draw(canvas)
    shift = random.uniform(-1, 1) * LARGEST_SHIFT_OF_THE_HORIZON
    for band in backdrop.bands[1:]:
        _paint_band(pen, band, shift=shift, side=side, random=random)
    for specks in backdrop.specks:
        _strew(pen, specks, side=side, random=random)
    return canvas


def _paint_band(
    pen: ImageDraw.ImageDraw,
    band: Band,
    *,
    shift: float,
    side: int,
    random: np.random.Generator,
) -> None:
    across = np.linspace(0, 1, WAVE_POINTS)
    wave = band.wave * np.sin(2 * np.pi * (across * random.uniform(0.7, 1.8) + random.random()))
    edge = np.stack([across, band.top + shift + wave], axis=1)
    outline = np.concatenate([edge, [[1, 1], [0, 1]]]) * side
    pen.polygon(outline.ravel().tolist(), fill=band.colour)


def _strew(
    pen: ImageDraw.ImageDraw, specks: Specks, *, side: int, random: np.random.Generator
) -> None:
    x = random.uniform(0, 1, specks.number)
    y = random.uniform(*specks.between, specks.number)
    radius = random.uniform(*specks.radius, specks.number)
    corners = np.stack([x - radius, y - radius, x + radius, y + radius], axis=1) * side
    for corner in corners.tolist():
        pen.ellipse(corner, fill=specks.colour)
