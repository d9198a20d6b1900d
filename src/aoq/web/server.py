"""The socket and the process: where the application listens, and how it ends.

uvicorn waits for the head of a request for as long as the client likes, and keeps any number of
connections; here both are bounded. Ctrl-C and SIGTERM let requests under way end.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from contextlib import ExitStack
from ipaddress import ip_address
from typing import TYPE_CHECKING

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from aoq.errors import UserError
from aoq.web.guard import SECURITY_HEADERS
from aoq.web.limits import Limits
from aoq.web.refusals import RefusedError

if TYPE_CHECKING:
    from fastapi import FastAPI

_GRACE = 5  # seconds for requests under way when the server is stopped
_BACKLOG = 512


def listen(host: str, port: int) -> socket.socket:
    """A socket at which visitors may already wait; port 0 takes any that is free."""
    with ExitStack() as opened:
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            listener = opened.enter_context(socket.socket(family, kind, protocol))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(_BACKLOG)
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise UserError(
                f"cannot listen on {host}, port {port} ({reason}); choose another --port or --host."
            ) from None
        opened.pop_all()  # it stays open
    return listener


def address_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def is_loopback(listener: socket.socket) -> bool:
    """Whether only this machine can reach it."""
    return ip_address(listener.getsockname()[0]).is_loopback


def make_server(app: FastAPI, limits: Limits) -> uvicorn.Server:
    """A server that says nothing; what goes wrong in the application is in its own log."""
    logging.getLogger("python_multipart").setLevel(logging.CRITICAL)  # tells of every damaged form

    class Protocol(PatientProtocol):
        most_connections = limits.connections
        head_seconds = limits.head_seconds

    config = uvicorn.Config(
        app,
        http=Protocol,
        ws="none",
        log_config=None,
        log_level="critical",
        access_log=False,
        server_header=False,
        backlog=_BACKLOG,
        timeout_keep_alive=round(limits.head_seconds),
        timeout_graceful_shutdown=_GRACE,
    )
    return uvicorn.Server(config)


class PatientProtocol(H11Protocol):
    """Gives a client some seconds for the head of each request, and turns away one too many."""

    most_connections: int
    head_seconds: float
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.most_connections:
            transport.close()
        else:
            self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        before = self.cycle
        super().handle_events()
        if self.cycle is not before:
            self._stop_timer()

    def on_response_complete(self) -> None:
        self._expect_head()
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """To what is no HTTP; uvicorn's own words lack the headers."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            refused = RefusedError(400, "This is no HTTP request.", close=True).response()
            refused.headers.update(SECURITY_HEADERS)
            for event in (
                h11.Response(status_code=400, headers=refused.raw_headers, reason=b"Bad Request"),
                h11.Data(data=bytes(refused.body)),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _expect_head(self) -> None:
        self._stop_timer()
        self._head_timer = self.loop.call_later(self.head_seconds, self.transport.close)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
