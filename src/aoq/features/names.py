"""The names of pictures: how they end, and which one a name may mean that is none of them.

People write names by hand and move files between systems, so that a name is often nearly right.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from functools import cached_property
from pathlib import PurePosixPath

PICTURE_SUFFIXES = {".jpg", ".jpeg", ".png", ".gif", ".webp", ".bmp", ".tif", ".tiff"}


class Names:
    """Names that are there, and the one that somebody may have meant.

    A name that looks the same is found: Macs write an ä as two characters (NFD), others as one.
    Names are alike where they differ in upper and lower case, in the kind of slash or in the
    ending; else a file of that name in another folder is meant.

    >>> Names(["holiday/IMG_1.JPG"]).hint("img_1.jpg")
    'holiday/IMG_1.JPG is there: write that name'
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._by_look: dict[str, list[str]] = {}
        for name in sorted(names):
            self._by_look.setdefault(composed(name), []).append(name)

    def find(self, name: str) -> str | None:
        """The name itself if it is there, else the only one that looks the same."""
        same = self._by_look.get(composed(name), [])
        if name in same:
            return name
        return same[0] if len(same) == 1 else None

    def hint(self, name: str) -> str:
        """What to do about a name that is not there; empty where nobody can tell."""
        if composed(name) in self._by_look:
            several = "several look the same, in other encodings of accents: rename all but one"
            return "" if self.find(name) else several
        key = _name_key(name)
        for alike in (key, PurePosixPath(key).name):
            found = self._by_key.get(alike, [])
            if len(found) == 1:
                return f"{found[0]} is there: write that name"
        return ""

    @cached_property
    def _by_key(self) -> dict[str, list[str]]:
        by_key: dict[str, list[str]] = {}
        for names in self._by_look.values():
            for name in names:
                key = _name_key(name)
                for alike in {key, PurePosixPath(key).name}:  # the same where it lies in no folder
                    by_key.setdefault(alike, []).append(name)
        return by_key


def composed(name: str) -> str:
    """A name in the one encoding of accents by which names are compared."""
    return unicodedata.normalize("NFC", name)


def _name_key(name: str) -> str:
    path = PurePosixPath(composed(name).replace("\\", "/").casefold())
    is_picture = path.suffix in PICTURE_SUFFIXES
    return str(path.with_suffix("") if is_picture else path)
