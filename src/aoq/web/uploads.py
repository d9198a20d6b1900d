"""Pictures that visitors send: received with a limit on everything, decoded elsewhere.

A body is read in pieces and given up as soon as it is too large or too late, whatever its head
promised. It has one of a few places until its answer is there: in line it takes as much memory as
on its way. What it holds goes to a process of `aoq.web.decoders`. The regions of the picture are
kept for a while, so that more can be asked of it at no cost; the picture itself is not.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

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
        self.held = 0  # bodies that have a place
        self._kept = Kept[str, ReadPicture](
            most=limits.kept_upload_bytes, size=lambda picture: picture.regions.nbytes
        )
        self._secret = secrets.token_bytes(32)

    @asynccontextmanager
    async def receive(self, request: Request) -> AsyncIterator[bytearray]:
        """The body of a request, if there is room, for as long as the block lasts.

        Then it is emptied: work that was given up may still stand in line with it.
        """
        if self.held >= self._limits.uploads:
            raise busy()
        self.held += 1
        body = bytearray()
        try:
            await self._fill_in_time(body, request)
            yield body
        finally:
            body.clear()
            self.held -= 1

    async def _fill_in_time(self, body: bytearray, request: Request) -> None:
        try:
            async with asyncio.timeout(self._limits.upload_seconds):
                await self._fill(body, request)
        except TimeoutError:
            raise RefusedError(
                408,
                f"The upload took longer than {self._limits.upload_seconds:g} seconds; send a "
                "smaller picture.",
                close=True,
            ) from None
        except ClientDisconnect:
            raise RefusedError(400, "The upload broke off.", close=True) from None

    async def _fill(self, body: bytearray, request: Request) -> None:
        most, stream = self._limits.body_bytes, request.stream()
        if int(request.headers.get("content-length", "0")) > most:
            if "expect" not in request.headers:  # else it waits for our answer before it sends
                await _discard(stream)
            raise self._too_large()
        async for chunk in stream:
            body += chunk
            if len(body) > most:
                await _discard(stream)
                raise self._too_large()

    def open(self, body: bytearray, content_type: str) -> bytes:
        """The one file in a form, as it was sent."""
        picture = read_form(bytes(body), content_type, field=FIELD)
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
