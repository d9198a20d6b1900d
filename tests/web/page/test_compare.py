"""Two runs beside each other, on the same photo or sentence."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from aoq.retrieval.build import Contents, build_index
from aoq.retrieval.matcher import Matcher
from aoq.web.app import make_app
from aoq.web.limits import Limits
from aoq.web.server import running
from tests.web.conftest import picture_bytes
from tests.web.page.visit import BFAN, VSRN, Visit, change_status, visiting


def test_two_runs_are_compared_with_ticks_and_ranks(visit, caption, ask):
    page = visit.open("compare", VSRN, other=visit.runs[BFAN], text_number=caption["number"])
    answers = [ask("images", run, text_number=caption["number"])["hits"] for run in (VSRN, BFAN)]
    ids = [{hit["id"] for hit in hits} for hits in answers]
    for at, hits in enumerate(answers):
        column = page.locator(".column").nth(at)
        expect(column.locator(".card a")).to_have_count(12)
        expect(column.locator(".tick")).to_have_count(sum(hit["correct"] for hit in hits))
        expect(column.locator(".only")).to_have_count(len(ids[at] - ids[1 - at]))
    rank = next(place for place, hit in enumerate(answers[1], 1) if hit["correct"])
    expect(page.locator(".column-top").nth(1)).to_contain_text(f"first correct at rank {rank}")
    expect(page.locator(".verdict")).to_contain_text(f"{len(ids[0] & ids[1])} of the first 12")
    expect(page.get_by_label("Sentence")).to_have_value(caption["text"])
    page.get_by_role("button", name="Swap").click()
    expect(page.locator(".column-top").first).to_contain_text(f"first correct at rank {rank}")


def test_a_correct_answer_beyond_the_shown_ones_is_named_by_its_rank(visit, ask):
    def rank_of(number: int) -> int:
        hits = ask("images", VSRN, text_number=number, top=100)["hits"]
        return next((place for place, hit in enumerate(hits, 1) if hit["correct"]), 0)

    number, rank = next((number, rank) for number in range(100) if (rank := rank_of(number)) > 12)
    page = visit.open("compare", VSRN, other=visit.runs[BFAN], text_number=number)
    expect(page.locator(".column-top").first).to_contain_text(f"first correct at rank {rank}")
    expect(page.locator(".column").first.locator(".card a")).to_have_count(12)
    expect(page.locator(".column").first.locator(".tick")).to_have_count(0)


def test_entries_that_share_an_id_are_distinguished(visit, caption, ask):
    def rename(route) -> None:
        answer = route.fetch().json()
        for hit in answer["hits"]:
            hit["id"] = "photo"
        route.fulfill(json=answer)

    visit.page.route("**/images?*", rename)
    page = visit.open("compare", VSRN, other=visit.runs[BFAN], text_number=caption["number"])
    left, right = (
        {hit["number"] for hit in ask("images", run, text_number=caption["number"])["hits"]}
        for run in (VSRN, BFAN)
    )
    assert left != right
    expect(page.locator(".column").first.locator(".only")).to_have_count(len(left - right))
    expect(page.locator(".verdict")).to_contain_text(f"{len(left & right)} of the first 12")


def test_a_free_sentence_is_compared_without_ticks(visit):
    page = visit.open("compare", VSRN)
    page.get_by_label("Sentence").fill("a red bird")
    page.keyboard.press("Enter")
    expect(page.locator(".column .card a")).to_have_count(24)
    expect(page.locator(".tick")).to_have_count(0)


def test_a_picked_photo_is_compared(visit):
    page = visit.open("compare", VSRN)
    page.get_by_role("button", name="Pick a photo").click()
    page.locator(".choice").first.click()
    expect(page.locator(".column .rows li a")).to_have_count(24)
    expect(page.locator(".verdict img")).to_be_visible()


def test_runs_with_different_indexes_are_compared_on_the_same_entry(uneven, ask, proposing):
    """Its number differs, its id does not: both columns know which answer is correct."""
    client, bfan = proposing
    text = ask("entries", VSRN, kind="text", split="test", limit=1)["entries"][0]
    page = uneven.open("compare", VSRN, other=bfan, text_number=text["number"])
    ranked = {"top": 100}  # of which twelve are shown
    there = client.get(f"/api/runs/{bfan}/images", params={"text_number": 0} | ranked).json()
    assert there["query"]["text"] == text["text"]
    for at, hits in enumerate(
        (ask("images", VSRN, text_number=text["number"])["hits"], there["hits"])
    ):
        column = page.locator(".column").nth(at)
        expect(column.locator(".tick")).to_have_count(sum(hit["correct"] for hit in hits[:12]))
        expect(column.locator(".column-top")).to_contain_text("correct")
    image = ask("entries", VSRN, kind="image", split="test", limit=1)["entries"][0]
    page = uneven.open("compare", VSRN, other=bfan, image=image["number"])
    found = client.get(f"/api/runs/{bfan}/texts", params={"image": 0} | ranked).json()["hits"]
    column = page.locator(".column").nth(1)
    expect(column.locator(".tick")).to_have_count(sum(hit["correct"] for hit in found[:12]))
    expect(column.locator("a").first).to_have_attribute("href", re.compile(r"[?&]image=0&"))


def test_an_entry_that_the_other_index_lacks_is_named(uneven, ask, proposing):
    page = uneven.open("compare", VSRN, other=proposing[1], image=0)
    expect(page.locator(".column").nth(1)).to_contain_text("does not hold this photo")
    expect(page.locator(".column").first.locator(".rows a")).to_have_count(12)
    expect(page.locator(".only")).to_have_count(0)
    text = ask("entries", VSRN, kind="text", split="train", limit=1)["entries"][0]
    page = uneven.open("compare", VSRN, other=proposing[1], text_number=text["number"])
    expect(page.locator(".column").nth(1).locator(".card a")).to_have_count(12)
    expect(page.locator(".column").nth(1).locator(".tick")).to_have_count(0)
    expect(page.locator(".column-top").first).to_contain_text("correct")
    expect(page.locator(".verdict")).to_have_text(
        re.compile(r"^\d+ of the first 12 photos (is|are) in")
    )


def test_swapped_runs_are_compared_on_the_same_photo(uneven, first_of_test):
    image = first_of_test["image"]
    page = uneven.open("compare", VSRN, other=uneven.runs[BFAN], image=image["number"])
    page.get_by_role("button", name="Swap").click()
    expect(page).to_have_url(re.compile(r"[?&]image=0(&|$)"))
    expect(page.locator(".verdict img")).to_have_attribute("alt", image["text"])


@pytest.fixture(scope="module")
def photos(served_runs, tmp_path_factory) -> Iterator[tuple[str, int, int]]:
    """A server whose indexes end with two photos of one name, in VSRN's with these numbers."""
    folder = tmp_path_factory.mktemp("photos")
    folders = [folder / name for name in "ab"]
    for shade, pictures in enumerate(folders):
        pictures.mkdir()
        (pictures / "photo.png").write_bytes(picture_bytes("PNG", size=(64, 48 + shade)))
    matchers = []
    for run, order in ((served_runs.vsrn, folders), (served_runs.bfan, folders[::-1])):
        index = folder / f"index-{run.parent.name}"
        build_index(run, Contents(splits=["test"], pictures=order), out=index)
        matchers.append(Matcher.load(run, index=index))
    *_, first, second = matchers[0].index.images
    assert first.id == second.id
    limits = Limits()
    with running(make_app(matchers, limits=limits), limits) as server:
        yield server, first.number, second.number


