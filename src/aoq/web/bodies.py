"""Bodies of requests: received in pieces, within a size and a time.

A body over its limit is given up at the byte that exceeds it, whatever its header promised. FastAPI
would read a JSON body of any size before it checks who sends it, so it is read here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from aoq.web.limits import JSON_BYTES

B = TypeVar("B", bound=BaseModel)


async def bounded(request: Request, most: int, sentence: str) -> AsyncGenerator[bytes, None]:
    """Yield a body in pieces; raise 413 as soon as it is, or promises to be, too large."""
    received = int(request.headers.get("content-length", "0"))
    if received <= most:
        received = 0
        async for chunk in request.stream():
            received += len(chunk)
            if received > most:
                break
            yield chunk
    if received > most:
        raise HTTPException(413, sentence)


@asynccontextmanager
async def in_time(seconds: float, advice: str) -> AsyncIterator[None]:
    """Give up a body that does not arrive in time, or breaks off."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise HTTPException(
            408,
            f"The request took longer than {seconds:g} seconds to arrive; {advice}",
            headers={"Connection": "close"},
        ) from None
    except ClientDisconnect:
        raise HTTPException(400, "The request broke off.") from None


async def read_json(request: Request, model: type[B], *, seconds: float) -> B:
    """Read a small JSON body; raise 422 if it is not what the model says."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise HTTPException(415, "Send JSON, with the header Content-Type: application/json.")
    sentence = f"The request is larger than {JSON_BYTES:,} bytes; ask for less at once."
    async with in_time(seconds, "send it again."):
        body = b"".join([chunk async for chunk in bounded(request, JSON_BYTES, sentence)])
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        problems = [{**problem, "loc": ("body", *problem["loc"])} for problem in error.errors()]
        raise RequestValidationError(problems) from None


def json_body(model: type[BaseModel]) -> dict[str, Any]:
    """Describe a JSON body for the OpenAPI document; the model must name no other one."""
    content = {"application/json": {"schema": model.model_json_schema()}}
    return {"requestBody": {"required": True, "content": content}}
