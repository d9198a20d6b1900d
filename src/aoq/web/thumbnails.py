"""The pictures of an index as browsers get them: upright JPEGs without metadata, mostly small.

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
from typing import TYPE_CHECKING

from cachetools import LRUCache, cached
from starlette.exceptions import HTTPException

from aoq.features.pictures import open_picture, upright
from aoq.web.limits import ORIGINAL_PIXELS

if TYPE_CHECKING:
    from PIL.Image import Image

ThumbnailMaker = Callable[[Path, int], bytes]
_SHRINKABLE = ("L", "RGB", "RGBA", "CMYK")  # before they are copied to be turned upright
_MISSING = "The picture is missing, or it cannot be read."


class Thumbnails:
    """Makes thumbnails of the pictures of one index."""

    def __init__(self, pictures: Iterable[Path | None], make: ThumbnailMaker) -> None:
        folders = {picture.parent for picture in pictures if picture is not None}
        self._folders = frozenset(folder.resolve() for folder in folders)
        self._make = make

    def jpeg(self, picture: Path, *, side: int | None) -> bytes:
        """Return a JPEG at most `side` pixels wide and high; raise 404 if the file is gone.

        Without `side`, it is as large as the picture, and not cached: it would displace many.
        """
        try:
            real = picture.resolve(strict=True)
        except (OSError, RuntimeError):  # missing, or a link to itself
            raise HTTPException(404, _MISSING) from None
        if real.parent not in self._folders or not real.is_file():
            raise HTTPException(404, _MISSING)
        return make_full_picture(real) if side is None else self._make(real, side)


def caching_maker(max_bytes: int) -> ThumbnailMaker:
    """Return `make_thumbnail` with a cache of the thumbnails that were used last."""
    cache: LRUCache[object, bytes] = LRUCache(max_bytes, getsizeof=len)
    return cached(cache, lock=Lock())(make_thumbnail)


def make_thumbnail(picture: Path, side: int) -> bytes:
    """Encode a picture as a JPEG at most `side` pixels wide and high."""
    try:
        with open_picture(picture) as image:
            width, height = (math.ceil(2 * side * n / max(image.size)) for n in image.size)
            image.draft("RGB", (width, height))  # decodes large JPEGs at a fraction
            image.load()  # some formats have their Exif data at the end
            if image.mode in _SHRINKABLE and "transparency" not in image.info:
                image.thumbnail((side, side))
            small = upright(image)
            small.thumbnail((side, side))
            return _encode(small, quality=85)
    except Exception:  # damaged files make Pillow's decoders raise almost anything
        raise HTTPException(404, _MISSING) from None


def make_full_picture(picture: Path) -> bytes:
    """Encode a picture in its own size as a JPEG."""
    try:
        with open_picture(picture) as image:
            if image.width * image.height <= ORIGINAL_PIXELS:
                image.load()
                return _encode(upright(image), quality=95)
    except Exception:
        raise HTTPException(404, _MISSING) from None
    raise HTTPException(
        409,
        f"The picture has more than {ORIGINAL_PIXELS:,} pixels, which are not sent; ask for "
        "size=full.",
    )


def _encode(image: Image, *, quality: int) -> bytes:
    """Encode an upright picture without its metadata."""
    buffer = io.BytesIO()
    image.info.clear()  # comments would be written again
    image.save(buffer, format="JPEG", quality=quality, optimize=True)
    return buffer.getvalue()
