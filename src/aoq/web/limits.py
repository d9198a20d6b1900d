"""Every number that bounds the server, in one place.

A public server has to stay small whatever it receives: too large uploads are rejected while they
arrive, time is measured, and requests beyond the workers wait in a short queue or get status 429.
These limits are not per visitor; the rate of `aoq.web.access` is.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from aoq.errors import UserError
from aoq.features.pictures import MAX_PIXELS

QUERY_CHARACTERS = 500
TOP = 100  # hits of an answer
PAGE = 100  # entries of a listing
DEPTH = 200  # candidates of an anchor
NUMBER = 2**31 - 1  # no index is larger
FORM_BYTES = 16_384  # boundaries, headers and the file name around a picture
_BASE_BYTES = 512 * 2**20  # address space of Python, NumPy and Pillow
THUMBNAIL, FULL = 320, 1280  # pixels of the longer side of a picture
ORIGINAL_PIXELS = 50_000_000  # of a picture that is sent in its own size
TERMS = 8  # texts, photos or excluded words of a query
FILTER_CHARACTERS = 1000
VALUES = 200  # of a column that are listed
JSON_BYTES = 65_536  # of the body of a request
_FLAGS = {  # of `aoq serve`
    "upload_bytes": "--max-upload",
    "pixels": "--max-pixels",
    "working": "--workers",
    "waiting": "--waiting",
    "seconds": "--timeout",
    "grace_seconds": "--grace",
}


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of a server; the defaults carry 32 busy visitors on two cores."""

    upload_bytes: int = 10_000_000
    pixels: int = 40_000_000
    "Of an uploaded picture."
    decode_seconds: float = 5.0
    "Computing time for decoding an upload."
    working: int = field(default_factory=lambda: os.cpu_count() or 1)
    "Requests that are computed at once, one thread each."
    waiting: int = 64
    "Requests that wait for a thread; more get status 429."
    seconds: float = 30.0
    "From the end of a request to its answer, waiting included."
    upload_seconds: float = 20.0
    "Time for the body of a request to arrive."
    uploads: int = 32
    "Uploads that arrive or wait for their answer at once."
    connections: int = 512
    "Open at once; requests on more get status 503."
    head_seconds: float = 10.0
    "Time for the head of a request to arrive, and between two requests of a connection."
    answer_seconds: float = 30.0
    "Time for a visitor to read an answer."
    grace_seconds: float = 5.0
    "Time for running requests to end when the server is stopped."
    kept_picture_bytes: int = 64_000_000
    "Memory for cached thumbnails."
    kept_upload_bytes: int = 64_000_000
    "Memory for cached regions of uploads."

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value < 0 or (value == 0 and name != "waiting"):
                least = "at least 0" if name == "waiting" else "more than 0"
                raise UserError(f"{_FLAGS.get(name, name)} is {value}; it has to be {least}.")
        if self.pixels > MAX_PIXELS:
            raise UserError(
                f"--max-pixels is {self.pixels:,}; pictures of more than {MAX_PIXELS:,} pixels are "
                "never read; name a smaller number."
            )

    @property
    def body_bytes(self) -> int:
        return self.upload_bytes + FORM_BYTES

    @property
    def decode_bytes(self) -> int:
        """Memory for decoding a picture: its pixels as read, rotated, over white, and as RGB."""
        return _BASE_BYTES + 24 * self.pixels

    @property
    def request_seconds(self) -> float:
        """Time of a whole request, from its head to the last byte of the answer."""
        return self.upload_seconds + self.seconds + self.answer_seconds
