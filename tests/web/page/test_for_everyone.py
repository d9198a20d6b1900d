"""With the keyboard alone, by day and by night, and on a phone."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.web.page.visit import BFAN, VSRN

# How far things have moved while the page was made, as browsers count it.
SHIFTS = """
    window.shifted = 0;
    new PerformanceObserver((list) => list.getEntries().forEach((one) => (shifted += one.value)))
        .observe({ type: "layout-shift", buffered: true });
"""

# Of every visible piece of text: its contrast with the nearest ground below it, by WCAG 2.
CONTRASTS = """() => {
    const channels = (colour) => colour.match(/[\\d.]+/g).map(Number);
    const light = (colour) => {
        const linear = channels(colour).slice(0, 3).map((value) => value / 255)
            .map((value) => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
    };
    const ground = (element) => {
        for (let at = element; at; at = at.parentElement) {
            const colour = getComputedStyle(at).backgroundColor;
            if (channels(colour)[3] !== 0) return colour;
        }
        return getComputedStyle(document.body).backgroundColor;
    };
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    const found = [];
    while (texts.nextNode()) {
        const element = texts.currentNode.parentElement;
        const unseen = !element.checkVisibility() || element.closest("noscript, option, title");
        if (unseen || !texts.currentNode.data.trim()) continue;
        const style = getComputedStyle(element);
        const ink = element.namespaceURI.endsWith("svg") ? style.fill : style.color;
        const [more, less] = [light(ink), light(ground(element))].sort((a, b) => b - a);
        found.push([(more + 0.05) / (less + 0.05), texts.currentNode.data.trim().slice(0, 40)]);
    }
    return found;
}"""


def every_view(image: int, text: int) -> list[tuple[str, int, dict[str, object]]]:
    return [
        ("photos", BFAN, {}),
        ("photos", BFAN, {"text_number": text}),
        ("sentences", BFAN, {}),
        ("sentences", BFAN, {"image": image}),
        ("compare", VSRN, {}),
        ("compare", VSRN, {"text_number": text}),
        ("compare", VSRN, {"image": image}),
        ("photos", BFAN, {"text": "a bird", "without": "a bear", "like": image}),
        ("attention", BFAN, {}),
        ("photo", BFAN, {"image": image}),
        ("photo", VSRN, {"image": image}),
        ("negatives", BFAN, {"kind": "image", "number": 0}),
        ("negatives", BFAN, {"kind": "text", "number": 0}),
        ("run", BFAN, {}),
    ]


def test_the_keyboard_alone_is_enough(visit, caption):
    page = visit.open("photos", text_number=caption["number"])
    press = page.keyboard.press
    press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    press("Enter")
    press("Tab")
    expect(page.get_by_label("Sentence")).to_be_focused()
    for stop in ("#refine-toggle", "form .strong", "#select-all", ".card a"):
        press("Tab")
        expect(page.locator(stop).first).to_be_focused()
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    press("ArrowRight")
    expect(page.locator(".card a").nth(1)).to_be_focused()
    press("ArrowDown")
    expect(page.locator(".card a").nth(7)).to_be_focused()  # six in a row
    press("Enter")
    page.locator(".word").first.focus()
    expect(page.locator(".readout")).to_contain_text("looks most at the")
    press("ArrowRight")
    expect(page.locator(".word").nth(1)).to_be_focused()
    press("Escape")
    expect(page.locator(".readout")).to_contain_text("Point at a word")
    page.locator(".region").first.focus()
    press("ArrowDown")
    expect(page.locator(".region").nth(6)).to_be_focused()
    expect(page.locator("#announcer")).to_contain_text("The region at the")
    press("Home")
    expect(page.locator(".region").first).to_be_focused()


def test_escape_closes_the_picker(visit):
    page = visit.open("sentences")
    page.locator("#pick").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.locator("#pick")).to_be_focused()


@pytest.mark.parametrize("place", range(len(every_view(0, 0))))
def test_every_view_stands_still_and_can_be_read_by_day_by_night_and_on_a_phone(
    visit, known_image, caption, place
):
    view, run, parameters = every_view(known_image, caption["number"])[place]
    visit.page.add_init_script(SHIFTS)
    page = visit.open(view, run, **parameters)
    assert page.evaluate("window.shifted") < 0.1  # what is held to be good
    for scheme, is_dark in (("light", False), ("dark", True)):
        page.emulate_media(color_scheme=scheme)
        contrasts = page.evaluate(CONTRASTS)
        assert len(contrasts) > 10
        assert [pair for pair in contrasts if pair[0] < 4.5] == [], scheme
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, re.findall(r"\d+", ground))) < 3 * 60) == is_dark
    page.set_viewport_size({"width": 360, "height": 740})
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
