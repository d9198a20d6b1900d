"""Decodes picture files from any origin: a camera, a scanner or an attacker.

A picture is opened by its content, never by its name, as one of a few formats, and its header is
checked before anything is decoded: small files can claim to be enormous. Any pixel format becomes
upright RGB in the square that a network expects. Every fault of a file is reported as a
`PictureError`, because damaged files make decoders raise almost anything.
"""

from __future__ import annotations

import io
import math
import os
import re
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from aoq.errors import UserError
from aoq.features.names import PICTURE_SUFFIXES
from aoq.progress import warn

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_PIXELS = 100_000_000
MAX_SIDE = 65_535  # maximum of a JPEG; resizing takes memory in proportion
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
_LONGEST = 8  # long side over short side of what is scaled before it is cut
_ORIENTATION = 0x0112  # the Exif tag; below, the operations that undo its values
_TRANSPOSITIONS = {
    2: "FLIP_LEFT_RIGHT",
    3: "ROTATE_180",
    4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE",
    6: "ROTATE_270",
    7: "TRANSVERSE",
    8: "ROTATE_90",
}

_PILLOW = re.compile("PIL")  # its modules

Picture = Path | bytes  # a path, or the content of a file
Pixels = npt.NDArray[np.uint8]  # (side, side, 3), or (height, width, 3) of a whole picture


@dataclass(frozen=True)
class Canvas:
    """What a network sees: the whole picture squashed to a square, its middle, or its own shape."""

    side: int
    resample: int = 3  # PIL.Image.Resampling.BICUBIC
    shortest: int | None = None
    "Scale the shorter side to this length and cut the square from the middle; none: squash."
    cells: int | None = None
    "Keep the picture's shape, in at most this many squares of `side`; none: a single square."

    @property
    def enough(self) -> int:
        """Length of the shorter side from which a picture loses nothing."""
        if self.cells is not None:
            return math.isqrt(self.cells) * self.side
        return max(self.side, self.shortest or 0)

    def fill(self, image: Image) -> Image:
        """Fit an upright picture to the square, or to squares."""
        if self.cells is not None:
            size = in_cells(*image.size, side=self.side, most=self.cells)
            return image.resize(size, self.resample)
        if self.shortest is None:
            return image.resize((self.side, self.side), self.resample)
        image = _without_far_ends(image)
        short = min(image.size)
        width, height = (int(self.shortest * length / short) for length in image.size)
        scaled = image.resize((width, height), self.resample)
        left, top = (width - self.side) // 2, (height - self.side) // 2
        return scaled.crop((left, top, left + self.side, top + self.side))


def in_cells(width: int, height: int, *, side: int, most: int) -> tuple[int, int]:
    """Return the largest size in multiples of `side`, near the shape of a picture, of few cells.

    >>> in_cells(640, 480, side=16, most=256)
    (288, 224)
    """
    low, high = 1e-6, 100.0  # of the scale, found as SigLIP 2 finds it
    while high - low >= 1e-5:
        scale = (low + high) / 2
        fits = math.prod(_cells(length, scale, side) for length in (width, height)) <= most
        low, high = (scale, high) if fits else (low, scale)
    return side * _cells(width, low, side), side * _cells(height, low, side)


def _cells(length: int, scale: float, side: int) -> int:
    return max(1, math.ceil(length * scale / side))


def _without_far_ends(image: Image) -> Image:
    """Cut a very long picture to its middle: scaled by its short side it would be enormous."""
    longest = _LONGEST * min(image.size)
    width, height = (min(length, longest) for length in image.size)
    left, top = (image.width - width) // 2, (image.height - height) // 2
    return image.crop((left, top, left + width, top + height))


@dataclass(frozen=True)
class Fault:
    """Why a picture cannot be used; `reason` is equal for all pictures with the same fault."""

    reason: str
    hint: str
    detail: str = ""

    def sentence(self, picture: Picture) -> str:
        name = "The picture" if isinstance(picture, bytes) else picture
        detail = f" ({self.detail})" if self.detail else ""
        return f"{name} {self.reason}{detail}; {self.hint}."


