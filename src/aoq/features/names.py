"""The names of pictures: their endings, and suggestions for names that do not exist.

Users write names by hand and move files between systems, so that a name is often nearly right.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from functools import cached_property
from pathlib import PurePosixPath

PICTURE_SUFFIXES = {".jpg", ".jpeg", ".png", ".gif", ".webp", ".bmp", ".tif", ".tiff"}


class Names:
    """Existing names, with a search for the one that a wrong name probably means.

    A name that looks the same is found: Macs write an ä as two characters (NFD), others as one.
    Names are similar if they differ only in case, in the kind of slash or in the ending; otherwise
    a file of that name in another folder is suggested.

    >>> Names(["holiday/IMG_1.JPG"]).hint("img_1.jpg")
    'holiday/IMG_1.JPG exists: write that name'
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._by_look: dict[str, list[str]] = {}
        for name in sorted(names):
            self._by_look.setdefault(composed(name), []).append(name)

    def find(self, name: str) -> str | None:
        """Return the name itself if it exists, else the only one that looks the same."""
        same = self._by_look.get(composed(name), [])
        if name in same:
            return name
        return same[0] if len(same) == 1 else None

    def hint(self, name: str) -> str:
        """Suggest what to do about a name that does not exist; empty if there is no suggestion."""
        if composed(name) in self._by_look:
            several = "several look the same but encode accents differently: rename all but one"
            return "" if self.find(name) else several
        key = _name_key(name)
        for alike in (key, PurePosixPath(key).name):
            found = self._by_key.get(alike, [])
            if len(found) == 1:
                return f"{found[0]} exists: write that name"
        return ""

    @cached_property
    def _by_key(self) -> dict[str, list[str]]:
        by_key: dict[str, list[str]] = {}
        for names in self._by_look.values():
            for name in names:
                key = _name_key(name)
                for alike in {key, PurePosixPath(key).name}:  # both are equal outside of folders
                    by_key.setdefault(alike, []).append(name)
        return by_key


def composed(name: str) -> str:
    """Normalise a name to the one encoding of accents by which names are compared."""
    return unicodedata.normalize("NFC", name)


def _name_key(name: str) -> str:
    path = PurePosixPath(composed(name).replace("\\", "/").casefold())
    is_picture = path.suffix in PICTURE_SUFFIXES
    return str(path.with_suffix("") if is_picture else path)
