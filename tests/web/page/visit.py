"""A page in a browser, and what stands on it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlencode

from playwright import sync_api
from playwright.sync_api import expect

VSRN, BFAN = 0, 1  # places in the list of runs
SEARCHES = re.compile(r"/search$|/(images|texts)\?")  # requests


@dataclass
class Visit:
    """A page, and everything that it asked for or complained about."""

    page: sync_api.Page
    server: str
    runs: Sequence[str]
    complaints: list[str] = field(default_factory=list)
    expected: set[int] = field(default_factory=set)
    "Statuses that a test provokes."

    def open(self, view: str, run: int = BFAN, **parameters: object) -> sync_api.Page:
        query = urlencode({"run": self.runs[run], **parameters})
        self.page.goto("about:blank")
        self.page.goto(f"{self.server}/#/{view}?{query}")
        return self.settled()

    def settled(self) -> sync_api.Page:
        expect(self.page.locator("h1")).to_be_visible()
        expect(self.page.locator("[aria-busy]")).to_have_count(0)
        return self.page

    def listen(self) -> None:
        page = self.page
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", lambda message: self._heard(message.type, message.text))
        page.on("requestfailed", lambda request: self._failed(request))
        page.on("request", lambda request: self._asked(request.url))

    def _heard(self, kind: str, text: str) -> None:
        if kind in ("error", "warning") and not any(
            f"of {code} " in text for code in self.expected
        ):
            self.complaints.append(text)

    def _failed(self, request: sync_api.Request) -> None:
        if "ERR_ABORTED" not in (request.failure or ""):  # a picture of a view that was left
            self.complaints.append(f"{request.url}: {request.failure}")

    def _asked(self, url: str) -> None:
        if not url.startswith((self.server, "about:")):
            self.complaints.append(f"asked another server: {url}")


@contextmanager
def visiting(
    browser: sync_api.Browser, server: str, runs: Sequence[str], **options: object
) -> Iterator[Visit]:
    """A visit that has to end without an error on the console or a request to elsewhere."""
    context = browser.new_context(**{"viewport": {"width": 1280, "height": 860}} | options)
    context.set_default_timeout(10_000)
    visit = Visit(context.new_page(), server, runs)
    visit.listen()
    yield visit
    context.close()
    assert visit.complaints == []


def said(sentence: str) -> str:
    """As the page shows it: commands between backticks are set as such."""
    return sentence.replace("`", "")


def marks_of(page: sync_api.Page) -> list[str]:
    """What stands beside each hit: how likely it is right, or its score."""
    texts = page.locator(".score .number").all_inner_texts()
    return [re.sub(r"^(score|likely right:)\s*", "", text).strip() for text in texts]


def shown_marks(hits: list[dict]) -> list[str]:
    """As the page writes them."""
    return [_mark(hit.get("probability"), hit["score"]) for hit in hits]


def _mark(probability: float | None, score: float) -> str:
    if probability is None:
        return f"{score:.3f}"
    if 0 < probability < 0.01:
        return "< 1 %"
    return f"{min(99, math.floor(100 * probability + 0.5))} %"


def change_status(page: sync_api.Page, change: Callable[[dict], None]) -> None:
    """Let the server say something else of its runs."""

    def answer(route: sync_api.Route) -> None:
        status = route.fetch().json()
        change(status)
        route.fulfill(json=status)

    page.route("**/api/status", answer)
