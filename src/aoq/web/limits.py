"""How much may be asked of the server: every number that bounds it, in one place.

A server that many can reach has to stay small whatever it is sent. Sizes are refused before they
are read, time is counted from outside, and work that has no place waits in a short line or is
turned away with a sentence. Places are for whoever comes first: one visitor can take them all, and
it is for a proxy to give each a share.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from aoq.data.pictures import MAX_PIXELS
from aoq.errors import UserError

QUERY_CHARACTERS = 500
TOP = 100  # hits of an answer
PAGE = 100  # entries of a listing
DEPTH = 200  # candidates of an anchor
NUMBER = 2**31 - 1  # no index is larger
FORM_BYTES = 16_384  # what surrounds a picture in a form: boundaries, headers, a file name
_BYTES_TO_BEGIN = 512 * 2**20  # addresses that Python, NumPy and Pillow take
THUMBNAIL, FULL = 320, 1280  # pixels of a shown picture's longer side
_FLAGS = {  # what who starts a server knows them by
    "upload_bytes": "--max-upload",
    "pixels": "--max-pixels",
    "working": "--workers",
    "waiting": "--waiting",
    "seconds": "--timeout",
}


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What can be set for a server; the defaults carry 32 busy visitors on two cores."""

    upload_bytes: int = 10_000_000
    pixels: int = 40_000_000
    "Of an uploaded picture."
    decode_seconds: float = 5.0
    "Of computing, for an uploaded picture to be decoded."
    working: int = field(default_factory=lambda: os.cpu_count() or 1)
    "Requests that are computed at once, a thread each."
    waiting: int = 64
    "Requests that wait for a thread; more are told to come back."
    seconds: float = 30.0
    "From the end of a request to its answer, waiting included."
    upload_seconds: float = 20.0
    "For the body of a request to arrive."
    uploads: int = 32
    "Bodies that arrive or wait for their answer at once."
    connections: int = 512
    head_seconds: float = 10.0
    "For the head of a request to arrive, and between two requests of a connection."
    answer_seconds: float = 30.0
    "For a visitor to take an answer."
    kept_picture_bytes: int = 64_000_000
    "Memory for pictures made small."
    kept_upload_bytes: int = 64_000_000
    "Memory for the regions of uploads, of which attention may be asked."

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
        """Memory for decoding a picture: its pixels as they come, turned, over white and in RGB."""
        return _BYTES_TO_BEGIN + 24 * self.pixels

    @property
    def request_seconds(self) -> float:
        """A whole request, from its head to the last byte of the answer."""
        return self.upload_seconds + self.seconds + self.answer_seconds
