"""Every way to ask for photos, and what is made of those that were found."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator

import pytest
from playwright import sync_api
from playwright.sync_api import expect

from aoq.web.access import Gate, Tokens
from aoq.web.app import make_app
from aoq.web.limits import Limits
from aoq.web.server import running
from tests.web.page.visit import BFAN, VSRN, Visit, visiting

TOKEN = "correct-horse-battery"


def names_of(page: sync_api.Page) -> list[str]:
    return page.locator("section .grid .card a").evaluate_all("all => all.map((one) => one.title)")


def ids(answer: dict) -> list[str]:
    return [hit["id"] for hit in answer["hits"]]


def refined(page: sync_api.Page) -> sync_api.Page:
    page.get_by_role("button", name="Refine").click()
    expect(page.get_by_label("And also")).to_be_visible()
    return page


def found(page: sync_api.Page) -> sync_api.Page:
    """Ask what the form says, and wait for the answer."""
    page.get_by_role("button", name="Find").click()
    expect(page.locator(".summary")).not_to_have_text("Searching…", timeout=15_000)
    expect(page.locator("[aria-busy]")).to_have_count(0)
    return page


def test_words_after_a_minus_are_excluded_until_their_chip_is_removed(visit, find):
    page = visit.open("photos")
    page.get_by_label("Sentence").fill('a red bird -bear -"blue tree"')
    found(page)
    expect(page.get_by_label("Sentence")).to_have_value("a red bird")
    assert names_of(page) == ids(find(texts=["a red bird"], without=["bear", "blue tree"]))
    page.get_by_role("link", name="Remove: without bear").click()
    expect(page.locator(".chip")).to_have_count(1)
    visit.settled()
    assert names_of(page) == ids(find(texts=["a red bird"], without=["blue tree"]))


def test_several_sentences_are_asked_at_once(visit, find):
    page = refined(visit.open("photos", text="a red bird"))
    page.get_by_label("And also").fill("a tree; at night")
    found(page)
    expect(page.locator(".chip")).to_have_text(["and a tree", "and at night"])
    assert names_of(page) == ids(find(texts=["a red bird", "a tree", "at night"]))


def test_photos_like_a_picked_one_are_found_with_and_without_words(visit, find):
    page = refined(visit.open("photos"))
    page.get_by_role("button", name="Pick").click()
    page.get_by_role("dialog").locator(".choice").first.click()
    expect(page.locator(".card")).to_have_count(12)
    number = int(re.search(r"like=(\d+)", page.url).group(1))
    visit.settled()
    assert names_of(page) == ids(find(like=[number]))
    expect(page.locator(".chip img")).to_be_visible()
    page.get_by_label("Sentence").fill("a bird")
    found(page)
    assert names_of(page) == ids(find(texts=["a bird"], like=[number]))


def test_photos_like_an_uploaded_one_are_found(visit, served_runs, ask):
    page = refined(visit.open("photos"))
    entry = ask("entries", limit=1)["entries"][0]
    picture = served_runs.data / "source" / entry["id"]
    with page.expect_request(re.compile("/search$")) as request:
        page.locator("#like-picture").set_input_files(picture)
    assert len(request.value.post_data_json["like"][0]) > 30  # a name that nobody can guess
    expect(page.locator(".card")).to_have_count(12)
    expect(page.locator(".chip canvas")).to_be_visible()
    assert names_of(page)[0] == entry["id"]


def test_a_filter_and_a_split_narrow_the_search_and_a_wrong_one_is_explained(visit, find):
    page = refined(visit.open("photos", text="a bird"))
    page.get_by_label("Split").select_option("dev")
    page.get_by_label("Filter").fill("width > 10 or name like z*")
    found(page)
    where = "split = dev and (width > 10 or name like z*)"
    assert names_of(page) == ids(find(texts=["a bird"], where=where))
    visit.expected.add(422)
    page.get_by_label("Filter").fill("colour = red")
    page.get_by_role("button", name="Find").click()
    expect(page.get_by_role("alert")).to_contain_text("no column")
    expect(page.get_by_label("Filter")).to_have_value("colour = red")


@pytest.mark.parametrize(
    ("choice", "words", "said"), [("only", "only", "by captions"), ("off", "off", None)]
)
def test_captions_are_searched_or_not(visit, find, choice, words, said):
    page = refined(visit.open("photos", text="a bird"))
    expect(page.locator(".summary")).to_contain_text("by looks and captions")
    page.locator("select[name=words]").select_option(choice)
    found(page)
    assert names_of(page) == ids(find(texts=["a bird"], words=words))
    if said:
        expect(page.locator(".summary")).to_contain_text(said)
    else:
        expect(page.locator(".summary")).not_to_contain_text("captions")


def test_near_duplicates_are_shown_as_one(visit, find):
    page = refined(visit.open("photos", text="a bird"))
    page.get_by_label("Near-duplicates as one").check()
    found(page)
    answer = find(texts=["a bird"], collapse=True)
    assert names_of(page) == ids(answer)
    copies = [f"+{len(hit['duplicates'])}" for hit in answer["hits"] if hit["duplicates"]]
    expect(page.locator(".copies")).to_have_text(copies)


def test_a_query_goes_along_to_another_run(visit):
    page = visit.open("photos", BFAN, text="a bird", without="a bear", like=3, split="dev")
    page.get_by_label("Run").select_option(visit.runs[VSRN])
    expect(page).to_have_url(re.compile(visit.runs[VSRN]))
    visit.settled()
    assert all(part in page.url for part in ("like=3", "without=a+bear", "split=dev"))
    expect(page.locator(".card")).to_have_count(12)


def test_photos_are_selected_by_keyboard_over_several_searches_and_exported(visit, find):
    page = visit.open("photos", text="a bird")
    page.locator(".card a").nth(1).focus()
    page.keyboard.press("x")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("x")
    page.get_by_label("Sentence").fill("a red bear")
    found(page)
    boxes = page.get_by_role("checkbox", name=re.compile("^Select"))
    wanted = ids(find(texts=["a bird"]))[1:3]
    first = next(at for at, name in enumerate(names_of(page)) if name not in wanted)
    boxes.nth(first).check()
    wanted.append(names_of(page)[first])
    bar = page.get_by_role("region", name="Selected photos")
    expect(bar).to_contain_text("3 photos")
    with page.expect_download() as download:
        bar.get_by_role("button", name="CSV").click()
    rows = list(csv.DictReader(download.value.path().read_text().splitlines()))
    assert [row["id"] for row in rows] == wanted
    assert [row["query"] for row in rows] == ["a bird", "a bird", "a red bear"]
    with page.expect_download() as download:
        bar.get_by_role("button", name="JSON").click()
    saved = json.loads(download.value.path().read_text())
    assert [photo["id"] for photo in saved] == wanted
    assert saved[0]["score"] == find(texts=["a bird"])["hits"][1]["score"]
    bar.get_by_role("button", name="Clear").click()
    expect(bar).to_be_hidden()
    expect(page.locator(".choose :checked")).to_have_count(0)
    page.get_by_role("button", name="Select all").click()
    expect(bar).to_contain_text("12 photos")


def test_no_cell_of_a_table_is_a_formula(visit):
    page = visit.open("photos")
    made = page.evaluate(
        """() => import("/static/selection.js").then(({ csv }) =>
            csv([{ id: '=cmd()', query: 'a, "b"', score: -0.5, text: "@x" }]))"""
    )
    cells = next(csv.reader(made.splitlines()[1:]))
    assert cells == ["'=cmd()", 'a, "b"', "-0.5", "", "'@x", "", ""]


def test_arrow_keys_go_through_the_photos_that_were_found(visit):
    page = visit.open("photos", text="a bird")
    names = names_of(page)
    page.locator(".card a").nth(1).click()
    heading = page.locator("h1")
    expect(heading).to_have_text(names[1])
    page.keyboard.press("ArrowRight")
    expect(heading).to_have_text(names[2])
    page.keyboard.press("ArrowLeft")
    page.get_by_role("link", name="Previous photo").click()
    expect(heading).to_have_text(names[0])
    expect(page.get_by_role("link", name="Previous photo")).to_have_count(0)
    visit.settled()
    page.keyboard.press("Escape")
    expect(heading).to_have_text("Find photos")
    expect(page.locator(".card a")).to_have_count(12)


def test_more_like_a_photo_is_one_click_away(visit, find):
    page = visit.open("photo", image=3)
    expect(page.locator(".similar .card")).to_have_count(6)
    page.get_by_role("link", name="More like this").click()
    expect(page.locator("section .grid .card")).to_have_count(12)
    visit.settled()
    assert names_of(page) == ids(find(like=[3]))


@pytest.fixture(scope="module")
def guarded(matchers) -> Iterator[str]:
    """The address of a server that wants a token."""
    limits = Limits()
    app = make_app(matchers, limits=limits, gate=Gate(Tokens({TOKEN: "anna"})))
    with running(app, limits) as address:
        yield address


@pytest.fixture
def stranger(browser, guarded, run_names) -> Iterator[Visit]:
    with visiting(browser, guarded, run_names) as visit:
        yield visit


def test_the_page_asks_for_the_token_and_then_shows_photos(stranger):
    stranger.expected.add(401)
    page = stranger.open("photos", text="a bird")
    expect(page.get_by_role("heading")).to_have_text("This server wants a token")
    expect(page.get_by_label("Token")).to_be_focused()
    page.keyboard.type("a-token-that-is-wrong")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("not accepted")
    page.get_by_label("Token").fill(TOKEN)
    page.keyboard.press("Enter")
    expect(page.locator(".card img").first).to_be_visible()
    assert page.locator(".card img").first.evaluate("one => one.decode().then(() => true)")
    assert TOKEN not in page.evaluate("document.cookie")


def test_a_token_in_the_address_is_taken_once_and_forgotten(stranger):
    page = stranger.page
    page.goto(f"{stranger.server}/#token={TOKEN}")
    expect(page.get_by_role("heading", name="Find photos")).to_be_visible()
    assert TOKEN not in page.url
    assert TOKEN not in page.evaluate("JSON.stringify(history.state) + document.cookie")
