"""The embedded data set: drawn scenes whose captions need every detail.

A picture has two to four groups of things, and near twins that differ from it in one detail: a
colour, a count, who holds what. Pictures are drawn from a seed, so the data set needs no download
and comes in three sizes. `world` defines scenes and their facts, `families` samples scenes with
their twins, `drawing` (with `figures`, `painting` and `backdrops`) draws the pictures, `language`
(with `grammar` and `words`) writes the sentences, and `writing` the files.
"""

from aoq.data.scenes.drawing import draw
from aoq.data.scenes.families import Family, SplitSizes, families
from aoq.data.scenes.language import describe
from aoq.data.scenes.world import Fact, Group, Scene, facts, holds
from aoq.data.scenes.writing import SIZES, write_scenes

__all__ = [
    "SIZES",
    "Fact",
    "Family",
    "Group",
    "Scene",
    "SplitSizes",
    "describe",
    "draw",
    "facts",
    "families",
    "holds",
    "write_scenes",
]
