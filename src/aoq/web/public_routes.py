"""The routes beside the API: for health checks, for Prometheus, and for the session of the page."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel, Field

from aoq.web.access import MAX_TOKEN, Gate, refused
from aoq.web.monitoring import Metrics
from aoq.web.schemas import Failure

_REFUSED = {"model": Failure, "description": "The token is not accepted."}


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

    @router.get("/metrics", response_class=Response, responses={200: text})
    async def show_metrics() -> Response:
        """Show metrics for Prometheus."""
        return Response(metrics.text(), media_type=CONTENT_TYPE_LATEST)

    return router


def session_router(gate: Gate) -> APIRouter:
    """Exchange the token of a browser for a cookie."""
    router = APIRouter(tags=["server"])
    tokens = gate.tokens
    assert tokens is not None

    @router.post("/api/session", status_code=204, responses={401: _REFUSED})
    async def begin_session(given: GivenToken, request: Request) -> Response:
        """Begin the session of a browser: all its requests then carry a cookie."""
        holder = tokens.named(given.token)
        if holder is None:
            raise refused("This token is not accepted; ask for another one.")
        request.state.visitor = holder
        response = Response(status_code=204)
        is_secure = request.headers.get("origin", "").lower().startswith("https:")
        tokens.set_cookie(response, given.token, secure=is_secure)
        return response

    return router
