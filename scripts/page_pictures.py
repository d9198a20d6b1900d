"""The pictures of the page in docs/images, from runs on the embedded data set.

    .venv/bin/python scripts/page_pictures.py runs/bfan/round-one runs/bfan/round-two

Serves the runs, each with its index, and photographs the views: the first two are compared, and
the last one, which has to have attention, is looked into. Runs on other data are refused, because
their pictures may not be ours to publish. Needs a Chromium on the PATH.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from urllib.parse import urlencode

from playwright.sync_api import Browser, Page, expect, sync_playwright

from aoq.retrieval.matcher import Matcher
from aoq.web.app import make_app
from aoq.web.limits import Limits
from aoq.web.server import running

PICTURES = Path(__file__).resolve().parents[1] / "docs" / "images"


def require_scenes(matcher: Matcher) -> None:
    data = matcher.index.manifest.data
    name = json.loads((Path(data) / "dataset.json").read_text())["name"] if data else "no data set"
    if not name.startswith("scenes"):
        sys.exit(f"{matcher.run} is of {name}; the pictures come from the embedded data set alone")


def found_by_all(matchers: list[Matcher]) -> int:
    """The first test caption whose picture is among the first twelve of every run."""
    return next(
        text.number
        for text in matchers[0].index.texts
        if text.split == "test"
        and all(
            any(hit.correct for hit in matcher.images_for(text.number, top=12).hits)
            for matcher in matchers
        )
    )


def open_view(page: Page, address: str, view: str, parameters: dict[str, object]) -> None:
    page.goto("about:blank")
    page.goto(f"{address}/#/{view}?{urlencode(parameters)}")
    expect(page.locator("h1")).to_be_visible()
    expect(page.locator("[aria-busy]")).to_have_count(0)
    page.wait_for_load_state("networkidle")


def photograph(browser: Browser, address: str, *, text: int, image: int) -> None:
    page = browser.new_page(viewport={"width": 1200, "height": 800})
    page.goto(address)
    runs = page.evaluate("fetch('/api/status').then((answer) => answer.json())")["runs"]
    first, last = runs[0]["name"], runs[-1]["name"]
    open_view(page, address, "photos", {"run": last, "text_number": text})
    page.screenshot(path=PICTURES / "page-photos.png")
    open_view(page, address, "compare", {"run": first, "other": last, "text_number": text})
    page.screenshot(path=PICTURES / "page-compare.png")
    open_view(page, address, "photo", {"run": last, "image": image, "text_number": text})
    words = page.locator(".word").all_inner_texts()
    page.locator(".word").nth(words.index(max(words, key=len))).hover()
    page.wait_for_timeout(200)  # the regions fade in
    page.screenshot(path=PICTURES / "page-attention.png")


def main() -> None:
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("no Chromium on the PATH: the pictures are left as they are")
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    matchers = [Matcher.load(Path(argument)) for argument in sys.argv[1:]]
    for matcher in matchers:
        require_scenes(matcher)
    text = found_by_all(matchers)
    (image,) = matchers[0].index.texts[text].images
    limits = Limits()
    with (
        running(make_app(matchers, limits=limits), limits) as address,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        photograph(browser, address, text=text, image=image)
        browser.close()


if __name__ == "__main__":
    main()