class PictureError(UserError):
    """A picture that cannot be used."""

    def __init__(self, picture: Picture, fault: Fault) -> None:
        self.fault = fault
        super().__init__(fault.sentence(picture))


NO_PICTURE = Fault(
    "is not a picture that can be read",
    f"expected {', '.join(FORMATS[:-1])} or {FORMATS[-1]}; replace it or leave it out",
)
TOO_DEMANDING = Fault("takes more memory than is available", "make the picture smaller")
TOO_LONG = Fault(f"is more than {MAX_SIDE:,} pixels long", "cut the picture")


def too_large(max_pixels: int) -> Fault:
    return Fault(f"has more than {max_pixels:,} pixels", "make the picture smaller")


def unreadable(error: Exception) -> Fault:
    detail = getattr(error, "strerror", None) or str(error)
    return Fault("cannot be read", "expected a picture", detail=detail)


def decode(picture: Picture, canvas: Canvas | None, *, max_pixels: int = MAX_PIXELS) -> Pixels:
    """Decode a picture of any format to RGB, upright, in the network's square. (side, side, 3)

    Without a canvas it keeps its own size, as with `load_picture`. (height, width, 3)
    """
    with open_picture(picture, max_pixels=max_pixels) as image, _reject_damaged(picture):
        if canvas is None:
            image.load()
            return np.asarray(upright(image))
        side = 2 * canvas.enough
        image.draft("RGB", (side, side))  # decode large JPEGs at reduced size
        image.load()  # some formats have their Exif data at the end
        return np.asarray(canvas.fill(upright(image)))


def load_picture(picture: Picture) -> Image:
    """Load a picture of any format as RGB, upright, in its own size and shape."""
    with open_picture(picture) as image, _reject_damaged(picture):
        image.load()
        return upright(image)


@contextmanager
def _reject_damaged(picture: Picture) -> Iterator[None]:
    try:
        yield
    except MemoryError as error:
        raise PictureError(picture, TOO_DEMANDING) from error
    except Exception as error:
        detail = " ".join(str(error).split())[:100] or type(error).__name__
        hint = "replace the picture or leave it out"
        fault = Fault("is damaged or truncated", hint, detail=detail)
        raise PictureError(picture, fault) from error


def find_fault(picture: Picture) -> Fault | None:
    """Check the header of a picture; return why it cannot be used, or None."""
    try:
        with open_picture(picture):
            return None
    except PictureError as error:
        return error.fault


def picture_size(picture: Picture) -> tuple[int, int]:
    """Return the width and height of a picture, upright."""
    with open_picture(picture) as image:
        return upright_size(image)


def upright_size(image: Image) -> tuple[int, int]:
    """Return the width and height of an opened picture, upright."""
    lying = _orientation(image) >= 5 and image.format != "TIFF"  # Pillow rotates TIFF itself
    return (image.height, image.width) if lying else image.size


@contextmanager
def open_picture(picture: Picture, *, max_pixels: int = MAX_PIXELS) -> Iterator[Image]:
    """Open a picture after checking its header only."""
    with _open(picture) as image:
        if image.width * image.height > max_pixels:
            raise PictureError(picture, too_large(max_pixels))
        if max(image.size) > MAX_SIDE:
            raise PictureError(picture, TOO_LONG)
        yield image


def _open(picture: Picture) -> Image:
    try:
        import PIL.Image
    except ImportError as error:
        raise missing_packages(error) from error
    _quieten_pillow()
    file = io.BytesIO(picture) if isinstance(picture, bytes) else picture
    try:
        return PIL.Image.open(file, formats=FORMATS)
    except PIL.Image.DecompressionBombError as error:
        raise PictureError(picture, too_large(MAX_PIXELS)) from error
    except Exception as error:
        of_system = isinstance(error, OSError) and error.strerror
        raise PictureError(picture, unreadable(error) if of_system else NO_PICTURE) from error


