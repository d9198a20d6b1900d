"""The pictures of an index as browsers get them: small upright JPEGs without metadata.

A picture is asked for by its number, never by a path. It is decoded and encoded anew, so neither
its metadata (place, camera) nor a file that is not a picture leaves the machine. A link that leads
out of the folders that the index names is not followed.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from threading import Lock

from cachetools import LRUCache, cached
from starlette.exceptions import HTTPException

from aoq.features.pictures import open_picture, upright

ThumbnailMaker = Callable[[Path, int], bytes]
_SHRINKABLE = ("L", "RGB", "RGBA", "CMYK")  # before they are copied to be turned upright
_MISSING = "The picture is missing, or it cannot be read."


class Thumbnails:
    """Makes thumbnails of the pictures of one index."""

    def __init__(self, pictures: Iterable[Path | None], make: ThumbnailMaker) -> None:
        folders = {picture.parent for picture in pictures if picture is not None}
        self._folders = frozenset(folder.resolve() for folder in folders)
        self._make = make

    def jpeg(self, picture: Path, *, side: int) -> bytes:
        """Return a JPEG at most `side` pixels wide and high; raise 404 if the file is gone."""
        try:
            real = picture.resolve(strict=True)
        except (OSError, RuntimeError):  # missing, or a link to itself
            raise HTTPException(404, _MISSING) from None
        if real.parent not in self._folders or not real.is_file():
            raise HTTPException(404, _MISSING)
        return self._make(real, side)


def caching_maker(max_bytes: int) -> ThumbnailMaker:
    """Return `make_thumbnail` with a cache of the thumbnails that were used last."""
    cache: LRUCache[object, bytes] = LRUCache(max_bytes, getsizeof=len)
    return cached(cache, lock=Lock())(make_thumbnail)


def make_thumbnail(picture: Path, side: int) -> bytes:
    """Encode a picture as a JPEG at most `side` pixels wide and high."""
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
        raise HTTPException(404, _MISSING) from None
    return buffer.getvalue()
