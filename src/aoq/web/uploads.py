"""Pictures that visitors upload: received with limits on everything, decoded elsewhere.

Starlette parses the form as it arrives, in memory. `aoq.web.decoders` decodes the picture. Its
regions are cached for a while, so that more can be asked about it at no cost; the picture itself is
not.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from threading import Lock
from typing import BinaryIO

from cachetools import LRUCache
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from aoq.retrieval.encoder import QueryEncoder, ReadPicture
from aoq.web.bodies import bounded, in_time
from aoq.web.decoders import Decoders
from aoq.web.errors import busy
from aoq.web.limits import Limits

FIELD = "picture"
_EXPECTED = f"send one picture as the file {FIELD!r} of a multipart form."


class Uploads:
    """Reads uploads and caches the regions of the last ones."""

    def __init__(self, limits: Limits) -> None:
        self.decoders = Decoders(
            max_pixels=limits.pixels, memory=limits.decode_bytes, seconds=limits.decode_seconds
        )
        self.held = 0  # uploads that arrive or wait for their answer
        self._limits = limits
        self._regions: LRUCache[str, ReadPicture] = LRUCache(
            limits.kept_upload_bytes, getsizeof=lambda picture: picture.regions.nbytes
        )
        self._lock = Lock()
        self._secret = secrets.token_bytes(32)

    @asynccontextmanager
    async def receive(self, request: Request) -> AsyncIterator[BinaryIO]:
        """Yield the uploaded file, and close it at the end of the block.

        Closing frees its memory even while an abandoned job still waits with it.
        """
        if self.held >= self._limits.uploads:
            raise busy()
        self.held += 1
        try:
            form = await self._receive_form(request)
            try:
                yield self._file_of(form)
            finally:
                await form.close()
        finally:
            self.held -= 1

    async def _receive_form(self, request: Request) -> FormData:
        if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
            raise HTTPException(422, f"The request holds no form; {_EXPECTED}")
        body = bounded(request, self._limits.body_bytes, self._too_large)
        parser = _FormParser(request.headers, body, max_files=1, max_fields=0)
        try:
            async with in_time(self._limits.upload_seconds, "send a smaller picture."):
                return await parser.parse()
        except MultiPartException as error:
            raise HTTPException(422, f"{error.message.removesuffix('.')}; {_EXPECTED}") from None

    def _file_of(self, form: FormData) -> BinaryIO:
        upload = form.get(FIELD)
        if not isinstance(upload, UploadFile):
            raise HTTPException(422, f"The form has no such file; {_EXPECTED}")
        if not upload.size:
            raise HTTPException(422, "The uploaded file is empty; send a picture.")
        if upload.size > self._limits.upload_bytes:
            raise HTTPException(413, self._too_large)
        return upload.file

    def read(self, picture: bytes, encoder: QueryEncoder) -> tuple[str, ReadPicture]:
        """Return the name under which a picture's regions are cached, and the regions.

        The same picture and network have the same name; nobody can guess it.
        """
        name = hashlib.blake2b(picture, key=self._secret, digest_size=16)
        name.update(repr(encoder.source).encode())
        token = name.hexdigest()
        with self._lock:
            read = self._regions.get(token)
        if read is None:
            read = encoder.read_picture(self.decoders.decode(picture, encoder.reader.canvas))
            with self._lock, suppress(ValueError):  # larger than the whole cache
                self._regions[token] = read
        return token, read

    def find(self, token: str) -> ReadPicture:
        """Return the regions of an upload by its name; raise 404 if they are gone."""
        with self._lock:
            picture = self._regions.get(token)
        if picture is None:
            raise HTTPException(404, "The uploaded picture is no longer kept; upload it again.")
        return picture

    @property
    def _too_large(self) -> str:
        size = f"{self._limits.upload_bytes / 1e6:g} MB"
        return f"The upload is larger than {size}; send a smaller picture."


class _FormParser(MultiPartParser):
    """Keeps files in memory, and rejects forms cut short, whose files Starlette leaves open."""

    spool_max_size = 0  # no limit: no file is ever written to disk
    _is_whole = False

    def on_end(self) -> None:
        self._is_whole = True

    async def parse(self) -> FormData:
        self.stream = self._whole(self.stream)
        return await super().parse()

    async def _whole(self, body: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
        async for chunk in body:
            yield chunk
        if not self._is_whole:
            raise MultiPartException("The form is empty or cut short.")
