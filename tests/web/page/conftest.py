"""A real browser on a real server with two small trained runs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from itertools import count

import pytest
from playwright import sync_api

from tests.web.page.visit import BFAN, VSRN, Visit, visiting

CHROMIUM = next(
    (
        found
        for name in ("/usr/bin/chromium", "chromium", "chromium-browser", "google-chrome")
        if (found := shutil.which(name))
    ),
    None,
)


@pytest.fixture(scope="package")
def browser() -> Iterator[sync_api.Browser]:
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def options() -> dict[str, object]:
    """How the browser shows the page; tests choose with `parametrize`."""
    return {}


@pytest.fixture
def visit(browser, server, run_names, options) -> Iterator[Visit]:
    with visiting(browser, server, run_names, **options) as visit:
        yield visit


@pytest.fixture
def uneven(browser, proposing_server) -> Iterator[Visit]:
    """VSRN with all splits beside BFAN with the test split, for which VSRN proposes."""
    with visiting(browser, proposing_server, ["vsrn-round-two", "bfan-round-two"]) as visit:
        yield visit


@pytest.fixture(scope="package")
def ask(client, run_names):
    """What the API says itself."""

    def answer(path: str, run: int = BFAN, **parameters: object) -> dict:
        response = client.get(f"/api/runs/{run_names[run]}/{path}", params=parameters)
        assert response.status_code == 200, response.text
        return response.json()

    return answer


@pytest.fixture(scope="package")
def find(client, run_names):
    """What the API answers to a query."""

    def answer(run: int = BFAN, **query: object) -> dict:
        response = client.post(f"/api/runs/{run_names[run]}/search", json=query)
        assert response.status_code == 200, response.text
        return response.json()

    return answer


@pytest.fixture(scope="package")
def caption(ask) -> dict:
    """A caption whose photo BFAN finds among its first twelve."""
    answers = (ask("images", text_number=number) for number in count())
    return next(
        answer["query"] for answer in answers if any(hit["correct"] for hit in answer["hits"])
    )


@pytest.fixture(scope="package")
def known_image(ask) -> int:
    """An image for which BFAN finds a caption among its first twelve."""
    return next(
        number
        for number in count()
        if any(hit["correct"] for hit in ask("texts", image=number)["hits"])
    )


@pytest.fixture
def first_of_test(ask) -> dict[str, dict]:
    """The first photo and text of the test split, which BFAN there has under the number 0."""
    found = {
        kind: ask("entries", VSRN, kind=kind, split="test", limit=1)["entries"][0]
        for kind in ("image", "text")
    }
    assert all(entry["number"] > 0 for entry in found.values())
    return found
