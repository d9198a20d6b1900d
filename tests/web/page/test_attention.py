"""Which regions a word looks at, and which words a region does."""

from __future__ import annotations

import re

import pytest
from playwright import sync_api
from playwright.sync_api import expect

from tests.web.page.visit import VSRN, said

PHONE = {"viewport": {"width": 360, "height": 740}, "is_mobile": True, "has_touch": True}


def strengths(page: sync_api.Page, selector: str) -> list[float]:
    read = "all => all.map(one => Number(one.style.getPropertyValue('--strength')))"
    return page.locator(selector).evaluate_all(read)


def test_attention_is_shown_from_words_and_from_regions(visit, caption, ask):
    image = ask("images", text_number=caption["number"])["hits"][0]["number"]
    page = visit.open("photo", image=image, text_number=caption["number"])
    found = ask("attention", image=image, text_number=caption["number"])
    page.locator(".word").nth(1).hover()
    weights = found["by_word"][1]
    wanted = [0.75 * weight / max(weights) for weight in weights]
    assert strengths(page, ".region") == pytest.approx(wanted, abs=1e-3)
    expect(page.locator(".readout")).to_contain_text(f"“{found['words'][1]['word']}” looks most")
    page.locator(".region").nth(7).hover()
    weights = found["by_region"][7]
    wanted = [weight / max(weights) for weight in weights]
    assert strengths(page, ".word") == pytest.approx(wanted, abs=1e-3)
    assert set(strengths(page, ".region")) == {0}
    page.locator("h1").hover()
    expect(page.locator(".readout")).to_contain_text("Point at a word")


@pytest.mark.parametrize("options", [PHONE], ids=["phone"])
def test_a_tap_shows_attention_and_it_stays(visit, known_image):
    page = visit.open("photo", image=known_image)
    page.locator(".word").first.tap()
    expect(page.locator(".readout")).to_contain_text("looks most at the")
    assert max(strengths(page, ".region")) == 0.75
    assert page.evaluate("document.documentElement.scrollWidth") == 360


def test_attention_is_of_the_sentence_in_the_address(visit):
    """A number that stands for another sentence, or for none, does not replace it."""
    visit.expected.add(404)
    for number in (0, 999_999):
        page = visit.open("photo", image=0, text_number=number, text="a red bird")
        expect(page.locator(".word")).to_have_text(["a", "red", "bird"])


def test_attention_of_another_run_is_of_the_same_photo_and_sentence(uneven, first_of_test):
    image, text = first_of_test["image"], first_of_test["text"]
    page = uneven.open("photo", VSRN, image=image["number"], text_number=text["number"])
    link = page.get_by_role("link", name=re.compile("^Look with"))
    expect(link).to_have_attribute("href", re.compile(r"[?&]image=0&.*text_number=0\b"))
    link.click()
    expect(page.locator(".region").first).to_be_attached()
    expect(page.locator(".stage img")).to_have_attribute("alt", image["text"])


def test_a_model_without_attention_says_why(visit, client, known_image):
    page = visit.open("photo", VSRN, image=known_image)
    reason = client.get("/api/status").json()["runs"][VSRN]["attention_reason"]
    expect(page.locator(".remark")).to_contain_text(said(reason))
    page.get_by_role("link", name=re.compile("^Look with")).click()
    expect(page.locator(".region").first).to_be_attached()
