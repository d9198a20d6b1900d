"""What those who run a server see of it: metrics for Prometheus, and an access log.

Each request is counted and logged when its last byte is sent. Metrics name routes, never addresses,
so their number is bounded. A line of the log is JSON; it has no query string and no header, so it
holds neither tokens nor what people look for.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from datetime import UTC, datetime
from functools import partial
from logging.handlers import WatchedFileHandler
from pathlib import Path

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aoq import __version__
from aoq.errors import UserError
from aoq.types import EntryKind
from aoq.web.index_watch import WatchedRun
from aoq.web.service import Service

CLOSED = 499  # as nginx calls it: the visitor has gone before the response
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


KINDS: tuple[EntryKind, ...] = ("image", "text")


class Metrics:
    """The metrics of one server."""

    def __init__(self, service: Service) -> None:
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        self._requests = Counter(
            "aoq_requests", "Requests by route.", ("method", "route", "status"), registry=registry
        )
        self._seconds = Histogram(
            "aoq_request_seconds",
            "Time from the head of a request to the last byte of its response.",
            ("route",),
            buckets=_SECONDS,
            registry=registry,
        )
        info = Gauge("aoq_info", "Version of aoq.", ("version",), registry=registry)
        info.labels(__version__).set(1)
        jobs = Gauge("aoq_jobs", "Requests that are computed or wait for it.", registry=registry)
        jobs.set_function(lambda: service.workers.jobs)
        uploads = Gauge("aoq_uploads", "Uploads that arrive or wait.", registry=registry)
        uploads.set_function(lambda: service.uploads.held)
        entries = Gauge("aoq_entries", "Entries searched.", ("run", "kind"), registry=registry)
        for name, watched in service.watched.items():
            for kind in KINDS:
                entries.labels(name, kind).set_function(partial(_count, watched, kind))

    def count(self, method: str, route: str, status: int, seconds: float) -> None:
        self._requests.labels(method, route, status).inc()
        self._seconds.labels(route).observe(seconds)

    def text(self) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        return generate_latest(self._registry)


class Monitoring:
    """Counts requests, and logs them if there is a log."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics, log: logging.Logger | None) -> None:
        self.app = app
        self.metrics = metrics
        self.log = log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        started, status, size = time.perf_counter(), CLOSED, 0

        async def send_counted(message: Message) -> None:
            nonlocal status, size
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                size += len(message.get("body", b""))
            await send(message)

        try:
            await self.app(scope, receive, send_counted)
        except Exception:
            status = 500
            raise
        finally:
            seconds = time.perf_counter() - started
            self.metrics.count(_method(scope), _route(scope), status, seconds)
            if self.log is not None:
                self.log.info(_line(scope, status, size, seconds))


def open_access_log(target: str) -> logging.Logger:
    """Open a log: a file that is appended to, and opened again once it was moved, or - for stdout.

    It is no part of the tree of loggers, so that no other settings change it.
    """
    handler: logging.Handler
    if target == "-":
        handler = logging.StreamHandler(sys.stdout)
    else:
        try:
            handler = WatchedFileHandler(Path(target))
        except OSError as error:
            raise UserError(
                f"--access-log {target} cannot be written ({error.strerror}); name a file in a "
                "folder that exists, or - for the standard output."
            ) from None
    log = logging.Logger("aoq.access")
    log.addHandler(handler)
    return log


def _count(watched: WatchedRun, kind: EntryKind) -> float:
    return len(watched.current().entries.by_kind[kind])


def _line(scope: Scope, status: int, size: int, seconds: float) -> str:
    client = scope.get("client")
    return json.dumps(
        {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "client": client[0] if client else None,
            "visitor": scope.get("state", {}).get("visitor"),
            "method": scope["method"],
            "path": scope["path"],
            "status": status,
            "bytes": size,
            "seconds": round(seconds, 4),
        }
    )


_METHODS = frozenset({"GET", "HEAD", "POST", "OPTIONS"})
_FILES = frozenset({"/", "/openapi.json"})


def _method(scope: Scope) -> str:
    return scope["method"] if scope["method"] in _METHODS else "other"


def _route(scope: Scope) -> str:
    """Name the route of a request; there are few, however many addresses are tried."""
    if (route := scope.get("route")) is not None:
        return str(route.path)
    if scope["path"] in _FILES:
        return str(scope["path"])
    return "/static" if scope["path"].startswith("/static/") else "other"
