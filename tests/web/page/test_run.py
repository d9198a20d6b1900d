"""What a run has mined, and what it came to."""

from __future__ import annotations

import io
import re

import pytest
from PIL import Image
from playwright import sync_api
from playwright.sync_api import expect

from tests.web.page.visit import BFAN, VSRN, Visit, change_status, marks_of, said, shown_marks


@pytest.mark.parametrize("kind", ["image", "text"])
def test_mined_negatives_have_the_scores_of_the_lists(visit, ask, kind):
    page = visit.open("negatives", kind=kind)
    expect(page).to_have_url(re.compile(r"number=\d+"))
    visit.settled()
    number = int(re.search(r"number=(\d+)", page.url)[1])
    answer = ask(f"negatives/{kind}/{number}", depth=12)
    assert marks_of(page) == shown_marks(answer["candidates"])
    for entry in answer["positives"]:
        own = page.locator("main").get_by_role("link").filter(has_text=entry["text"])
        expect(own).not_to_have_count(0)
    before = page.url
    page.get_by_role("button", name="Another").click()
    expect(page).not_to_have_url(before)


def test_another_anchor_that_cannot_be_had_is_said_to_fail(visit):
    visit.expected.add(503)
    page = visit.open("negatives", number=0)
    failed = {"error": "The answer took too long."}
    page.route("**/entries?*", lambda route: route.fulfill(status=503, json=failed))
    page.get_by_role("button", name="Another").click()
    expect(page.get_by_role("alert")).to_contain_text(failed["error"])
    page.unroute_all()
    page.get_by_role("button", name="Try again").click()
    expect(page).not_to_have_url(re.compile(r"number=0\b"))


@pytest.mark.parametrize("kind", ["image", "text"])
def test_an_anchor_is_picked_from_the_training_split(visit, ask, kind):
    page = visit.open("negatives", kind=kind, number=0)
    page.get_by_role("button", name="Pick one").click()
    dialog = page.get_by_role("dialog")
    with page.expect_response(re.compile("query=a")) as response:
        dialog.get_by_label("Word").fill("a")
    found = response.value.json()
    assert found["total"] == ask("entries", kind=kind, split="train", query="a")["total"]
    assert found["total"] < ask("entries", kind=kind, query="a")["total"]


@pytest.mark.parametrize(("split", "links"), [("train", 1), ("dev", 0), ("test", 0)])
def test_mined_negatives_are_offered_for_photos_of_the_training_split(visit, ask, split, links):
    entry = ask("entries", kind="image", split=split, limit=1)["entries"][0]
    page = visit.open("photo", image=entry["number"])
    expect(page.get_by_role("link", name="Sentences for this photo")).to_be_visible()
    link = page.get_by_role("link", name="Its mined negatives")
    expect(link).to_have_count(links)
    if links:
        link.click()
        visit.settled()
        expect(page.locator(".rows").last.locator("a")).to_have_count(12)


def test_a_run_without_mined_lists_says_why(visit):
    reason = "No negatives were mined with this run; `aoq mine` does it."
    lacking = {"has_negatives": False, "negatives_reason": reason}
    change_status(visit.page, lambda status: status["runs"][BFAN].update(lacking))
    page = visit.open("negatives")
    expect(page.locator(".state")).to_contain_text(said(reason))


def test_a_run_shows_curves_results_and_settings(visit, ask):
    page = visit.open("run", VSRN)
    rounds = ask("curves", VSRN)["rounds"]
    assert rounds
    expect(page.locator(".chart")).to_have_count(3)
    points = sum(len(one["epochs"]) for one in rounds)
    expect(page.locator(".chart").first.locator("circle, rect")).to_have_count(points)
    page.get_by_text("As a table").click()
    expect(page.locator("details tbody tr")).to_have_count(points)
    answer = ask("results", VSRN)
    rsum = page.locator(".wide-table").first.locator("tbody tr").first.locator("td").last
    assert float(rsum.inner_text()) == pytest.approx(answer["results"][0]["rsum"], abs=0.051)
    expect(page.locator(".settings dt")).to_have_text(list(answer["settings"]))


@pytest.mark.parametrize(("data", "rows"), [("the same", 2), ("another", 1), (None, 1)])
def test_only_results_on_the_same_data_are_beside_each_other(visit, data, rows):
    def change(status: dict) -> None:
        status["runs"][VSRN]["test_data"] = data
        status["runs"][BFAN]["test_data"] = data and "the same"

    change_status(visit.page, change)
    page = visit.open("run")
    expect(page.locator(".wide-table").first.locator("tbody tr")).to_have_count(rows)


