"""The routes beside the API: for health checks, for Prometheus, and for the session of the page."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel, Field

from aoq.web.access import MAX_TOKEN, Gate, refused
from aoq.web.bodies import json_body, read_json
from aoq.web.monitoring import Metrics
from aoq.web.schemas import Failure

_FAILURES: dict[int | str, dict[str, Any]] = {
    400: {"model": Failure, "description": "The request cannot be understood."},
    401: {"model": Failure, "description": "The server wants a token."},
    403: {"model": Failure, "description": "A page of another site sent the request."},
    429: {"model": Failure, "description": "Too many requests; see Retry-After."},
}
_SESSION_FAILURES: dict[int | str, dict[str, Any]] = _FAILURES | {
    401: {"model": Failure, "description": "The token is not accepted."},
    408: {"model": Failure, "description": "The request took too long to arrive."},
    413: {"model": Failure, "description": "The request is too large."},
    415: {"model": Failure, "description": "The request is not JSON."},
    422: {"model": Failure, "description": "The request holds no token."},
}


class Health(BaseModel):
    """A server that responds."""

    status: Literal["ok"] = "ok"


class GivenToken(BaseModel):
    """A token that a browser exchanges for a session."""

    token: Annotated[str, Field(min_length=1, max_length=MAX_TOKEN)]


def health_router() -> APIRouter:
    """Tell load balancers, at any name and without a token, that the server responds."""
    router = APIRouter(tags=["server"])

    @router.get("/healthz")
    async def health() -> Health:
        """Respond as long as the server does."""
        return Health()

    return router


def metrics_router(metrics: Metrics) -> APIRouter:
    router = APIRouter(tags=["server"])
    text = {"content": {"text/plain": {}}, "description": "The text format of Prometheus."}

    @router.get("/metrics", response_class=Response, responses={200: text, **_FAILURES})
    async def show_metrics() -> Response:
        """Show metrics for Prometheus."""
        return Response(metrics.text(), media_type=CONTENT_TYPE_LATEST)

    return router


def session_router(gate: Gate, *, seconds: float) -> APIRouter:
    """Exchange the token of a browser for a cookie; it has some seconds to send it."""
    router = APIRouter(tags=["server"])
    tokens = gate.tokens
    assert tokens is not None

    @router.post(
        "/api/session",
        status_code=204,
        responses=_SESSION_FAILURES,
        openapi_extra=json_body(GivenToken),
    )
    async def begin_session(request: Request) -> Response:
        """Begin the session of a browser: all its requests then carry a cookie."""
        given = await read_json(request, GivenToken, seconds=seconds)
        holder = tokens.named(given.token)
        if holder is None:
            raise refused("This token is not accepted; ask for another one.")
        request.state.visitor = holder
        response = Response(status_code=204)
        is_secure = request.headers.get("origin", "").lower().startswith("https:")
        tokens.set_cookie(response, given.token, secure=is_secure)
        return response

    return router
