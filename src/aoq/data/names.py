"""The names of pictures: how they end, and which one a name may mean that is none of them.

People write names by hand and move files between systems, so that a name is often nearly right.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from pathlib import PurePosixPath

PICTURE_SUFFIXES = {".jpg", ".jpeg", ".png", ".gif", ".webp", ".bmp", ".tif", ".tiff"}


class NameHints:
    """The name that somebody may have meant.

    Names are alike where they differ in upper and lower case, in how accents are encoded, in the
    kind of slash or in the ending; else a file of that name in another folder is meant.

    >>> NameHints(["holiday/IMG_1.JPG"]).hint("img_1.jpg")
    'holiday/IMG_1.JPG is there: write that name'
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._by_key: dict[str, list[str]] = {}
        for name in sorted(names):
            key = _name_key(name)
            for alike in {key, PurePosixPath(key).name}:  # the same where it lies in no folder
                self._by_key.setdefault(alike, []).append(name)

    def hint(self, name: str) -> str:
        """What to write instead; empty where none or several may be meant."""
        key = _name_key(name)
        for alike in (key, PurePosixPath(key).name):
            found = self._by_key.get(alike, [])
            if len(found) == 1:
                return f"{found[0]} is there: write that name"
        return ""


def _name_key(name: str) -> str:
    path = PurePosixPath(unicodedata.normalize("NFC", name).replace("\\", "/").casefold())
    is_picture = path.suffix in PICTURE_SUFFIXES
    return str(path.with_suffix("") if is_picture else path)
