"""Writes the data set: pictures as PNG files and their captions as JSON lines.

The captions are written last and under a temporary name, so a folder that has a captions file is
complete. A picture and its captions depend only on the scene, its rivals and a seed of its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from aoq.data.scenes.drawing import draw
from aoq.data.scenes.families import SplitSizes, families
from aoq.data.scenes.language import describe
from aoq.data.scenes.world import Scene
from aoq.disk import disk_errors
from aoq.errors import UserError

SIZES: dict[str, SplitSizes] = {
    "tiny": SplitSizes(train=48, dev=16, test=16),
    "small": SplitSizes(train=800, dev=150, test=300),
    "large": SplitSizes(train=10_000, dev=1_000, test=1_000),
}


class _Entry(NamedTuple):
    """A scene with its place in the data set."""

    image: str
    split: str
    scene: Scene
    rivals: tuple[Scene, ...]
    seed: int


def write_scenes(
    folder: Path,
    *,
    size: str,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Draw the pictures of `size` and write them with their captions.

    After each picture `progress` is called with the number of pictures done and their total.
    """
    if size not in SIZES:
        names = ", ".join(SIZES)
        raise UserError(f"There are no scenes of the size '{size}': choose one of {names}.")
    (folder / "pictures").mkdir(parents=True, exist_ok=True)
    captions = folder / "captions.jsonl"
    captions.unlink(missing_ok=True)

    lines: list[str] = []
    entries = list(_entries(SIZES[size], seed=seed))
    for done, entry in enumerate(entries, start=1):
        with disk_errors(folder / entry.image):
            draw(entry.scene, seed=entry.seed).save(folder / entry.image, compress_level=1)
        lines.extend(_caption_lines(entry))
        if progress is not None:
            progress(done, len(entries))

    unfinished = captions.with_suffix(".unfinished")
    with disk_errors(unfinished):
        unfinished.write_text("".join(lines), encoding="utf-8")
    unfinished.replace(captions)


def _entries(sizes: SplitSizes, *, seed: int) -> Iterator[_Entry]:
    """List all scenes, the members of a family one after another."""
    for split, of_split in families(sizes, seed=seed).items():
        members = ((scene, family) for family in of_split for scene in family)
        for number, (scene, family) in enumerate(members):
            name = f"{split}-{number:05d}"
            yield _Entry(
                image=f"pictures/{name}.png",
                split=split,
                scene=scene,
                rivals=tuple(other for other in family if other != scene),
                seed=_seed_of(name, seed),
            )


def _seed_of(name: str, seed: int) -> int:
    digest = blake2b(f"{seed} {name}".encode(), digest_size=8)
    return int.from_bytes(digest.digest(), "big")


def _caption_lines(entry: _Entry) -> Iterator[str]:
    for caption in describe(entry.scene, seed=entry.seed, rivals=entry.rivals):
        record = {"image": entry.image, "caption": caption, "split": entry.split}
        yield json.dumps(record) + "\n"
