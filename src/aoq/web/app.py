"""The application: the page, the API behind its checks, and the headers of every response."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import Depends, FastAPI, Request, Security
from fastapi.responses import FileResponse
from fastapi.security import HTTPBearer
from starlette.middleware import Middleware
from starlette.staticfiles import StaticFiles

from aoq import __version__
from aoq.retrieval.matcher import Matcher
from aoq.web.access import Gate
from aoq.web.errors import add_error_handlers
from aoq.web.limits import Limits
from aoq.web.monitoring import Metrics, Monitoring
from aoq.web.public_routes import health_router, metrics_router, session_router
from aoq.web.routes import router
from aoq.web.security import LOOPBACK_NAMES, KnownVisitors, SecurityHeaders
from aoq.web.service import Service

STATIC = Path(__file__).parent / "static"


def make_app(
    matchers: Sequence[Matcher],
    *,
    names: Sequence[str] | None = None,
    limits: Limits | None = None,
    hosts: Collection[str] = LOOPBACK_NAMES,
    gate: Gate | None = None,
    access_log: logging.Logger | None = None,
) -> FastAPI:
    """Make the application that serves some runs, at numeric addresses and the names `hosts`.

    `names` are those of the runs in addresses; by default, those of their folders. `gate` says who
    may use the API; the files of the page tell nothing and are for everybody.
    """
    service = Service.of(matchers, limits or Limits(), names=names)
    gate = gate or Gate()
    metrics = Metrics(service)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.start()
        try:
            yield
        finally:
            service.close()

    app = FastAPI(
        title="aoq",
        version=__version__,
        description="Finds images for sentences and sentences for images.",
        docs_url=None,  # FastAPI's page loads scripts of another site
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
        middleware=[
            Middleware(SecurityHeaders),
            Middleware(Monitoring, metrics=metrics, log=access_log),
        ],
    )
    app.state.service = service
    add_error_handlers(app, router.routes)
    known = Depends(KnownVisitors(frozenset(host.lower() for host in hosts)).check)
    guards = [known, Depends(gate.check)]
    if gate.tokens is not None:
        sessions = session_router(gate, seconds=service.limits.upload_seconds)
        app.include_router(sessions, dependencies=[known, Depends(gate.check_rate)])
        guards.append(Security(HTTPBearer(auto_error=False)))  # for the OpenAPI document
    app.include_router(health_router())
    app.include_router(metrics_router(metrics), dependencies=guards)
    app.include_router(router, dependencies=guards)
    app.add_route("/", _page, include_in_schema=False)  # GET and HEAD
    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    app.openapi()  # generated once, before the first visitor would wait for it
    return app


async def _page(request: Request) -> FileResponse:
    return FileResponse(STATIC / "index.html")
