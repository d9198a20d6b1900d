"""The socket and the process: where the application listens, and how it ends.

uvicorn waits for the head of a request for as long as the client likes, and for the client to take
an answer, and keeps any number of connections; here all are bounded. Ctrl-C and SIGTERM leave
requests under way a moment to end.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from ipaddress import ip_address
from threading import Thread
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

_GRACE = 2  # seconds for requests under way when the server is stopped
_FAREWELL = 1  # for the application to end a request itself
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
        answer_seconds = limits.answer_seconds
        request_seconds = limits.request_seconds + _FAREWELL

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


@contextmanager
def running(app: FastAPI, limits: Limits) -> Iterator[str]:
    """The address of a server that runs beside this thread, on any free port, and ends with it."""
    server = make_server(app, limits)
    with listen("127.0.0.1", 0) as listener:
        thread = Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        while thread.is_alive() and not server.started:
            time.sleep(0.01)
        try:
            yield address_of(listener)
        finally:
            server.should_exit = True
            thread.join()


class PatientProtocol(H11Protocol):
    """Gives a client some seconds for the head of each request, and some for all the rest of it.

    Then the connection is aborted: one that is closed stays until all has been taken, and who
    reads nothing takes nothing. A connection too many is turned away.
    """

    most_connections: int
    head_seconds: float
    answer_seconds: float
    request_seconds: float
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.most_connections:
            transport.close()
        else:
            self._abort_after(self.head_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        before = self.cycle
        super().handle_events()
        if self.cycle is not before:
            self._abort_after(self.request_seconds)

    def on_response_complete(self) -> None:
        is_taken = not self.transport.get_write_buffer_size()
        self._abort_after(self.head_seconds if is_taken else self.answer_seconds)
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

    def _abort_after(self, seconds: float) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(seconds, self.transport.abort)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