def unjudged(visit: Visit, run: int, **also: object) -> None:
    """Let a run have no result on test."""
    lacking = {"test": None, "test_data": None, **also}
    change_status(visit.page, lambda status: status["runs"][run].update(lacking))
    answer = {"settings": {}, "results": []}
    results = f"**/{visit.runs[run]}/results"
    visit.page.route(results, lambda route: route.fulfill(json=answer))


@pytest.mark.parametrize(("shown", "row", "rows"), [(VSRN, 0, 1), (BFAN, 1, 2)])
def test_a_run_that_was_not_judged_on_test_has_a_dev_row(visit, client, shown, row, rows):
    unjudged(visit, VSRN)
    vsrn = client.get("/api/status").json()["runs"][VSRN]
    page = visit.open("run", shown)
    table = page.locator(".wide-table").first.locator("tbody tr")
    expect(table).to_have_count(rows)
    expect(table.nth(row).locator("th")).to_have_text(f"{vsrn['label']}, dev")
    rsum = table.nth(row).locator("td").last
    assert float(rsum.inner_text()) == pytest.approx(vsrn["dev"]["rsum"], abs=0.051)
    expect(page.locator(".hint").first).to_contain_text(f"{vsrn['label']} ({vsrn['name']})")
    expect(page.locator(".hint").first).to_contain_text("aoq evaluate")


def test_a_run_that_was_never_judged_is_named_with_what_to_do(visit):
    unjudged(visit, VSRN, dev=None)
    page = visit.open("run", VSRN)
    expect(page.locator(".state")).to_contain_text(visit.runs[VSRN])
    expect(page.locator(".state")).to_contain_text("aoq evaluate")


def test_a_run_on_other_data_is_said_to_be_left_out(visit):
    change_status(visit.page, lambda status: status["runs"][VSRN].update(test_data="another"))
    page = visit.open("run")
    expect(page.locator(".hint")).to_contain_text(f"({visit.runs[VSRN]})")


@pytest.mark.parametrize("options", [{"color_scheme": "light"}, {"color_scheme": "dark"}])
def test_a_table_that_goes_on_is_shaded_where_it_does(visit, options):
    page = visit.open("run")
    table = page.locator(".wide-table").first
    assert shaded_edges(table) == (False, False)
    page.set_viewport_size({"width": 390, "height": 844})
    assert shaded_edges(table) == (False, True)
    table.evaluate("one => one.scrollLeft = one.scrollWidth")
    assert shaded_edges(table) == (True, False)


def shaded_edges(table: sync_api.Locator) -> tuple[bool, bool]:
    """Whether the left and the right edge differ from the paper, seen where no letters are."""
    paper = table.evaluate("() => getComputedStyle(document.body).backgroundColor")
    shot = Image.open(io.BytesIO(table.screenshot())).convert("RGB")
    ground = tuple(map(int, re.findall(r"\d+", paper)))
    left, right = (shot.getpixel((x, 3)) for x in (0, shot.width - 1))
    return left != ground, right != ground


def test_a_run_that_is_still_training_is_asked_again(visit):
    asked: list[str] = []

    def count_up(route: sync_api.Route) -> None:
        what = route.request.url.rpartition("/")[2]
        asked.append(what)
        times = asked.count(what)
        answer = route.fetch().json()
        if what == "results":
            answer["results"][0]["rsum"] = 100 + times
        if what == "status":
            answer["runs"][VSRN]["test"]["rsum"] = 200 + times
        route.fulfill(json=answer)

    visit.page.route(re.compile("/(curves|results|status)$"), count_up)
    page = visit.open("run")
    rsums = page.locator(".wide-table").first.locator("tbody td:last-child")
    expect(rsums).to_have_text(["101.0", "202.0"])
    page.get_by_role("link", name="Photos").click()
    visit.settled()
    page.get_by_role("link", name="Research", exact=True).click()
    page.get_by_role("link", name="Run", exact=True).click()
    expect(rsums).to_have_text(["102.0", "203.0"])
    assert asked.count("curves") == 2


def test_a_run_with_a_teacher_says_how_much_is_found(uneven, proposing):
    client, _ = proposing
    teacher = client.get("/api/status").json()["runs"][1]["teacher"]
    page = uneven.open("run")
    expect(page.locator(".proposing")).to_contain_text("VSRN proposes 3 for every")
    share = f"{100 * teacher['recall']['t2i']['r10']:.1f} % of the first ten photos"
    expect(page.locator(".proposing")).to_contain_text(share)
    page = uneven.open("photos", text="a red bird")
    expect(page.locator(".summary")).to_contain_text("proposed by VSRN")
