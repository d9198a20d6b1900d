"""The socket and the server: where the application listens, and how connections end.

uvicorn bounds the number of connections and the size of a request's head. It has no limit for the
time that a client takes to send a head or to read a response; `DeadlineProtocol` adds it. Ctrl-C
and SIGTERM leave running requests some seconds to end.
"""

from __future__ import annotations

import asyncio
import logging
import math
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from ipaddress import ip_address
from threading import Thread
from typing import TYPE_CHECKING

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from aoq.errors import UserError
from aoq.web.limits import Limits

if TYPE_CHECKING:
    from fastapi import FastAPI

_BACKLOG = 512
ANY = ("0.0.0.0", "::")
LOOPBACK = ("127.0.0.1", "::1")


class DeadlineProtocol(H11Protocol):
    """Aborts a connection whose client is too slow to send a head or to read a response.

    uvicorn's `timeout_keep_alive` starts after the first response and ends with the next byte, and
    a connection that uvicorn closes stays open until the client has read everything.
    """

    limits: Limits
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._abort_after(self.limits.head_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_deadline()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        cycle = self.cycle
        super().handle_events()
        if self.cycle is not cycle:  # a head was read
            self._abort_after(self.limits.request_seconds)

    def on_response_complete(self) -> None:
        is_read = not self.transport.get_write_buffer_size()
        self._abort_after(self.limits.head_seconds if is_read else self.limits.answer_seconds)
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP, unless a response has begun: then uvicorn would fail."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.abort()

    def _abort_after(self, seconds: float) -> None:
        self._cancel_deadline()
        self._deadline = self.loop.call_later(seconds, self.transport.abort)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()


def listen(host: str, port: int) -> socket.socket:
    """Open a socket at which visitors may already wait; port 0 takes any free port."""
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
        opened.pop_all()  # keep it open
    return listener


def address_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def address_for_visitors(listener: socket.socket) -> str:
    """Return an address that others can open: of a socket at all addresses, the machine's name."""
    host, port = listener.getsockname()[:2]
    return f"http://{socket.gethostname()}:{port}" if host in ANY else address_of(listener)


def own_address(listener: socket.socket) -> str:
    """Return an address that this machine can open, by number, whatever names are allowed."""
    host, port = listener.getsockname()[:2]
    loopback = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host)
    return address_of(listener) if loopback is None else f"http://{loopback}:{port}"


def is_loopback(listener: socket.socket) -> bool:
    """Return whether only this machine can reach a socket."""
    return ip_address(listener.getsockname()[0]).is_loopback


def make_server(
    app: FastAPI, limits: Limits, *, proxies: Sequence[str] = LOOPBACK
) -> uvicorn.Server:
    """Make a server that logs nothing; the application logs its own requests and errors.

    Requests from `proxies`, which are addresses or networks, come from whom X-Forwarded-For names.
    """
    logging.getLogger("python_multipart").setLevel(logging.CRITICAL)  # warns of damaged forms

    class Protocol(DeadlineProtocol):
        pass

    Protocol.limits = limits
    config = uvicorn.Config(
        app,
        http=Protocol,
        ws="none",
        log_config=None,
        log_level="critical",
        access_log=False,
        server_header=False,
        backlog=_BACKLOG,
        limit_concurrency=limits.connections + 1,  # uvicorn rejects at the limit, not beyond it
        timeout_keep_alive=round(limits.head_seconds),
        timeout_graceful_shutdown=math.ceil(limits.grace_seconds),
        forwarded_allow_ips=list(proxies),
    )
    return uvicorn.Server(config)


@contextmanager
def running(app: FastAPI, limits: Limits) -> Iterator[str]:
    """Run a server in a thread, on any free port, and yield its address; stop it at the end."""
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
