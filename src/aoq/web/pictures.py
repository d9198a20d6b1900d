"""The pictures of an index as browsers get them: small JPEGs, upright, with nothing else inside.

A picture is asked for by its number, never by a path. It is decoded and encoded anew, so that
neither its hidden data (place, camera) nor a file that is no picture leaves the machine. A link
that leads out of the folders which the index names is not followed.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterable
from pathlib import Path

from aoq.data.pictures import open_picture, upright
from aoq.web.kept import Kept
from aoq.web.refusals import RefusedError

_SHRINKABLE = ("L", "RGB", "RGBA", "CMYK")  # before they are copied to be turned upright
_MISSING = "The picture is missing, or it cannot be read."


class ShownPictures:
    """Pictures made small, the last ones kept in memory."""

    def __init__(
        self, pictures: Iterable[Path | None], *, kept: Kept[tuple[Path, int], bytes]
    ) -> None:
        folders = {picture.parent for picture in pictures if picture is not None}
        self._folders = frozenset(folder.resolve() for folder in folders)
        self._kept = kept

    def jpeg(self, picture: Path, *, side: int) -> bytes:
        """At most `side` pixels wide and high."""
        real = self._real(picture)  # what is gone is not shown from memory either
        made = self._kept.get((picture, side))
        if made is None:
            made = _made_small(real, side)
            self._kept.keep((picture, side), made)
        return made

    def _real(self, picture: Path) -> Path:
        """The file behind a name, if it lies where the index says and is one."""
        try:
            real = picture.resolve(strict=True)
        except (OSError, RuntimeError):  # not there, or a link that leads to itself
            raise RefusedError(404, _MISSING) from None
        if real.parent not in self._folders or not real.is_file():
            raise RefusedError(404, _MISSING)
        return real


def _made_small(picture: Path, side: int) -> bytes:
    buffer = io.BytesIO()
    try:
        with open_picture(picture) as image:
            width, height = (math.ceil(2 * side * n / max(image.size)) for n in image.size)
            image.draft("RGB", (width, height))  # decodes large JPEGs at a fraction
            image.load()  # some formats have their Exif data at the end
            if image.mode in _SHRINKABLE and "transparency" not in image.info:
                image.thumbnail((side, side))
            small = upright(image)
            small.thumbnail((side, side))
            small.info.clear()  # comments would be written again
            small.save(buffer, format="JPEG", quality=85, optimize=True)
    except Exception:  # damaged files make Pillow's decoders raise almost anything
        raise RefusedError(404, _MISSING) from None
    return buffer.getvalue()
