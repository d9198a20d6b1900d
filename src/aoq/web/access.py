"""Who may use the API, and how often: bearer tokens, the session of the page, a rate per visitor.

Programs send a token in the Authorization header. Browsers cannot do that for the pictures of a
page, so the page exchanges its token for a cookie that scripts cannot read, that other sites cannot
have sent, and that ends with the browser. Tokens are compared in constant time and never logged:
what logs show is the name that the token's owner gave to it.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Self

from cachetools import LRUCache
from fastapi import Request, Response
from starlette.exceptions import HTTPException

from aoq.errors import UserError

MIN_TOKEN, MAX_TOKEN = 16, 512  # characters
AUTO, NONE = "auto", "none"
_BURST = 10.0  # seconds of requests that may come at once, as the thumbnails of a page do
_VISITORS = 10_000  # whose rate is remembered
_WANTED = "This server wants a token; "
MISSING = _WANTED + "send it as `Authorization: Bearer TOKEN`, or open the page and type it there."


class Tokens:
    """The tokens that a server accepts, and the names of their holders."""

    def __init__(self, names: Mapping[str, str]) -> None:
        """Accept the keys of `names`, whose values are what logs show."""
        for token in names:
            _require_strong(token)
        self._names = {_digest("header", token): name for token, name in names.items()}
        self._sessions = {_digest("session", token): name for token, name in names.items()}
        # Cookies are shared by all servers of a host name, so each has a name of its own.
        self.cookie = f"aoq-{_digest('cookie', *sorted(names))[:12]}"

    def issue(self, name: str) -> str:
        """Make a token that is accepted too, as long as this server runs."""
        token = make_token()
        self._names[_digest("header", token)] = name
        return token

    @classmethod
    def read(cls, file: Path) -> Self:
        """Read a file with a token in each line, after the name of its holder if it has one."""
        try:
            lines = [line.split() for line in file.read_text().splitlines()]
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not text"
            raise UserError(f"{file} cannot be read as a file of tokens ({reason}).") from None
        names: dict[str, str] = {}
        for number, words in enumerate(lines, 1):
            if not words or words[0].startswith("#"):
                continue
            if len(words) > 2:
                raise UserError(
                    f"{file}, line {number}: expected a token, or a name and a token; the line has "
                    f"{len(words)} words."
                )
            names[words[-1]] = words[0] if len(words) == 2 else f"token {len(names) + 1}"
        if not names:
            raise UserError(f"{file} holds no token; write one into each line.")
        return cls(names)

    def holder(self, request: Request) -> str | None:
        """Return whose token a request carries, as a header or as the page's cookie."""
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return self.named(token.strip())
        cookie = request.cookies.get(self.cookie)
        return None if cookie is None else _look_up(self._sessions, cookie)

    def named(self, token: str) -> str | None:
        """Return whose token this is; None if it is not accepted."""
        return _look_up(self._names, _digest("header", token))

    def set_cookie(self, response: Response, token: str, *, secure: bool) -> None:
        """Let a browser keep a session for a token, until it is closed."""
        response.set_cookie(
            self.cookie,
            _digest("session", token),
            secure=secure,
            httponly=True,
            samesite="strict",
            path="/",
        )


class Rate:
    """A number of requests per second for each visitor, with bursts of ten seconds' worth.

    Of each visitor, it remembers one time: when all requests so far would be done at that rate.
    """

    def __init__(self, per_second: float) -> None:
        self._interval = 1 / per_second
        self._ahead = max(_BURST - self._interval, 0.0)
        self._done: LRUCache[str, float] = LRUCache(_VISITORS)

    def wait(self, visitor: str) -> float:
        """Count a request; return 0, or the seconds after which to come back."""
        now = time.monotonic()
        done = max(self._done.get(visitor, now), now)
        if done - now > self._ahead:
            return done - now - self._ahead
        self._done[visitor] = done + self._interval
        return 0.0


@dataclass(frozen=True)
class Gate:
    """Lets requests pass that carry a token and come at the rate; without either, all pass."""

    tokens: Tokens | None = None
    rate: Rate | None = None

    async def check(self, request: Request) -> None:
        """Pass, or raise status 401 (no token) or 429 (too often)."""
        holder = None if self.tokens is None else self.tokens.holder(request)
        request.state.visitor = holder
        self._require_rate(request, holder)
        if self.tokens is not None and holder is None:
            raise refused(MISSING)

    async def check_rate(self, request: Request) -> None:
        """Pass, or raise status 429: tokens that are tried count as requests."""
        self._require_rate(request, None)

    def _require_rate(self, request: Request, holder: str | None) -> None:
        if self.rate is None:
            return
        address = request.client.host if request.client else ""
        seconds = self.rate.wait(f"address {address}" if holder is None else f"holder {holder}")
        if seconds:
            raise HTTPException(
                429,
                "These are more requests per second than one visitor may send; try again later.",
                headers={"Retry-After": str(math.ceil(seconds))},
            )


def refused(sentence: str) -> HTTPException:
    return HTTPException(401, sentence, headers={"WWW-Authenticate": "Bearer"})


def make_token() -> str:
    return secrets.token_urlsafe(24)


def choose_tokens(
    token: str | None, file: Path | None, *, private: bool
) -> tuple[Tokens | None, str | None]:
    """Return the tokens to accept, and the one that was made and has to be shown, if any.

    A server that only this machine can reach needs no token; another one makes its own unless it is
    given some, or told to do without.
    """
    if file is not None:
        if token is not None:
            raise UserError("--token and --token-file exclude each other; drop one of them.")
        return Tokens.read(file), None
    if token == NONE or (token is None and private):
        return None, None
    if token in (None, AUTO):
        made = make_token()
        return Tokens({made: "token"}), made
    return Tokens({token: "token"}), None


def _require_strong(token: str) -> None:
    """Reject a token that could be guessed, or that does not fit into a header."""
    if not MIN_TOKEN <= len(token) <= MAX_TOKEN or not token.isascii() or not token.isprintable():
        raise UserError(
            f"a token has {MIN_TOKEN} to {MAX_TOKEN} ASCII characters and no spaces; this one does "
            "not: `--token auto` makes one, and so does `openssl rand -base64 24`."
        )
    if " " in token:
        raise UserError("a token has no spaces; `--token auto` makes one.")


def _digest(purpose: str, *tokens: str) -> str:
    """Hash tokens, so that a session or a name of a cookie tells nothing of them."""
    made = blake2b("\n".join(tokens).encode(), person=purpose.encode(), digest_size=32)
    return made.hexdigest()


def _look_up(known: Mapping[str, str], given: str) -> str | None:
    """Compare with all of them, in a time that tells nothing."""
    found = None
    for digest, name in known.items():
        if secrets.compare_digest(digest.encode(), given.encode(errors="replace")):
            found = name
    return found