def _quieten_pillow() -> None:
    """Silence Pillow's warnings, which are either errors here or harmless.

    The filters apply to the process: they are set once for all threads, not per picture.
    """
    if all(module != _PILLOW for *_, module, _ in warnings.filters):
        warnings.filterwarnings("ignore", module=_PILLOW.pattern)


def upright(image: Image) -> Image:
    """Return a loaded picture upright, in RGB."""
    return _to_rgb(_turn_upright(image))


def _turn_upright(image: Image) -> Image:
    """Undo the camera's rotation."""
    import PIL.Image

    name = _TRANSPOSITIONS.get(_orientation(image))
    return image.transpose(PIL.Image.Transpose[name]) if name else image


def _orientation(image: Image) -> int:
    """Return the camera orientation, 1 to 8; damaged Exif data do not make a picture unusable."""
    try:
        return int(image.getexif().get(_ORIENTATION, 1))
    except Exception:
        return 1


def _to_rgb(image: Image) -> Image:
    """Convert any mode to RGB: transparency over white, 16-bit greyscale by its upper half.

    32-bit greyscale (int or float) has no standard white: its own range becomes black to white.
    """
    import PIL.Image

    if image.has_transparency_data:
        opaque = PIL.Image.new("RGBA", image.size, "white")
        opaque.alpha_composite(image if image.mode == "RGBA" else image.convert("RGBA"))
        image = opaque
    elif image.mode.startswith("I;16"):
        image = PIL.Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    elif image.mode in ("I", "F"):
        image = PIL.Image.fromarray(_stretch(np.asarray(image, np.float64)))
    return image.convert("RGB")


def _stretch(values: npt.NDArray[np.float64]) -> npt.NDArray[np.uint8]:
    """Scale numbers of any range to 0 to 255."""
    low, high = values.min(), values.max()
    if not np.isfinite(high - low):
        raise ValueError("it holds NaN or infinite numbers")
    shares: npt.NDArray[np.float64] = (values - low) / ((high - low) or 1)
    return (shares * 255).astype(np.uint8)


# Folders of pictures


@dataclass(frozen=True)
class PictureFolder:
    """The pictures below a folder, and the number of other files by ending."""

    path: Path
    pictures: tuple[Path, ...]
    others: Counter[str]


def find_pictures(folder: Path) -> PictureFolder:
    """Find all visible files below a folder that end like pictures, in natural order.

    Links to folders are not followed, to avoid cycles; links to files are.
    """
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder; name a folder of pictures.")
    pictures: list[Path] = []
    others: Counter[str] = Counter()
    for parent, folders, names in os.walk(folder, onerror=_warn_unreadable):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            if name.startswith("."):
                continue
            path = Path(parent, name)
            suffix = path.suffix.lower()
            if suffix in PICTURE_SUFFIXES:
                pictures.append(path)
            else:
                others[suffix] += 1
    return PictureFolder(folder, tuple(sorted(pictures, key=natural_order)), others)


def natural_order(path: Path) -> tuple[list[list[tuple[int, int | str]]], Path]:
    """Sort a.jpg before a2.jpg before a10.jpg, folder by folder.

    >>> [path.name for path in sorted(map(Path, ["a10.jpg", "a2.jpg", "a.jpg"]), key=natural_order)]
    ['a.jpg', 'a2.jpg', 'a10.jpg']
    """
    pieces = [re.findall(r"\d+|\D+", part) for part in path.with_suffix("").parts]
    numbered: list[list[tuple[int, int | str]]] = [
        [(0, int(piece)) if piece.isdecimal() else (1, piece.casefold()) for piece in part]
        for part in pieces
    ]
    return numbered, path


def _warn_unreadable(error: OSError) -> None:
    warn(f"{error.filename} cannot be read ({error.strerror}) and is left out.")


def missing_packages(error: ImportError) -> UserError:
    return UserError(f'this needs {error.name}; install it with pip install "aoq[extract]".')
