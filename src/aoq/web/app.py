"""The application: the API, the page and the documents, behind the guard."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.responses import FileResponse, HTMLResponse
from starlette.middleware import Middleware
from starlette.staticfiles import StaticFiles

from aoq import __version__
from aoq.retrieval.matcher import Matcher
from aoq.web.api import router
from aoq.web.documents import describe_api
from aoq.web.guard import LOOPBACK_NAMES, Bounded, KnownVisitors, WithSecurityHeaders
from aoq.web.limits import Limits
from aoq.web.refusals import speak_in_sentences
from aoq.web.service import Service

_HERE = Path(__file__).parent
STATIC = _HERE / "static"


def make_app(
    matchers: Sequence[Matcher],
    *,
    limits: Limits | None = None,
    hosts: Collection[str] = LOOPBACK_NAMES,
) -> FastAPI:
    """What serves some runs; it answers to addresses in numbers and to the names `hosts`."""
    limits = limits or Limits()
    service = Service.of(matchers, limits)

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
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
        middleware=[
            Middleware(WithSecurityHeaders),
            Middleware(Bounded, seconds=limits.request_seconds),
            Middleware(KnownVisitors, hosts=hosts),
        ],
    )
    app.state.service = service
    speak_in_sentences(app, router.routes)
    app.include_router(router)
    _add_pages(app)
    return app


def _add_pages(app: FastAPI) -> None:
    documents = describe_api(app.openapi())

    async def page(request: Request) -> FileResponse:
        return FileResponse(STATIC / "index.html")

    async def docs(request: Request) -> HTMLResponse:
        return HTMLResponse(documents)

    async def docs_style(request: Request) -> FileResponse:
        return FileResponse(_HERE / "templates" / "docs.css")

    for path, answer in (("/", page), ("/docs", docs), ("/docs.css", docs_style)):
        app.add_route(path, answer, include_in_schema=False)  # GET and HEAD
    app.mount("/static", StaticFiles(directory=STATIC), name="static")
