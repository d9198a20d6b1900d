"""What every request passes before it reaches a route, and every answer on its way back.

Browsers are told to trust nothing but this server's own files. A page of somebody else cannot use
a visitor's browser to reach a server on the same machine: a name that was pointed at it (DNS
rebinding) is not a name it answers to, and what changes or costs something must come from its own
pages, or from an address that the visitor went to. Nothing lasts longer than it may, and no error
leaves as a traceback.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Mapping
from ipaddress import ip_address
from urllib.parse import SplitResult, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aoq.web.refusals import RefusedError, defect

SECURITY_HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": "default-src 'self'; object-src 'none'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
}
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
_HOST = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[^:/@\s]+)(?::[0-9]{1,5})?", re.IGNORECASE)
_HARMLESS = frozenset({"GET", "HEAD", "OPTIONS"})


class WithSecurityHeaders:
    """Adds them to every answer, errors too; files that a browser kept are asked for again."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(SECURITY_HEADERS)
                is_answer = scope["path"].startswith("/api")
                headers.setdefault("Cache-Control", "no-store" if is_answer else "no-cache")
            await send(message)

        await self.app(scope, receive, send_with_headers)


class Bounded:
    """Ends what takes too long, a visitor that reads slowly too, and hides what went wrong."""

    def __init__(self, app: ASGIApp, *, seconds: float) -> None:
        self.app = app
        self.seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # the life of the server itself
            await self.app(scope, receive, send)
            return
        has_begun = False

        async def send_and_note(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            async with asyncio.timeout(self.seconds):
                await self.app(scope, receive, send_and_note)
        except TimeoutError:
            refusal = RefusedError(503, "This took too long and was given up.", close=True)
        except Exception as error:
            refusal = defect(error)
        else:
            return
        if has_begun:  # too late for a sentence: the server ends the connection
            raise ConnectionAbortedError("an answer was given up")
        await refusal.response()(scope, receive, send)


class KnownVisitors:
    """Refuses names that the server is not called by, and other sites' pages that make it work.

    `hosts` are the names it answers to. An address in numbers is always taken: nobody else's name
    can lead to it. A proxy may call the server by another name than visitors do, so pages of these
    hosts may send something too, unless that name means another server on each machine.
    """

    def __init__(self, app: ASGIApp, *, hosts: Collection[str]) -> None:
        self.app = app
        self.hosts = frozenset(host.lower() for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            refusal = self._wrong_name(headers) or self._foreign_page(scope, headers)
            if refusal is not None:
                await refusal.response()(scope, receive, send)
                return
        await self.app(scope, receive, send)

    def _wrong_name(self, headers: Headers) -> RefusedError | None:
        names = headers.getlist("host")
        found = _HOST.fullmatch(names[0]) if len(names) == 1 else None
        if found is None:
            return RefusedError(400, "The request has no Host header, or several.")
        if found["name"].lower() not in self.hosts and not _is_address(found["name"]):
            return RefusedError(
                400,
                "This server is not known by that name; use the address it printed, or start it "
                "with --allow-host and the name.",
            )
        return None

    def _foreign_page(self, scope: Scope, headers: Headers) -> RefusedError | None:
        """Where a page of another origin sends something, or shows what has to be computed."""
        is_visit = headers.get("sec-fetch-dest") == "document"
        if scope["method"] in _HARMLESS and (is_visit or not scope["path"].startswith("/api/")):
            return None
        is_foreign = headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none")
        if (origin := headers.get("origin")) is not None:
            is_foreign |= not self._is_own(origin, host=headers["host"])
        if is_foreign:
            return RefusedError(403, "Pages of other sites cannot use this server.")
        return None

    def _is_own(self, origin: str, *, host: str) -> bool:
        try:
            page, asked = urlsplit(origin.lower()), urlsplit(f"//{host.lower()}")
            is_same = (page.hostname, _port(page)) == (asked.hostname, _port(asked))
        except ValueError:
            return False
        return is_same or page.hostname in self.hosts - LOOPBACK_NAMES


def _port(place: SplitResult) -> int | None:
    """None where it is the usual one; the scheme may be a proxy's."""
    return None if place.port in (80, 443) else place.port


def _is_address(name: str) -> bool:
    """
    >>> _is_address("192.168.0.7"), _is_address("[::1]"), _is_address("127.0.0.1.example")
    (True, True, False)
    """
    try:
        ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True
