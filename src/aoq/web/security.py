"""What protects visitors: headers for browsers, and a check of who sends a request to the API.

The headers let a page load files of this server only. The check stops pages of other sites that use
a visitor's browser to reach a server on the visitor's machine: a foreign name that was pointed at
this address (DNS rebinding) is rejected, and so is a request that another site's page sends.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import SplitResult, urlsplit

from fastapi import Request
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


class SecurityHeaders:
    """Adds the security headers to every response, and lets browsers reuse none unasked."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(SECURITY_HEADERS)
                is_api = scope["path"].startswith("/api")
                headers.setdefault("Cache-Control", "no-store" if is_api else "no-cache")
            await send(message)

        await self.app(scope, receive, send_with_headers)


@dataclass(frozen=True)
class KnownVisitors:
    """Rejects requests for names that are not this server's, and those of other sites' pages.

    Numeric addresses are always accepted: no foreign name can lead to them. A proxy may use another
    name for the server than visitors do, so pages of the accepted hosts may send requests too,
    except those of loopback names, which mean a different server on every machine.
    """

    hosts: frozenset[str]
    "Names that the server answers to, in lower case."

    async def check(self, request: Request) -> None:
        """Pass, or raise status 400 (wrong name) or 403 (foreign page)."""
        hosts = request.headers.getlist("host")
        host = _split(f"//{hosts[0]}") if len(hosts) == 1 else None
        if host is None or host.hostname is None or "@" in host.netloc:
            raise HTTPException(400, "The request needs exactly one Host header.")
        if host.hostname not in self.hosts and not _is_address(host.hostname):
            raise HTTPException(
                400,
                "This server does not answer to that name; use the address it printed, or start it "
                "with --allow-host and the name.",
            )
        if self._is_foreign(request, host):
            raise HTTPException(403, "Pages of other sites cannot use this server.")

    def _is_foreign(self, request: Request, host: SplitResult) -> bool:
        """Return whether another site's page sends this request; links to the API are allowed."""
        headers = request.headers
        if request.method in _SAFE_METHODS and headers.get("sec-fetch-dest") == "document":
            return False
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return True
        if (origin := headers.get("origin")) is None:
            return False
        page = _split(origin)
        if page is None:
            return True
        is_same = (page.hostname, _port(page)) == (host.hostname, _port(host))
        return not is_same and page.hostname not in self.hosts - LOOPBACK_NAMES


def _split(address: str) -> SplitResult | None:
    """Parse an address; None if it is malformed."""
    try:
        split = urlsplit(address.lower())
        split.port  # noqa: B018 - a ValueError unless it is a port
    except ValueError:
        return None
    return split


def _port(place: SplitResult) -> int | None:
    """Return the port, or None for a default one: the scheme may be that of a proxy."""
    return None if place.port in (80, 443) else place.port


def _is_address(name: str) -> bool:
    """Return whether a host name is a numeric address.

    >>> _is_address("192.168.0.7"), _is_address("::1"), _is_address("127.0.0.1.example")
    (True, True, False)
    """
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