@pytest.fixture
def with_photos(browser, photos) -> Iterator[Visit]:
    with visiting(browser, photos[0], ["vsrn-round-two", "bfan-round-two"]) as visit:
        yield visit


def test_photos_of_two_folders_with_the_same_name_are_distinguished(with_photos, photos):
    _, first, second = photos
    page = with_photos.open("compare", VSRN, image=first)
    link = page.locator(".column").nth(1).locator("a").first
    expect(link).to_have_attribute("href", re.compile(rf"[?&]image={second}&"))


def test_no_answer_is_wrong_where_nothing_belongs_to_the_photo(with_photos, photos):
    page = with_photos.open("sentences", VSRN, image=photos[1])
    expect(page.locator(".summary")).to_contain_text("Best 12 of")
    expect(page.locator(".summary")).not_to_contain_text("correct")
    page = with_photos.open("compare", VSRN, image=photos[1])
    expect(page.locator(".column-top p")).to_have_text(["vsrn", "bfan"])
    expect(page.locator(".verdict")).to_have_text(
        re.compile(r"^\d+ of the first 12 sentences (is|are)")
    )


def test_one_run_alone_is_not_compared(visit):
    change_status(visit.page, lambda status: status["runs"].pop())
    page = visit.open("compare", VSRN)
    expect(page.locator(".state")).to_contain_text("aoq serve RUN OTHER")
    expect(page.locator("select")).to_have_count(0)
