"""Pictures that visitors send: received with a limit on everything, decoded elsewhere.

A body is read in pieces and given up as soon as it is too large or too late, whatever its head
promised. What it holds goes to a process of `aoq.web.decoders`. The regions of the picture are
kept for a while, so that more can be asked of it at no cost; the picture itself is not.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import AsyncIterator
from contextlib import suppress

from starlette.requests import ClientDisconnect, Request

from aoq.retrieval.encoder import QueryEncoder, ReadPicture
from aoq.web.decoders import Decoders
from aoq.web.forms import read_form
from aoq.web.kept import Kept
from aoq.web.limits import Limits
from aoq.web.refusals import RefusedError, busy

FIELD = "picture"
_FAREWELL_SECONDS = 2.0
_FAREWELL_BYTES = 64_000_000


class Uploads:
    """Reads uploads and keeps what became of the last ones."""

    def __init__(self, limits: Limits) -> None:
        self.decoders = Decoders(
            max_pixels=limits.pixels, memory=limits.decode_bytes, seconds=limits.decode_seconds
        )
        self._limits = limits
        self._arriving = 0
        self._kept = Kept[str, ReadPicture](
            most=limits.kept_upload_bytes, size=lambda picture: picture.regions.nbytes
        )
        self._secret = secrets.token_bytes(32)

    async def receive(self, request: Request) -> bytes:
        """The body of a request, if it is not too large, comes in time and there is room."""
        if self._arriving >= self._limits.uploads:
            raise busy()
        self._arriving += 1
        try:
            async with asyncio.timeout(self._limits.upload_seconds):
                return await self._receive(request)
        except TimeoutError:
            raise RefusedError(
                408,
                f"The upload took longer than {self._limits.upload_seconds:g} seconds; send a "
                "smaller picture.",
                close=True,
            ) from None
        except ClientDisconnect:
            raise RefusedError(400, "The upload broke off.", close=True) from None
        finally:
            self._arriving -= 1

    async def _receive(self, request: Request) -> bytes:
        most, stream = self._limits.body_bytes, request.stream()
        if int(request.headers.get("content-length", "0")) > most:
            if "expect" not in request.headers:  # else it waits for our answer before it sends
                await _discard(stream)
            raise self._too_large()
        body = bytearray()
        async for chunk in stream:
            body += chunk
            if len(body) > most:
                await _discard(stream)
                raise self._too_large()
        return bytes(body)

    def open(self, body: bytes, content_type: str) -> bytes:
        """The one file in a form, as it was sent."""
        picture = read_form(body, content_type, field=FIELD)
        if not picture:
            raise RefusedError(422, "The uploaded file is empty; send a picture.")
        if len(picture) > self._limits.upload_bytes:
            raise self._too_large()
        return picture

    def read(self, picture: bytes, encoder: QueryEncoder) -> tuple[str, ReadPicture]:
        """A picture's regions, and the name under which they are kept.

        Nobody can guess it, and it is the same for the same picture and network.
        """
        named = hashlib.blake2b(picture, key=self._secret, digest_size=16)
        named.update(repr(encoder.source).encode())
        token = named.hexdigest()
        read = self._kept.get(token)
        if read is None:
            read = encoder.read_picture(self.decoders.decode(picture, encoder.reader.canvas))
            self._kept.keep(token, read)
        return token, read

    def find(self, token: str) -> ReadPicture:
        picture = self._kept.get(token)
        if picture is None:
            raise RefusedError(404, "The uploaded picture is no longer kept; upload it again.")
        return picture

    def _too_large(self) -> RefusedError:
        size = f"{self._limits.upload_bytes / 1e6:g} MB"
        return RefusedError(
            413, f"The upload is larger than {size}; send a smaller picture.", close=True
        )


async def _discard(stream: AsyncIterator[bytes]) -> None:
    """Take a little more: most clients read no answer before they have sent everything."""
    left = _FAREWELL_BYTES
    with suppress(TimeoutError, ClientDisconnect):
        async with asyncio.timeout(_FAREWELL_SECONDS):
            async for chunk in stream:
                left -= len(chunk)
                if left < 0:
                    return
