"""Draws scenes: stated details are drawn plainly, everything else varies with the seed.

Position, tilt, tone, light and paper are variations that no sentence mentions; they never move a
thing out of its cell, so the relations of a scene are true in its picture. Pictures are drawn at
twice the size and then reduced, which smooths the edges.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from PIL import Image, ImageChops

from aoq.data.scenes.backdrops import paint_backdrop
from aoq.data.scenes.figures import ARMS, FIGURES
from aoq.data.scenes.painting import Pose, coat_of, paint_figure
from aoq.data.scenes.world import CELLS, Cell, Group, Scene

SIDE = 224
ENLARGED = 2
CELL = SIDE * ENLARGED / 2

# Lengths are in units of a cell; a complex number is a step to the right and down.
RADIUS = {"small": 0.215, "large": 0.41}
ASIDE_TO_HOLD = 0.2
ARRANGEMENTS: dict[int, tuple[tuple[complex, ...], ...]] = {
    1: ((0,),),
    2: ((-0.24, 0.24), (-0.24 - 0.2j, 0.24 + 0.2j), (-0.24 + 0.2j, 0.24 - 0.2j)),
    3: ((-0.24 + 0.24j, 0.24 + 0.24j, -0.23j), (-0.24 - 0.23j, 0.24 - 0.23j, 0.24j)),
}
LARGEST_STRAY = {
    ("large", 1): 0.05,
    ("small", 1): 0.2,
    ("small", 2): 0.02,
    ("small", 3): 0.015,
}
LARGEST_TILT = math.radians(7)

# Light is in levels of 255; the mottles of the paper are this many pixels wide.
LARGEST_GLOOM = 30
ROUGHNESS = 2
MOTTLE = 8


def draw(scene: Scene, *, seed: int) -> Image.Image:
    """Draw a scene, 224 pixels square; the seed varies only what sentences never mention."""
    random = np.random.default_rng(seed)
    canvas = paint_backdrop(scene.setting, side=SIDE * ENLARGED, random=random)
    for cell in CELLS:
        match scene.in_cell(cell):
            case (group,):
                _draw_group(canvas, group, random)
            case (holder, held):
                _draw_holding(canvas, holder, held, random=random)
    return _lit(canvas.reduce(ENLARGED), random)


def _draw_group(canvas: Image.Image, group: Group, random: np.random.Generator) -> None:
    """Draw the members of a group in one of the arrangements for their number."""
    arrangement = random.choice(np.array(ARRANGEMENTS[group.count]))
    stray = LARGEST_STRAY[group.size, group.count]
    arms = ARMS[group.kind].resting if group.kind in ARMS else ()
    coat = coat_of(group, random)
    for offset in arrangement.tolist():
        strayed = offset + complex(*random.uniform(-stray, stray, 2))
        pose = _pose(_point(group.cell, strayed), size=group.size, random=random)
        paint_figure(canvas, (*arms, *FIGURES[group.kind]), pose=pose, coat=coat)


def _draw_holding(
    canvas: Image.Image, holder: Group, held: Group, *, random: np.random.Generator
) -> None:
    """Draw the holder with an arm stretched out, what it holds, and its hand on top."""
    arms = ARMS[holder.kind]
    coat = coat_of(holder, random)
    mirrored = bool(random.integers(2))
    aside = ASIDE_TO_HOLD if mirrored else -ASIDE_TO_HOLD
    upright = _pose(_point(holder.cell, aside), size=holder.size, random=random)
    pose = replace(upright, mirrored=mirrored)
    paint_figure(canvas, (*arms.reaching, *FIGURES[holder.kind]), pose=pose, coat=coat)

    grip = complex(pose.place(np.array(arms.grip)))
    held_pose = _pose(grip, size=held.size, random=random)
    paint_figure(canvas, FIGURES[held.kind], pose=held_pose, coat=coat_of(held, random))
    paint_figure(canvas, (arms.hand,), pose=pose, coat=replace(coat, pattern="plain"))


def _point(cell: Cell, offset: complex) -> complex:
    """Return a point of the canvas, given by its offset from the centre of a cell."""
    return (complex(cell.column + 0.5, cell.row + 0.5) + offset) * CELL


def _pose(centre: complex, *, size: str, random: np.random.Generator) -> Pose:
    tilt = random.uniform(-LARGEST_TILT, LARGEST_TILT)
    turn = RADIUS[size] * random.uniform(0.96, 1.0) * CELL * np.exp(1j * tilt)
    return Pose(centre, complex(turn), mirrored=bool(random.integers(2)))


def _lit(picture: Image.Image, random: np.random.Generator) -> Image.Image:
    """Light a picture so that it fades towards one side, on slightly mottled paper."""
    angle = random.uniform(0, 2 * math.pi)
    across = np.linspace(-0.35, 0.35, SIDE // MOTTLE, dtype=np.float32)
    distance = 0.5 + across * math.cos(angle) + across[:, None] * math.sin(angle)  # 0 to 1
    brightness, gloom = random.uniform(240, 250), random.uniform(0, LARGEST_GLOOM)
    paper = random.integers(-ROUGHNESS, ROUGHNESS + 1, distance.shape)
    coarse = Image.fromarray((brightness - gloom * distance + paper).astype(np.uint8))
    light = coarse.resize(picture.size, Image.Resampling.BILINEAR)
    return ImageChops.multiply(picture, Image.merge("RGB", (light, light, light)))
